"""`outlast plan`: how often to save and where, how many spares, and how far a run can grow.

The answer names its assumptions, and says how sure it is.

    outlast plan --gpus 16384 --days 54 --params 405e9         all else by stated defaults
    outlast plan --preset llama3-405b --sensitivity            a preset, and what its answer depends
                                                               on
    outlast plan --cluster ours.toml --optimise interval,spares --budget 2%
                                                               search for the best of both
    outlast plan --ledger runs/NAME --gpus 1024                with the failures and recoveries of
                                                               that run
    outlast plan --preset epoch --scale 1e3:1e8                how far it can grow
    outlast plan --gpus 64 --placement parity=4+2              which nodes can be lost at once

Exit codes: 0 for an answer, also where the run makes no progress; 2 for input that cannot be read.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any

from outlast.app.command_line import Parser, add_json, whole
from outlast.app.json_text import json_text
from outlast.errors import OutlastError, UsageError

PARAMETERS = ("interval", "tiers", "spares", "redundancy")


def main(argv: Sequence[str]) -> int:
    args = parser().parse_args(list(argv))
    try:
        return _run(args)
    except OutlastError as error:  # values of flags and files may hold anything
        from outlast.app.words import escaped

        raise type(error)(escaped(error.message), hint=escaped(error.hint)) from None


def parser() -> Parser:
    """Return the parser of `outlast plan`."""
    out = Parser(
        prog="outlast plan",
        description=(
            "Plan a run: how often to save and where, how many spares, and how far it can grow."
            " What you do not give is taken from defaults that the answer states"
            " (docs/how-to/plan-a-run.md)."
        ),
    )
    _add_sources(out.add_argument_group("what to start from", "at most one of these"))
    values = out.add_argument_group(
        "values",
        "each with its unit, as 3h, 2TB/s or 405B; a duration may vary: mean=30s, or"
        " median=5min,p95=20min",
    )
    _add_run(values)
    _add_recovery(values)
    _add_questions(out.add_argument_group("what to ask"))
    _add_simulation(out.add_argument_group("the simulation"))
    _add_output(out.add_argument_group("output"))
    return out


def _add_sources(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--preset",
        metavar="NAME",
        help="llama3-405b, rsc-1, rsc-2, epoch, 100k, gb200-nvl72, lab-8 or llama3-405b-126",
    )
    group.add_argument("--cluster", metavar="FILE", help="a cluster file (TOML)")
    group.add_argument(
        "--ledger", metavar="RUN", help="folder of a run: use its failures, recoveries and steps"
    )


def _add_run(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--gpus", metavar="N", help="GPUs that train at a time")
    group.add_argument("--days", metavar="N", help="length of the run")
    group.add_argument("--params", metavar="N", help="parameters of the model: 405B or 405e9")
    group.add_argument("--gpus-per-node", metavar="N", help="GPUs that are lost with a node")
    group.add_argument("--nodes-per-rack", metavar="N", help="nodes that are lost with a rack")
    group.add_argument("--step", metavar="TIME", help="length of one optimizer update")
    group.add_argument(
        "--mttf",
        metavar="TIME",
        help="mean time to failure of one GPU, all classes of failures together",
    )
    group.add_argument("--price", metavar="PRICE", help="price of a GPU-hour: 2.5/h")
    group.add_argument(
        "--bandwidth",
        metavar="RATE",
        help="bandwidth of the durable storage: 2TB/s, 2TiB/s or 400Gb/s",
    )
    group.add_argument(
        "--save",
        metavar="TIME",
        help="how long training pauses for a save to the durable storage",
    )
    group.add_argument(
        "--interval",
        metavar="[TIER=]TIME",
        action="append",
        help=(
            "time between two saves, in place of the best one; to the durable storage, or to the"
            " named tier"
        ),
    )
    group.add_argument(
        "--set",
        metavar="INPUT=VALUE",
        action="append",
        help="set any input by its path, as --set tier.storage.stall=2s (--inputs lists them)",
    )


def _add_recovery(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--detect", metavar="TIME", help="from a failure to its detection")
    group.add_argument(
        "--restart", metavar="TIME", help="from a failure to training again, without the restore"
    )
    group.add_argument("--take", metavar="TIME", help="until a spare node has replaced a lost one")
    group.add_argument(
        "--spares", metavar="N", help="spare nodes, in place of as many as the run needs"
    )
    group.add_argument(
        "--repair", metavar="TIME", help="until a node is repaired and becomes a spare"
    )


def _add_questions(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--optimise",
        type=_parameters,
        metavar="LIST",
        help=f"search for the best of any of {', '.join(PARAMETERS)} in simulation",
    )
    group.add_argument(
        "--budget",
        metavar="LIMIT",
        help=(
            "limit for the spares of --optimise: a share of the GPUs (2%%), or money (2.5M) with"
            " --price"
        ),
    )
    group.add_argument(
        "--sensitivity",
        action="store_true",
        help="show what the answer depends on: vary every input between the ends of its range",
    )
    group.add_argument(
        "--scale",
        metavar="LOW:HIGH",
        help=(
            "show how the run scales between two numbers of GPUs, as 1e3:1e8, and where each"
            " assumption ends"
        ),
    )
    group.add_argument(
        "--power",
        action="store_true",
        help="show how power swings when all GPUs stop and start together, and what reduces that",
    )
    group.add_argument(
        "--placement",
        metavar="KEEP",
        help=(
            "show which losses of one node, two nodes and one domain this value of outlast run"
            " --keep survives: peers=2 or parity=4+2"
        ),
    )
    group.add_argument(
        "--domains",
        metavar="LIST",
        help=(
            "with --placement: how many nodes each failure domain has, as 4,4,2, in place of the"
            " racks; none: the run is not told of domains (outlast run --node-domain)"
        ),
    )


def _add_simulation(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--seed", type=whole, metavar="N", default=0, help="seed of the simulation (default: 0)"
    )
    group.add_argument(
        "--replicas",
        type=whole,
        metavar="N",
        help="number of simulated runs (default: as many as the answer needs in about a second)",
    )
    group.add_argument(
        "--cores", type=whole, metavar="N", help="number of processes (default: all cores)"
    )
    group.add_argument(
        "--ray",
        metavar="ADDRESS",
        help=(
            "simulate on a Ray cluster: its address, auto or local (needs outlast[ray]); the"
            " results are the same"
        ),
    )


def _add_output(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--inputs", action="store_true", help="list every input with its value and its source"
    )
    add_json(group)
    group.add_argument("--html", metavar="FILE", help="also write the plan as one HTML page")
    group.add_argument(
        "--chart", metavar="FILE", help="also draw the charts: .svg or .png (needs outlast[plot])"
    )
    group.add_argument(
        "--write",
        metavar="FILE",
        help="write the inputs of this plan as a cluster file, and do not plan",
    )


def _parameters(text: str) -> list[str]:
    names = [one.strip() for one in text.split(",")]
    for name in names:
        if name not in PARAMETERS:
            raise argparse.ArgumentTypeError(f"{name!r} is none of {', '.join(PARAMETERS)}")
    return names


def _run(args: argparse.Namespace) -> int:
    from outlast.app.planning.plan_answer import answer
    from outlast.app.planning.plan_inputs import cluster_of
    from outlast.runtime.folders.given import check_page, write_new

    if args.html is not None:
        check_page(args.html)
    if args.chart is not None:
        from outlast.app.charts_file import format_of

        format_of(args.chart)
    if args.budget is not None and args.optimise is None:
        raise UsageError(
            "--budget limits what --optimise may choose, and needs it",
            hint="for example --optimise spares --budget 2%",
        )
    cluster = cluster_of(args)
    if args.write is not None:
        from outlast.planner.cluster_text import render

        write_new(args.write, render(cluster))
        if args.json:
            print(json_text({"written": args.write}))
        else:
            print(f"wrote the cluster file {args.write!r}", file=sys.stderr)
        return 0
    found = answer(cluster, args)
    if args.chart is not None:
        from outlast.app.charts_file import draw
        from outlast.app.planning.plan_charts import charts

        draw(charts(found), args.chart)
    if args.html is not None:
        from outlast.app.planning.plan_html import page
        from outlast.runtime.folders.given import write_page

        write_page(args.html, page(found))
    _show(found.facts() if args.json else None, found, args)
    return 0


def _show(facts: dict[str, Any] | None, found: Any, args: argparse.Namespace) -> None:
    if facts is not None:
        print(json_text(facts))
    else:
        from outlast.app.planning.plan_text import show
        from outlast.app.words import shows_blocks

        blocks = shows_blocks(sys.stdout.encoding)
        print("\n".join(show(found, inputs=args.inputs, blocks=blocks)))
    sys.stdout.flush()
