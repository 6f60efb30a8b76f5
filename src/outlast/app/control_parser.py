"""The options of the commands that ask something of a run that goes on (control.py)."""

from __future__ import annotations

import argparse

from outlast.app.command_line import Parser, add_json, add_run, finite

DESCRIPTIONS = {
    "stop": "Stop a run as SIGTERM to its launcher does. The step in flight is committed first, and"
    " saved if the run writes checkpoints. `outlast run` then ends with exit code 143. A second"
    " `outlast stop` kills all processes at once.",
    "drain": "Move the ranks of a node to other nodes, without losing a committed step. The node is"
    " given no more work, and its launcher ends with exit code 0.",
    "cordon": "Give a node no more work. What runs there stays.",
    "uncordon": "Give a node work again that was cordoned or drained.",
}


def parser(name: str) -> Parser:
    """Return the parser of one of the commands."""
    out = Parser(prog=f"outlast {name}", description=DESCRIPTIONS[name])
    if name == "stop":
        add_run(out)
    else:
        many = name == "drain"
        out.add_argument(
            "node",
            nargs="?" if many else None,
            metavar="NODE",
            help="the node, as `outlast status` names it",
        )
        out.add_argument(
            "--run", metavar="RUN", help="the run's folder (default: the newest under runs/)"
        )
    if name == "drain":
        out.add_argument("--all", action="store_true", help="drain every node of the run")
        out.add_argument(
            "--one-at-a-time",
            action="store_true",
            help="with --all: drain a node once the one before is empty",
        )
    add_asking(out)
    return out


def add_asking(to: argparse.ArgumentParser) -> None:
    """Add what all commands take that ask something of a run."""
    to.add_argument("--reason", metavar="TEXT", default="", help="why, for the ledger")
    to.add_argument(
        "--timeout",
        metavar="SECONDS",
        type=finite,
        help="wait this long until it is done (default: without end); 0: do not wait",
    )
    to.add_argument(
        "--endpoint",
        metavar="HOST:PORT",
        help="ask over the network the node that leads a run on several nodes, with the run's token"
        " (OUTLAST_TOKEN); RUN is its --rdzv-id then (default: none)",
    )
    to.add_argument(
        "--token-file", metavar="FILE", help="with --endpoint: the file with the run's token"
    )
    add_json(to)
