"""`outlast sim`: simulated lives of runs, from seeds; the code that decides is the one that decides
live.

    outlast sim --seed 7                 one life: what was drawn, what struck, whether all that
                                         must hold did
    outlast sim --swarm 60               as many seeds as fit into a minute, on all cores
    outlast sim --shrink 7               the smallest life that breaks the same rule as seed 7
    outlast sim --replay life.json       a life that `--json` has written, once more

Exit codes: 0 ok, 1 a rule was broken, 3 unknown.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from outlast import __version__
from outlast.app.cli import Parser, finite
from outlast.app.json_text import json_text
from outlast.errors import UsageError
from outlast.model.fault_plan import PlannedFault, parse, render
from outlast.runtime import clock
from outlast.runtime.given import read_text
from outlast.runtime.pool import on_all_cores
from outlast.sim.options import POLICIES, SPARE_KINDS, WAYS
from outlast.sim.record import read
from outlast.sim.shrink import shrink
from outlast.sim.simulated_run import SimulatedRun, simulate, simulate_seed
from outlast.sim.swarm import Tally

EXIT_CODES = {"ok": 0, "bad": 1, "unknown": 3}
PROGRESS_S = 1.0
DRAWN = (  # options that a seed draws unless they are given
    "way",
    "ranks",
    "spares",
    "spare_kind",
    "steps",
    "phase_after",
    "latency_s",
    "first_step_s",
    "max_restarts",
    "nodes",
    "spare_nodes",
    "beat_s",
    "drift",
    "checkpoint_every",
    "step_s",
    "for_s",
    "again_s",
    "failures",
    "policy",
    "warns",
)


def main(argv: Sequence[str]) -> int:
    args = parser().parse_args(list(argv))
    if (
        sum(
            value is not None
            for value in (args.seed, args.swarm, args.seeds, args.shrink, args.replay)
        )
        != 1
    ):
        raise UsageError(
            "one of --seed, --seeds, --swarm, --shrink and --replay",
            hint="`outlast sim --seed 1` is a beginning",
        )
    given = {name: getattr(args, name) for name in DRAWN if getattr(args, name) is not None}
    if args.replay is not None:
        if given or args.faults:
            raise UsageError("--replay takes options and faults from its file")
        return _replay(args)
    faults = parse(read_text(args.faults), source=args.faults) if args.faults else None
    if args.swarm is not None or args.seeds is not None:
        return _swarm(args, given, faults)
    began_s = clock.now_s()
    life = simulate_seed(
        seed=args.seed if args.seed is not None else args.shrink,
        given=given,
        faults=faults,
        every_step=args.every_step,
        every_rank=args.every_rank,
    )
    if args.shrink is not None and life.result == "bad":
        life = _shrunk(life, quiet=args.json)
    _say(life, args, began_s)
    return EXIT_CODES[life.result]


def _replay(args: argparse.Namespace) -> int:
    record = read(read_text(args.replay), source=args.replay, version=__version__)
    began_s = clock.now_s()
    life = simulate(
        seed=record.seed,
        options=record.options,
        faults=record.faults,
        every_step=args.every_step,
        every_rank=args.every_rank,
    )
    _say(life, args, began_s)
    if life.trace_digest == record.trace_digest:
        return EXIT_CODES[life.result]
    print(
        f"another course than in {args.replay}, whose trace is {record.trace_digest}: the code has"
        " changed since",
        file=sys.stderr,
    )
    return EXIT_CODES["bad"]


def _say(life: SimulatedRun, args: argparse.Namespace, began_s: float) -> None:
    facts = life.as_dict() | {"version": __version__, "wall_s": round(clock.now_s() - began_s, 3)}
    if args.json:
        print(json_text(facts))
    else:
        _show(life, facts, args)


def parser() -> Parser:
    out = Parser(
        prog="outlast sim",
        description="Simulate lives of runs: the code that decides is the one that decides live.",
    )
    out.add_argument(
        "--seed",
        type=_seed,
        metavar="N",
        help="one life, all of it drawn from this number unless it is given below",
    )
    out.add_argument(
        "--seeds", type=_seed, metavar="N", help="so many lives, on all cores, from --first on"
    )
    out.add_argument(
        "--swarm",
        type=finite,
        metavar="SECONDS",
        help="lives on all cores until the time is up, from --first on",
    )
    out.add_argument(
        "--first",
        type=_seed,
        metavar="N",
        default=0,
        help="the first seed of --seeds and --swarm (0)",
    )
    out.add_argument(
        "--shrink",
        type=_seed,
        metavar="SEED",
        help="the smallest life that breaks the same rule as this seed",
    )
    out.add_argument(
        "--replay",
        metavar="LIFE",
        help="a life that --json has written, lived again: the same course, or it says so",
    )
    out.add_argument(
        "--faults", metavar="PLAN", help="a fault plan (TOML) in place of drawn faults"
    )
    out.add_argument("--way", choices=list(WAYS), help="how a script can go on after a fault")
    out.add_argument("--ranks", type=int, metavar="N", help="world size")
    out.add_argument("--spares", type=int, metavar="N", help="processes that stand ready")
    out.add_argument(
        "--spare-kind", choices=SPARE_KINDS, help="hot: script begun. warm: imports done"
    )
    out.add_argument("--steps", type=int, metavar="N", help="the last step")
    out.add_argument(
        "--phase-after",
        type=int,
        metavar="STEP",
        help="a run.phase follows this step; -1: none does",
    )
    out.add_argument("--latency-s", type=finite, metavar="S", help="a message takes up to so long")
    out.add_argument(
        "--first-step-s",
        type=finite,
        metavar="S",
        help="the first step of a process takes up to so much longer",
    )
    out.add_argument(
        "--nodes",
        type=int,
        metavar="N",
        help="each with an agent; from 2 on with lines, leases and clocks of their own",
    )
    out.add_argument(
        "--spare-nodes",
        type=int,
        metavar="N",
        help="of the nodes, those that house no ranks at first",
    )
    out.add_argument(
        "--beat-s",
        type=finite,
        metavar="S",
        help="between two heartbeats of an agent; its lease is six times as long",
    )
    out.add_argument(
        "--drift",
        type=finite,
        metavar="SHARE",
        help="a node's clock is at most so much faster or slower (0.01)",
    )
    out.add_argument(
        "--step-s",
        type=finite,
        metavar="S",
        help="the body of a step takes so long, and up to 20 ms longer (0.01)",
    )
    out.add_argument(
        "--for-s",
        type=finite,
        metavar="S",
        help=(
            "the run is asked to stop after so long; as many steps as fit, unless --steps says less"
        ),
    )
    out.add_argument(
        "--again-s",
        type=finite,
        metavar="S",
        help="so long after it was asked to stop it is asked once more: it ends at once",
    )
    out.add_argument(
        "--failures",
        type=int,
        metavar="N",
        help="so many faults as hardware fails, spread over --for-s, in place of drawn faults",
    )
    out.add_argument(
        "--warns",
        action=argparse.BooleanOptionalAction,
        help="each process warns that what it does is not bit-exact",
    )
    out.add_argument(
        "--every-step",
        action="store_true",
        help="simulate each step, undisturbed stretches too: the same course, in more time",
    )
    out.add_argument(
        "--every-rank",
        action="store_true",
        help=(
            "simulate each rank and each node by itself, though others do the same: the same"
            " course, in more time"
        ),
    )
    out.add_argument(
        "--checkpoint-every", type=int, metavar="N", help="a checkpoint each N steps; 0: none"
    )
    out.add_argument(
        "--policy",
        choices=list(POLICIES),
        help="interruptions get verdicts, and this policy acts on them; eager: soon and often",
    )
    out.add_argument(
        "--max-restarts",
        type=int,
        metavar="N",
        help="whole restarts (as `outlast run --max-restarts`)",
    )
    out.add_argument(
        "--trace", action="store_true", help="say the newest events of the life even if all is well"
    )
    out.add_argument("--json", action="store_true", help="for programs: one JSON object on stdout")
    return out


def _seed(text: str) -> int:
    if not text.isascii() or not text.isdigit():
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 0")
    return int(text)


# --- one life -------------------------------------------------------------------------------------


def _shrunk(life: SimulatedRun, *, quiet: bool) -> SimulatedRun:
    attempts = itertools.count(1)

    def tried(attempt: SimulatedRun) -> None:
        number = next(attempts)
        if not quiet and number % 20 == 0:
            print(f"  {number} smaller lives tried", file=sys.stderr, flush=True)

    return shrink(life, tried=tried)


def _show(life: SimulatedRun, facts: Mapping[str, Any], args: argparse.Namespace) -> None:
    print(
        f"seed {life.seed}: "
        + ", ".join(
            f"{name} {value}" for name, value in facts["options"].items() if value is not None
        )
    )
    for fault in facts["faults"]:
        fired = (
            "fired, in a recovery"
            if fault["in_recovery"]
            else "fired"
            if fault["fired"]
            else "not fired"
        )
        target, when = (
            ", ".join(f"{key} {value}" for key, value in fault[part].items())
            for part in ("target", "when")
        )
        print(
            f"  fault {fault['id']:<3} {fault['kind']:<10} {target.replace(' True', ''):<9}"
            f" {when:<28} {fired}"
        )
    print(
        f"{life.end or 'not ended'} after {life.sim_s:.3f} simulated seconds, {life.events:,}"
        f" events, {facts['wall_s']:.3f} s here; recovered by:"
        f" {', '.join(life.rungs) or 'nothing had to be'}"
    )
    if args.trace or life.result != "ok":
        print("\nthe newest events, in seconds since the beginning:")
        print("\n".join(life.newest))
    for violation in life.violations:
        print(f"\nbroken at {violation.at_s:.6f} s, {violation.rule}: {violation.what}")
    print(f"\n{life.result}   trace {life.trace_digest}")
    if args.shrink is not None and life.result == "bad":
        print(
            f"replay it: {replay_command(life)} --faults PLAN, where PLAN"
            f" holds\n\n{render(life.faults)}"
        )
    elif life.result != "ok":
        print(
            "replay it:"
            f" {replay_command(life)}{f' --faults {shlex.quote(args.faults)}' if args.faults else ''}"
        )


def replay_command(life: SimulatedRun) -> str:
    """Every option said, so that it holds however options will be drawn."""
    return (
        "outlast sim --seed"
        f" {life.seed}{_flags({name: getattr(life.options, name) for name in DRAWN})}"
    )


def _flags(options: Mapping[str, Any]) -> str:
    named = {name.replace("_", "-"): value for name, value in options.items() if value is not None}
    return "".join(
        (
            (f" --{name}" if value else f" --no-{name}")
            if isinstance(value, bool)
            else f" --{name} {value}"
        )
        for name, value in named.items()
    )


# --- many -----------------------------------------------------------------------------------------


def _swarm(
    args: argparse.Namespace, given: Mapping[str, Any], faults: tuple[PlannedFault, ...] | None
) -> int:
    began_s = clock.now_s()
    tally, said_s = Tally(), began_s
    for life in _lives(args, given, faults):
        tally.add(life)
        now_s = clock.now_s()
        if not args.json and now_s - said_s > PROGRESS_S:
            said_s = now_s
            print(
                f"  {tally.seeds:,} seeds in {now_s - began_s:.0f} s, {tally.counted:,} count, bad:"
                f" {len(tally.bad)}",
                file=sys.stderr,
                flush=True,
            )
        if args.swarm is not None and now_s - began_s > args.swarm:
            break
    facts = tally.as_dict() | {"wall_s": round(clock.now_s() - began_s, 3)}
    if args.json:
        print(json_text(facts))
    else:
        _show_swarm(facts, given)
    return EXIT_CODES[tally.result]


def _lives(
    args: argparse.Namespace, given: Mapping[str, Any], faults: tuple[PlannedFault, ...] | None
) -> Iterator[dict[str, Any]]:
    numbers = (
        itertools.count(args.first)
        if args.seeds is None
        else range(args.first, args.first + args.seeds)
    )
    return on_all_cores(functools.partial(_one, given, faults), numbers)


def _one(
    given: Mapping[str, Any], faults: tuple[PlannedFault, ...] | None, seed: int
) -> dict[str, Any]:
    return simulate_seed(seed=seed, given=given, faults=faults).as_dict()


def _show_swarm(facts: Mapping[str, Any], given: Mapping[str, Any]) -> None:
    print(
        f"{facts['seeds']:,} seeds, {facts['counted']:,} count (a fault struck, a regroup ran, a"
        f" step was committed after it); {facts['overlap']:.0%} with a fault during a recovery"
    )
    print(
        f"{facts['events']:,} events and {facts['sim_s']:,.0f} simulated seconds in"
        f" {facts['wall_s']:.1f} s"
    )
    for name in ("faults", "rungs", "ends", "way", "ranks", "spares"):
        print(
            f"  {name:<7} " + ", ".join(f"{what} {count:,}" for what, count in facts[name].items())
        )
    print(facts["result"])
    flags = _flags(given)
    for seed in facts["bad"][:10]:
        print(
            f"  replay: outlast sim --seed {seed}{flags}     make it smaller: outlast sim --shrink"
            f" {seed}{flags}"
        )
