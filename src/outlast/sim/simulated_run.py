"""Simulate one run: draw it from a seed, let faults strike, and watch it to its end.

The result has a form that can be compared and replayed.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from outlast.engine.protocol.outputs import End
from outlast.errors import UsageError
from outlast.model import limits
from outlast.model.fault_plan import PlannedFault
from outlast.model.records import Interruption
from outlast.sim.draws import Stream
from outlast.sim.faults.drawn_faults import (
    APART,
    draw_alone,
    draw_company,
    draw_failing,
    draw_failures,
    draw_faults,
    draw_headless,
    draw_saves,
)
from outlast.sim.faults.joint_losses import draw_joint_losses
from outlast.sim.faults.partition_faults import PARTITION_KINDS, draw_partition_faults
from outlast.sim.faults.scripted_faults import draw_scripted
from outlast.sim.options import (
    Options,
    draw_checkpoints,
    draw_copies,
    draw_domains,
    draw_hardware,
    draw_moves,
    draw_options,
    draw_pace,
    draw_parity,
    draw_peer_copies,
    draw_peers,
    draw_policy,
    draw_replicas,
    draw_stop,
)
from outlast.sim.rules.checker import Violation
from outlast.sim.shortcuts.parted import Parted
from outlast.sim.world.script import script_of
from outlast.sim.world.world import World

# the times of an interruption that are in its record, if they are known
TIMES = ("fault_s", "fault_not_before_s", "left_s", "regrouped_s", "restored_s", "resumed_s")
# A garbage collection comes when this many more objects were made than freed.
COLLECTED_OBJECTS = 200_000
# A run may wait for the longest deadlines, one after the other. In virtual time they cost nothing.
SLACK_S = 5 * limits.BOOT_DEADLINE_S


@dataclass(frozen=True, slots=True)
class SimulatedRun:
    """The result of one simulated run.

    counts          True: a planned fault struck, there was a regroup, and a step was committed
                    after it
    committed       the step that was committed last
    interruptions   the records of the ledger, with times in seconds since the beginning
    marks           the number of visits of each mark of a worker
    """

    seed: int
    options: Options
    faults: tuple[PlannedFault, ...]
    result: str
    violations: tuple[Violation, ...]
    fired: tuple[str, ...]
    in_recovery: tuple[str, ...]
    marks: Mapping[str, int]
    rungs: tuple[str, ...]
    end: str
    counts: bool
    events: int
    sim_s: float
    trace_digest: str
    newest: tuple[str, ...]
    committed: int
    interruptions: tuple[Interruption, ...]

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON of `outlast sim`, without version and wall-clock time."""
        return {
            "seed": self.seed,
            "options": self.options.as_dict(),
            "result": self.result,
            "violations": [
                {"rule": one.rule, "at_s": round(one.at_s, 6), "what": one.what}
                for one in self.violations
            ],
            "faults": [
                one.as_dict()
                | {"fired": one.id in self.fired, "in_recovery": one.id in self.in_recovery}
                for one in self.faults
            ],
            "marks": dict(self.marks),
            "rungs": list(self.rungs),
            "end": self.end,
            "counts": self.counts,
            "events": self.events,
            "sim_s": round(self.sim_s, 6),
            "trace_digest": self.trace_digest,
        }


def simulate_seed(
    *,
    seed: int,
    given: Mapping[str, Any],
    faults: tuple[PlannedFault, ...] | None = None,
    every_step: bool = False,
    every_rank: bool = False,
    every_node: bool = False,
) -> SimulatedRun:
    """Simulate the run of one seed.

    Options in `given` are not drawn. If `faults` are given, none are drawn. Raises UsageError for
    options that contradict each other.
    """
    options = _draw_all_options(seed, given, hardware=faults is None)
    if faults is None:
        options, faults = _draw_all_faults(seed, options, given)
    return simulate(
        seed=seed,
        options=options,
        faults=faults,
        every_step=every_step,
        every_rank=every_rank,
        every_node=every_node,
    )


def _draw_all_options(seed: int, given: Mapping[str, Any], *, hardware: bool) -> Options:
    """Draw all options that are not given. With `hardware`, the run may fail like hardware."""
    options = draw_options(Stream(seed, "options"), given)
    if not given and hardware:
        options = draw_hardware(Stream(seed, "hardware"), options)
    if "checkpoint_every" not in given and not options.failures:
        options = draw_checkpoints(Stream(seed, "checkpoints"), options)
    if "keep_every" not in given and not options.failures:
        options = draw_copies(Stream(seed, "copies"), options)
    if "for_s" not in given and not options.failures:
        options = draw_stop(Stream(seed, "stop"), options)
    if "step_s" not in given and not options.failures:
        options = draw_pace(Stream(seed, "pace"), options)
    if "policy" not in given and not options.failures:
        options = draw_policy(Stream(seed, "policy"), options)
    if "moves" not in given:
        options = draw_moves(Stream(seed, "moves"), options)
    if "replicas" not in given:
        options = draw_replicas(Stream(seed, "replicas"), options)
    if "peer_copies" not in given:
        options = draw_peer_copies(Stream(seed, "peer copies"), options)
    if "parity" not in given:
        options = draw_parity(Stream(seed, "parity"), options)
    if "peers" not in given:
        options = draw_peers(Stream(seed, "peers"), options)
    if "domains" not in given:
        options = draw_domains(Stream(seed, "domains"), options)
    # an option that is drawn together with others may be given alone
    return replace(options, **given)


