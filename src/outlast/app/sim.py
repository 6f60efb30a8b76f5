"""`outlast sim`: simulate runs under faults, with the code that decides in real runs.

    outlast sim --seed 7                 simulate one run; print what was drawn, which faults
                                         struck, and whether all rules held
    outlast sim --swarm 60               simulate as many seeds as fit into a minute, on all cores
    outlast sim --shrink 7               find the smallest run that breaks the same rule as seed 7
    outlast sim --replay run.json        simulate a run again that `--json` has written

Exit codes: 0: all rules held. 1: a rule was broken. 3: unknown.
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
from outlast.app.command_line import Parser, add_json, finite, whole
from outlast.app.json_text import json_text
from outlast.errors import UsageError
from outlast.model.fault_plan import PlannedFault, parse, render
from outlast.model.terms import SPARE_KINDS
from outlast.runtime import clock
from outlast.runtime.folders.given import read_text
from outlast.runtime.pool import on_all_cores
from outlast.sim.options import MODES, MOVES, POLICIES
from outlast.sim.record import read
from outlast.sim.shrink import shrink
from outlast.sim.simulated_run import SimulatedRun, simulate, simulate_seed
from outlast.sim.swarm import Tally

EXIT_CODES = {"ok": 0, "bad": 1, "unknown": 3}
PROGRESS_S = 1.0
DRAWN = (  # options that a seed draws unless they are given
    "recovery_mode",
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
    "keep_every",
    "step_s",
    "for_s",
    "again_s",
    "failures",
    "policy",
    "warns",
    "moves",
    "replicas",
    "peer_copies",
    "parity",
    "peers",
    "domains",
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
            "exactly one of --seed, --seeds, --swarm, --shrink and --replay is needed",
            hint="to begin with, try `outlast sim --seed 1`",
        )
    given = {name: getattr(args, name) for name in DRAWN if getattr(args, name) is not None}
    if args.replay is not None:
        if given or args.faults:
            raise UsageError(
                "--replay takes all options and faults from its file",
                hint="leave the other options out, or use --seed with them",
            )
        return _replay(args)
    faults = parse(read_text(args.faults), source=args.faults) if args.faults else None
    if args.swarm is not None or args.seeds is not None:
        return _swarm(args, given, faults)
    began_s = clock.now_s()
    run = simulate_seed(
        seed=args.seed if args.seed is not None else args.shrink,
        given=given,
        faults=faults,
        every_step=args.every_step,
        every_rank=args.every_rank,
    )
    if args.shrink is not None and run.result == "bad":
        run = _shrunk(run, quiet=args.json)
    _say(run, args, began_s)
    return EXIT_CODES[run.result]


def _replay(args: argparse.Namespace) -> int:
    record = read(read_text(args.replay), source=args.replay, version=__version__)
    began_s = clock.now_s()
    run = simulate(
        seed=record.seed,
        options=record.options,
        faults=record.faults,
        every_step=args.every_step,
        every_rank=args.every_rank,
    )
    _say(run, args, began_s)
    if run.trace_digest == record.trace_digest:
        return EXIT_CODES[run.result]
    print(
        f"error: this run differs from the one in {args.replay}, whose trace is"
        f" {record.trace_digest}; the code has changed since",
        file=sys.stderr,
    )
    return EXIT_CODES["bad"]


def _say(run: SimulatedRun, args: argparse.Namespace, began_s: float) -> None:
    facts = run.as_dict() | {"version": __version__, "wall_s": round(clock.now_s() - began_s, 3)}
    if args.json:
        print(json_text(facts))
    else:
        _show(run, facts, args)


def parser() -> Parser:
    """Return the parser of `outlast sim`."""
    out = Parser(
        prog="outlast sim",
        description=(
            "Simulate training runs under faults. The code that decides what to do is the code"
            " that decides in real runs. What you do not set below is drawn from the seed."
        ),
    )
    _add_choice_of_runs(out.add_argument_group("which runs", "exactly one of the first five"))
    _add_job(out.add_argument_group("the job"))
    _add_nodes(out.add_argument_group("nodes"))
    _add_faults(out.add_argument_group("faults, and what is done about them"))
    _add_durations(out.add_argument_group("durations, in simulated seconds"))
    how = out.add_argument_group("how to simulate, and what to print")
    how.add_argument(
        "--every-step",
        action="store_true",
        help="simulate every step, also where nothing happens: the same result, more slowly",
    )
    how.add_argument(
        "--every-rank",
        action="store_true",
        help=(
            "simulate every rank and every node on its own, also where all do the same: the same"
            " result, more slowly"
        ),
    )
    how.add_argument(
        "--trace", action="store_true", help="print the newest events even if no rule was broken"
    )
    add_json(how)
    return out


def _add_choice_of_runs(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--seed", type=whole, metavar="N", help="simulate one run, drawn from N")
    group.add_argument(
        "--seeds", type=whole, metavar="N", help="simulate N runs on all cores, from --first on"
    )
    group.add_argument(
        "--swarm",
        type=finite,
        metavar="SECONDS",
        help="simulate runs on all cores until the time is up, from --first on",
    )
    group.add_argument(
        "--shrink",
        type=whole,
        metavar="SEED",
        help="find the smallest run that breaks the same rule as SEED",
    )
    group.add_argument(
        "--replay",
        metavar="FILE",
        help="simulate a run again that --json has written, and fail if it differs",
    )
    group.add_argument(
        "--first",
        type=whole,
        metavar="N",
        default=0,
        help="first seed of --seeds and --swarm (default: 0)",
    )


def _add_job(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--recovery-mode",
        choices=list(MODES),
        help="how the script can go on after a fault",
    )
    group.add_argument("--ranks", type=int, metavar="N", help="world size")
    group.add_argument("--spares", type=int, metavar="N", help="processes kept ready")
    group.add_argument(
        "--spare-kind",
        choices=SPARE_KINDS,
        help="hot: the script has begun; warm: only the imports are done",
    )
    group.add_argument("--steps", type=int, metavar="N", help="number of the last step")
    group.add_argument(
        "--phase-after",
        type=int,
        metavar="STEP",
        help="run a phase (run.phase) after this step; -1 for none",
    )
    group.add_argument(
        "--checkpoint-every",
        type=int,
        metavar="N",
        help="write a checkpoint every N steps; 0 for none",
    )
    group.add_argument(
        "--keep-every",
        type=int,
        metavar="N",
        help="copy replicated state to the vault every N steps; 0 for never",
    )
    group.add_argument(
        "--warns",
        action=argparse.BooleanOptionalAction,
        help="let each process warn that its work is not bit-exact",
    )
    group.add_argument(
        "--moves",
        choices=tuple(MOVES),
        help="let the script change private state after each block, alike or apart on the ranks;"
        " '' for no such changes",
    )
    group.add_argument(
        "--replicas",
        type=int,
        metavar="N",
        help="with sharded state: N ranks hold each shard, as under HSDP; 1: one owner each",
    )


def _add_nodes(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--nodes",
        type=int,
        metavar="N",
        help="nodes, each with an agent; from 2 on also with links, leases and clocks",
    )
    group.add_argument(
        "--peer-copies",
        action=argparse.BooleanOptionalAction,
        help="of sharded state: let other nodes keep copies of each rank's images",
    )
    group.add_argument(
        "--peers",
        type=int,
        metavar="C",
        help="with --peer-copies: how many nodes keep a copy of each image",
    )
    group.add_argument(
        "--parity",
        metavar="K+M",
        help="with --peer-copies: let several nodes keep parity instead, such as 2+1",
    )
    group.add_argument(
        "--domains",
        type=int,
        metavar="N",
        help="with --peer-copies: the nodes are in N domains that can be lost as a whole",
    )
    group.add_argument(
        "--spare-nodes",
        type=int,
        metavar="N",
        help="how many of the nodes have no ranks at first",
    )
    group.add_argument(
        "--beat-s",
        type=finite,
        metavar="S",
        help="time between two heartbeats of an agent; its lease is six times as long",
    )
    group.add_argument(
        "--drift",
        type=finite,
        metavar="SHARE",
        help="how much faster or slower a node's clock may run, at most (0.01 is 1%%)",
    )


def _add_faults(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--faults", metavar="PLAN", help="a fault plan (TOML), in place of random faults"
    )
    group.add_argument(
        "--failures",
        type=int,
        metavar="N",
        help="N faults like those of hardware, spread over --for-s, in place of random faults",
    )
    group.add_argument(
        "--policy",
        choices=list(POLICIES),
        help="diagnose interruptions and let this policy act; eager acts soon and often",
    )
    group.add_argument(
        "--max-restarts",
        type=int,
        metavar="N",
        help="how often the whole run may restart (as `outlast run --max-restarts`)",
    )


def _add_durations(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--latency-s", type=finite, metavar="S", help="longest time that a message takes"
    )
    group.add_argument(
        "--step-s",
        type=finite,
        metavar="S",
        help="length of a step's body, to which up to 20 ms are added (default: 0.01)",
    )
    group.add_argument(
        "--first-step-s",
        type=finite,
        metavar="S",
        help="longest time that the first step of a process takes in addition",
    )
    group.add_argument(
        "--for-s",
        type=finite,
        metavar="S",
        help="ask the run to stop after S; it does as many steps as fit, or --steps if fewer",
    )
    group.add_argument(
        "--again-s",
        type=finite,
        metavar="S",
        help="ask once more, S after the first request to stop: then the run ends at once",
    )


# --- one run -------------------------------------------------------------------------------------


def _shrunk(run: SimulatedRun, *, quiet: bool) -> SimulatedRun:
    attempts = itertools.count(1)

    def tried(attempt: SimulatedRun) -> None:
        number = next(attempts)
        if not quiet and number % 20 == 0:
            print(f"  {number} smaller runs tried", file=sys.stderr, flush=True)

    return shrink(run, tried=tried)


def _show(run: SimulatedRun, facts: Mapping[str, Any], args: argparse.Namespace) -> None:
    print(
        f"seed {run.seed}: "
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
        f"{run.end or 'not ended'} after {run.sim_s:.3f} simulated seconds, {run.events:,}"
        f" events, {facts['wall_s']:.3f} s here; recovered by:"
        f" {', '.join(run.rungs) or 'nothing had to be'}"
    )
    if args.trace or run.result != "ok":
        print("\nthe newest events, with seconds since the beginning:")
        print("\n".join(run.newest))
    for violation in run.violations:
        print(f"\nbroken at {violation.at_s:.6f} s, {violation.rule}: {violation.what}")
    print(f"\n{run.result}   trace {run.trace_digest}")
    if args.shrink is not None and run.result == "bad":
        print(
            f"replay it: {replay_command(run)} --faults PLAN, where PLAN"
            f" holds\n\n{render(run.faults)}"
        )
    elif run.result != "ok":
        faults = f" --faults {shlex.quote(args.faults)}" if args.faults else ""
        print(f"replay it: {replay_command(run)}{faults}")


def replay_command(run: SimulatedRun) -> str:
    """Return a command with every option, so that it works however options will be drawn."""
    return (
        "outlast sim --seed"
        f" {run.seed}{_flags({name: getattr(run.options, name) for name in DRAWN})}"
    )


def _flags(options: Mapping[str, Any]) -> str:
    named = {name.replace("_", "-"): value for name, value in options.items() if value is not None}
    return "".join(
        (
            (f" --{name}" if value else f" --no-{name}")
            if isinstance(value, bool)
            else f" --{name} {shlex.quote(str(value))}"
        )
        for name, value in named.items()
    )


# --- many -----------------------------------------------------------------------------------------


def _swarm(
    args: argparse.Namespace, given: Mapping[str, Any], faults: tuple[PlannedFault, ...] | None
) -> int:
    began_s = clock.now_s()
    tally, said_s = Tally(), began_s
    for run in _simulated(args, given, faults):
        tally.add(run)
        now_s = clock.now_s()
        if not args.json and now_s - said_s > PROGRESS_S:
            said_s = now_s
            print(
                f"  {tally.seeds:,} seeds in {now_s - began_s:.0f} s, {len(tally.bad)} of them bad",
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


def _simulated(
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
