"""`outlast plan`: how often to save and where to, how many spares, how far a run can grow; the
answer, what it rests on, and how sure it is.

    outlast plan --gpus 16384 --days 54 --params 405e9         the rest by stated defaults
    outlast plan --preset llama3-405b --sensitivity            one of the presets; what its answer
                                                               depends on
    outlast plan --cluster ours.toml --optimise interval,spares --budget 2%
    outlast plan --ledger runs/NAME --gpus 1024                as that run failed and recovered
    outlast plan --preset epoch --scale 1e3:1e8                how far

Exit codes: 0 an answer, also where the run makes no progress; 2 what cannot be read.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any

from outlast.app.cli import Parser
from outlast.app.json_text import json_text
from outlast.errors import OutlastError, UsageError

PARAMETERS = ("interval", "tiers", "spares", "redundancy")


def main(argv: Sequence[str]) -> int:
    args = parser().parse_args(list(argv))
    try:
        return _run(args)
    except OutlastError as error:  # values of flags and files may hold anything
        from outlast.app.words import plain

        raise type(error)(plain(error.args[0]), hint=plain(error.hint)) from None


def parser() -> Parser:
    out = Parser(
        prog="outlast plan",
        description=(
            "Plan a run: how often to save and where to, how many spares, how far it can grow"
            " (docs/how-to/plan-a-run.md)."
        ),
    )
    base = out.add_argument_group(
        "what to begin with", "one of these at most; without any, stated defaults"
    )
    base.add_argument(
        "--preset",
        metavar="NAME",
        help="llama3-405b, rsc-1, rsc-2, epoch, 100k, gb200-nvl72, lab-8, llama3-405b-126",
    )
    base.add_argument("--cluster", metavar="FILE", help="a cluster file (TOML)")
    base.add_argument(
        "--ledger", metavar="RUN", help="a run's folder: its failures, recoveries and steps"
    )
    _values(
        out.add_argument_group(
            "values",
            "each with its unit: 3h, 2TB/s, 405B; a duration may vary: mean=30s,"
            " median=5min,p95=20min",
        )
    )
    ask = out.add_argument_group("what to ask")
    ask.add_argument(
        "--optimise",
        type=_parameters,
        metavar="LIST",
        help=f"search in simulation: any of {','.join(PARAMETERS)}",
    )
    ask.add_argument(
        "--budget",
        metavar="LIMIT",
        help=(
            "of the spares that --optimise may choose: a share of the GPUs (2%%), or money (2.5M)"
            " with --price"
        ),
    )
    ask.add_argument(
        "--sensitivity",
        action="store_true",
        help="what the answer depends on: every input at both ends of what it may be",
    )
    ask.add_argument(
        "--scale",
        metavar="LOW:HIGH",
        help="from so many GPUs to so many, as 1e3:1e8; and the most under each assumption",
    )
    ask.add_argument(
        "--power",
        action="store_true",
        help="how power swings when all GPUs stop and begin at once, and what would soften it",
    )
    ask.add_argument("--seed", type=_whole, metavar="N", default=0, help="of the simulation (0)")
    ask.add_argument(
        "--replicas",
        type=_whole,
        metavar="N",
        help="simulated runs (as many as the answer needs in about a second)",
    )
    ask.add_argument(
        "--cores", type=_whole, metavar="N", help="processes to simulate in (all cores)"
    )
    ask.add_argument(
        "--ray",
        metavar="ADDRESS",
        help=(
            "simulate on a Ray cluster: its address, auto or local (needs outlast[ray]); same"
            " results"
        ),
    )
    say = out.add_argument_group("how to say it")
    say.add_argument(
        "--inputs", action="store_true", help="list every input with its value and its source"
    )
    say.add_argument("--json", action="store_true", help="for programs: one JSON object on stdout")
    say.add_argument("--html", metavar="FILE", help="also write one page that can be mailed")
    say.add_argument(
        "--chart", metavar="FILE", help="also draw the charts: .svg or .png (needs outlast[plot])"
    )
    say.add_argument(
        "--write",
        metavar="FILE",
        help=(
            "write the cluster file that this plan was made from, flags included, and plan nothing"
        ),
    )
    return out


def _values(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--gpus", metavar="N", help="GPUs that train at a time")
    group.add_argument("--days", metavar="N", help="length of the run")
    group.add_argument("--params", metavar="N", help="parameters of the model: 405B, 405e9")
    group.add_argument("--gpus-per-node", metavar="N", help="lost with a node")
    group.add_argument("--nodes-per-rack", metavar="N", help="lost with a rack")
    group.add_argument("--step", metavar="TIME", help="one optimizer update")
    group.add_argument(
        "--mttf", metavar="TIME", help="of one GPU, all classes of failures together"
    )
    group.add_argument(
        "--bandwidth", metavar="RATE", help="of the durable storage: 2TB/s, 2TiB/s, 400Gb/s"
    )
    group.add_argument(
        "--save",
        metavar="TIME",
        help="training stands still for so long while it is saved to the durable storage",
    )
    group.add_argument(
        "--interval",
        metavar="[TIER=]TIME",
        action="append",
        help="between two saves, instead of the best; of the durable storage, or of a tier by name",
    )
    group.add_argument("--detect", metavar="TIME", help="failure to detection")
    group.add_argument(
        "--restart", metavar="TIME", help="failure to training again, without the restore"
    )
    group.add_argument("--take", metavar="TIME", help="until a spare node has taken its place")
    group.add_argument(
        "--spares", metavar="N", help="nodes that stand ready, instead of as many as it takes"
    )
    group.add_argument("--repair", metavar="TIME", help="of a node, until it is a spare again")
    group.add_argument("--price", metavar="PRICE", help="of a GPU-hour: 2.5/h")
    group.add_argument(
        "--set",
        metavar="INPUT=VALUE",
        action="append",
        help="any input by its path, as --set tier.storage.stall=2s",
    )


def _parameters(text: str) -> list[str]:
    names = [one.strip() for one in text.split(",")]
    for name in names:
        if name not in PARAMETERS:
            raise argparse.ArgumentTypeError(f"{name!r} is none of {', '.join(PARAMETERS)}")
    return names


def _whole(text: str) -> int:
    if not text.isascii() or not text.isdigit():
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 0")
    return int(text)


def _run(args: argparse.Namespace) -> int:
    from outlast.app.plan_answer import answer
    from outlast.app.plan_inputs import cluster_of
    from outlast.runtime.given import check_page, write_new

    if args.html is not None:
        check_page(args.html)
    if args.chart is not None:
        from outlast.app.charts_file import format_of

        format_of(args.chart)
    if args.budget is not None and args.optimise is None:
        raise UsageError(
            "--budget is a limit for --optimise", hint="as in --optimise spares --budget 2%"
        )
    cluster = cluster_of(args)
    if args.write is not None:
        from outlast.planner.cluster_text import render

        write_new(args.write, render(cluster))
        if args.json:
            print(json_text({"written": args.write}))
        else:
            print(f"{args.write!r} is written", file=sys.stderr)
        return 0
    found = answer(cluster, args)
    if args.chart is not None:
        from outlast.app.charts_file import draw
        from outlast.app.plan_charts import charts

        draw(charts(found), args.chart)
    if args.html is not None:
        from outlast.app.plan_html import page
        from outlast.runtime.given import write_page

        write_page(args.html, page(found))
    _show(found.facts() if args.json else None, found, args)
    return 0


def _show(facts: dict[str, Any] | None, found: Any, args: argparse.Namespace) -> None:
    if facts is not None:
        print(json_text(facts))
    else:
        from outlast.app.plan_text import show

        print(
            "\n".join(
                show(found, inputs=args.inputs, blocks="utf" in (sys.stdout.encoding or "").lower())
            )
        )
    sys.stdout.flush()