def _draw_all_faults(
    seed: int, options: Options, given: Mapping[str, Any]
) -> tuple[Options, tuple[PlannedFault, ...]]:
    """Draw the faults of a run, each kind from a stream of its own.

    A scripted run may need other options. They are returned with its faults.
    """
    if options.failures:
        return options, draw_failures(Stream(seed, "failures"), options)
    faults = draw_faults(Stream(seed, "faults"), options)
    faults += draw_company(Stream(seed, "company"), options, faults[0])
    faults += draw_partition_faults(Stream(seed, "partings"), options)
    faults += draw_saves(Stream(seed, "saves"), options)
    faults += draw_headless(Stream(seed, "headless"), options)
    faults += draw_joint_losses(Stream(seed, "joint losses"), options)
    faults = (
        draw_alone(Stream(seed, "alone"), options)
        or draw_failing(Stream(seed, "failing"), options)
        or faults
    )
    drawn = draw_scripted(Stream(seed, "rehearsed"), options, given)
    options, faults = drawn or (options, faults)
    drawn = draw_scripted(Stream(seed, "seldom"), options, given, seldom=True)
    return drawn or (options, faults)


def simulate(
    *,
    seed: int,
    options: Options,
    faults: tuple[PlannedFault, ...],
    every_step: bool = False,
    every_rank: bool = False,
    every_node: bool = False,
) -> SimulatedRun:
    """Simulate one run with these options and faults. Only the world draws from the seed.

    With `every_step`, `every_rank` or `every_node`, the shortcut of that kind is not taken: see
    sim/shortcuts/.
    """
    _check(faults, options)
    world = World(
        options=options,
        script=script_of(options.recovery_mode),
        faults=faults,
        seed=seed,
        every_step=every_step,
        every_rank=every_rank,
        every_node=every_node,
    )
    with _seldom_collected():
        try:
            end = world.run(bound_s=options.for_s + SLACK_S * (1 + len(faults)))
        except Parted:
            return simulate(
                seed=seed,
                options=options,
                faults=faults,
                every_step=every_step,
                every_node=True,
                every_rank=every_node or not world.has_twins,
            )
    return _outcome(world, seed=seed, end=end)


def _check(faults: tuple[PlannedFault, ...], options: Options) -> None:
    """Raise UsageError for a fault whose target the run does not have."""
    for fault in faults:
        if fault.rank is not None and fault.rank >= options.ranks:
            raise UsageError(
                f"fault {fault.id} strikes rank {fault.rank}, but there are {options.ranks}",
                hint=f"ranks are 0 to {options.ranks - 1}",
            )
        if fault.node is not None and fault.node >= options.nodes:
            raise UsageError(
                f"fault {fault.id} strikes node {fault.node}, but there are {options.nodes}",
                hint=f"nodes are 0 to {options.nodes - 1}",
            )
        if fault.peer is not None and fault.peer >= options.nodes:
            raise UsageError(
                f"fault {fault.id} strikes node {fault.peer}, but there are {options.nodes}",
                hint=f"nodes are 0 to {options.nodes - 1}",
            )
        if fault.disk is not None and fault.disk >= options.nodes:
            raise UsageError(
                f"fault {fault.id} strikes disk {fault.disk}, but there are {options.nodes}",
                hint="each node has one, from 0 on",
            )
        if (fault.agent or fault.kind in (*APART, *PARTITION_KINDS)) and options.nodes < 2:
            raise UsageError(
                f"fault {fault.id} needs several nodes, but there is one",
                hint="give their number with --nodes",
            )
        if fault.rank == -1 and not options.spares:
            raise UsageError(
                f"fault {fault.id} strikes a spare, but there is none",
                hint="give their number with --spares",
            )


def _outcome(world: World, *, seed: int, end: End | None) -> SimulatedRun:
    """Return the result of a run that is over, or that did not end."""
    return SimulatedRun(
        seed=seed,
        options=world.options,
        faults=world.strikes.faults,
        result=world.checkers.result,
        violations=tuple(world.checkers.violations),
        fired=world.strikes.fired,
        in_recovery=tuple(world.strikes.in_recovery),
        marks=dict(sorted(world.marks.items())),
        rungs=tuple(one.rung.value for one in world.interruptions.values() if one.rung is not None),
        end=end.state if end is not None else "",
        counts=_counts(world),
        events=world.timeline.events,
        sim_s=world.age_s,
        trace_digest=world.trace.digest(),
        newest=tuple(world.trace.newest),
        committed=world.steps.last,
        interruptions=_since_the_beginning(world),
    )


@contextmanager
def _seldom_collected() -> Iterator[None]:
    """Collect garbage seldom, because the parts of a world exist as long as the world.

    In large worlds, the search for garbage would take a third of the time.
    """
    before = gc.get_threshold()
    gc.set_threshold(COLLECTED_OBJECTS, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)


def _since_the_beginning(world: World) -> tuple[Interruption, ...]:
    """Return the interruptions with times by a clock that begins with the run."""
    began_s, out = world.now_s - world.age_s, []
    for one in world.interruptions.values():
        known = {name: at_s - began_s for name in TIMES if (at_s := getattr(one, name)) is not None}
        out.append(replace(one, detected_s=one.detected_s - began_s, **known))
    return tuple(out)


def _counts(world: World) -> bool:
    resumed_s = [one.resumed_s for one in world.interruptions.values() if one.resumed_s is not None]
    return (
        bool(world.strikes.fired)
        and any(commit[1] > 1 for commit in world.commits)
        and bool(resumed_s)
    )
