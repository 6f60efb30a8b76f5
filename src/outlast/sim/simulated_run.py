"""One life of a run: drawn from a seed, struck, watched to its end, and said in a form that can be
compared and replayed.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from outlast.errors import UsageError
from outlast.model import limits
from outlast.model.fault_plan import DISK_KINDS, MARKS, SAVE_MARKS, STAGES, PlannedFault
from outlast.model.records import Interruption
from outlast.sim.draws import Stream
from outlast.sim.faults.partition_faults import PARTITION_KINDS, draw_partition_faults
from outlast.sim.faults.scripted_faults import draw_scripted
from outlast.sim.faults.strikes import STEP_MARKS
from outlast.sim.options import (
    Options,
    draw_checkpoints,
    draw_hardware,
    draw_options,
    draw_pace,
    draw_policy,
    draw_stop,
)
from outlast.sim.rules.checker import Violation
from outlast.sim.shortcuts.identical_ranks import Parted
from outlast.sim.world.script import script_of
from outlast.sim.world.world import World

APART = ("lose_node", "cut", "lag", "lose_coordinator")  # where there are several nodes
INTERRUPT = ("kill", "exit", "stop", "deaf", "hang", "raise")
DISTURB = ("lose_store", "hold", "mute", "repeat", "linger")
# and the visit from which on they mean recovery
RECOVERY_MARKS = {
    "still": 1,
    "settled": 1,
    "donating": 1,
    "grouping": 2,
    "restoring": 2,
    "joined": 2,
}
SPARE_MARKS = ("boot", "join", "setup", "parked")
# most are of one process, one in six of its node
FAILURES = (*("kill",) * 10, *("exit",) * 3, *("hang",) * 2, "stop", *("lose_node",) * 3, "cut")
FAILS_S = {"stop": 30.0, "lose_node": 300.0, "cut": 20.0}
# of an interruption, where they are known
TIMES = ("fault_s", "fault_not_before_s", "left_s", "regrouped_s", "restored_s", "resumed_s")
COLLECTED_OBJECTS = 200_000  # more made than freed, before the youngest are looked through
FOR_EVER_S = 1e6
STARVES_S = (1.0, 4.0, 15.0, 30.0, 50.0)  # all below limits.STARVED_MAX_S
STORM = 6  # faults at most
# a life may wait for the longest deadlines, one after the other; they cost nothing here
SLACK_S = 5 * limits.BOOT_DEADLINE_S


@dataclass(frozen=True, slots=True)
class SimulatedRun:
    """What came of one seed.

    `counts`: a planned fault struck, there was a regroup, and a step was committed after it.
    `committed`: the step that was committed last; `interruptions`: as the ledger has them, in
    seconds since the beginning.

    `marks`: visits of places in a worker's life.
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
        """The JSON of `outlast sim`, without version and wall-clock time."""
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


def draw_faults(stream: Stream, options: Options) -> tuple[PlannedFault, ...]:
    """The first cuts a step short.

    Of the others, most strike while that is dealt with; the rest at any mark, step or time.
    """
    faults = []
    alone, count = stream.chance(0.15), 2 + stream.below(STORM - 1)
    for number in range(1 if alone else count):
        # Everything is drawn whatever is used of it, so that no choice shifts what follows.
        kind, rank = (
            stream.pick(INTERRUPT if not number else INTERRUPT + DISTURB),
            stream.below(options.ranks),
        )
        at_spare, how, recovering, any_mark = (
            stream.chance(0.15),
            stream.below(10),
            stream.pick(tuple(RECOVERY_MARKS)),
            stream.pick(MARKS),
        )
        step_mark, nth, step = (
            stream.pick(STEP_MARKS),
            stream.below(5),
            1 + stream.below(options.steps),
        )
        at_s, after_s, for_s = (
            stream.between(0.0, 2.0),
            stream.pick((0.0, 0.0, 0.002, 0.02)),
            stream.pick((0.05, 0.6, 4.0)),
        )
        for_ever, stuck, spare_mark = (
            stream.chance(0.04),
            stream.chance(0.1),
            stream.pick(SPARE_MARKS),
        )
        apart, thing, at_stage, stage = (
            stream.chance(0.5),
            stream.pick(APART),
            stream.below(10),
            stream.pick(STAGES),
        )
        passes_s = stream.pick((0.1, 0.5, 2.0, 10.0, 40.0))
        if options.nodes > 1 and apart and number:
            faults.append(
                _apart(
                    number,
                    thing,
                    rank,
                    at_stage,
                    stage,
                    recovering,
                    step,
                    at_s,
                    after_s,
                    passes_s * options.beat_s * 3,
                )
            )
            continue
        spare = number > 0 and at_spare and options.spares > 0 and kind != "lose_store"
        fault = PlannedFault(
            id=str(number + 1),
            kind=kind,
            rank=None if kind == "lose_store" else -1 if spare else rank,
            after_s=after_s,
            for_s=for_s,
        )
        if kind == "linger" and stuck:
            fault = replace(fault, for_s=FOR_EVER_S)  # a driver that never lets it go
        if number == 0:
            fault = replace(
                fault, mark=step_mark, nth=1 + nth % options.steps, times=1_000 if for_ever else 1
            )
        elif spare and how < 4:
            fault = replace(fault, mark=spare_mark, nth=1 + nth // 3)
        elif how < 7:
            fault = replace(fault, mark=recovering, nth=RECOVERY_MARKS[recovering] + nth // 3)
        elif how == 7:
            fault = replace(fault, at_s=at_s)
        elif how == 8:
            fault = replace(fault, at_step=step)
        else:
            fault = replace(fault, mark=any_mark, nth=1 + nth)
        faults.append(fault)
    return tuple(faults)


def draw_alone(stream: Stream, options: Options) -> tuple[PlannedFault, ...]:
    """A rank that stands still at any step, or something between nodes, and nothing else: whether
    it is waited for, and how soon it is known.
    """
    some, kind, for_s = (
        stream.chance(0.12),
        stream.pick(("starve", "starve", "hang", "deaf")),
        stream.pick(STARVES_S),
    )
    rank, mark, nth = (
        stream.below(options.ranks),
        stream.pick(STEP_MARKS),
        1 + stream.below(options.steps),
    )
    apart, thing, beats, at_s = (
        stream.chance(0.6),
        stream.pick((*APART, "part", "part", "part")),
        stream.between(0.2, 2.5),
        stream.between(0.0, 3.0),
    )
    node, beside, parted_s = (
        stream.below(options.nodes),
        stream.below(max(options.nodes - 1, 1)),
        stream.pick((0.3, 2.0, 30.0, 2_500.0)),
    )
    never = stream.chance(0.4)  # a node that has no power from the first moment on
    if some and apart and options.nodes > 1 and thing == "part":
        cut = PlannedFault(
            "1",
            thing,
            None,
            node=node,
            peer=(node + 1 + beside) % options.nodes,
            mark="sealing",
            nth=nth,
            for_s=parted_s,
        )
        # what stands, too: the next group is to be built across the cut
        torn = replace(cut, id="2", kind="snap", after_s=0.001)
        return (cut, torn) if options.way != "plain" else ()
    if some and apart and options.nodes > 1:
        holder = None if thing == "lose_coordinator" else rank
        if thing == "lose_node" and never:
            return (PlannedFault("1", thing, None, node=node, at_s=0.0, for_s=FOR_EVER_S),)
        return (
            PlannedFault(
                "1",
                thing,
                holder,
                at_s=at_s,
                for_s=FOR_EVER_S if thing == "lose_node" else beats * options.beat_s,
            ),
        )
    if options.way == "plain":
        kind, mark = "hang", "body"
    return (
        (
            PlannedFault(
                "1", kind, rank, mark=mark, nth=nth, for_s=for_s if kind == "starve" else FOR_EVER_S
            ),
        )
        if some
        else ()
    )


def draw_failing(stream: Stream, options: Options) -> tuple[PlannedFault, ...]:
    """All ranks fail while they apply the step that they have just gone back to: nothing is left
    but what a survivor handed over, if it did.
    """
    some, rank, step = (
        stream.chance(0.02),
        stream.below(options.ranks),
        1 + stream.below(options.steps),
    )
    first = PlannedFault("1", "kill", rank, mark="body", nth=step)
    torn = [
        PlannedFault(f"torn-{one}", "raise", one, mark="applied", nth=step)
        for one in range(options.ranks)
    ]
    return (first, *torn) if some and options.way != "plain" else ()


def draw_headless(stream: Stream, options: Options) -> tuple[PlannedFault, ...]:
    """Where there are several nodes: a coordinator that dies in some state, beside whatever else
    strikes.
    """
    some, how, stage, at_s = (
        stream.chance(0.35),
        stream.below(10),
        stream.pick(STAGES),
        stream.between(0.0, 3.0),
    )
    after_s, beats = stream.pick((0.0, 0.0, 0.002, 0.02)), stream.pick((0.3, 1.0, 3.0, 12.0))
    fault = PlannedFault(
        "head", "lose_coordinator", None, after_s=after_s, for_s=beats * options.beat_s
    )
    return (
        (replace(fault, mark=stage) if how < 7 else replace(fault, at_s=at_s),)
        if some and options.nodes > 1
        else ()
    )


def draw_failures(stream: Stream, options: Options) -> tuple[PlannedFault, ...]:
    """As hardware fails: processes end or stand still, nodes go down for minutes, at any time,
    wherever.
    """
    faults = []
    for number in range(options.failures):
        at_s, rank, kind = (
            stream.between(0.0, options.for_s),
            stream.below(options.ranks),
            stream.pick(FAILURES),
        )
        if options.nodes == 1 and kind in APART:
            kind = "kill"
        faults.append(
            PlannedFault(str(number + 1), kind, rank, at_s=at_s, for_s=FAILS_S.get(kind, 0.0))
        )
    return tuple(faults)


def _apart(
    number: int,
    kind: str,
    rank: int,
    how: int,
    stage: str,
    mark: str,
    step: int,
    at_s: float,
    after_s: float,
    for_s: float,
) -> PlannedFault:
    """A fault between nodes, or of a whole one: the node of `rank`, or the coordinator."""
    fault = PlannedFault(
        id=str(number + 1),
        kind=kind,
        rank=None if kind == "lose_coordinator" else rank,
        after_s=after_s,
        for_s=for_s,
    )
    if how < 2:
        return replace(fault, at_s=at_s)
    if kind == "lose_coordinator":
        return (
            replace(fault, mark=stage) if how < 7 else replace(fault, mark=mark, nth=1 + step % 3)
        )
    return (
        replace(fault, mark=mark, nth=RECOVERY_MARKS[mark])
        if how < 7
        else replace(fault, at_step=step)
    )


def draw_company(stream: Stream, options: Options, first: PlannedFault) -> tuple[PlannedFault, ...]:
    """What makes `first` worse: words that come again while it is dealt with, a culprit that does
    not let itself be killed, a donor that is struck too, input that is refused.
    """
    echo, echoing, step, echo_s = (
        stream.chance(0.5),
        stream.below(options.ranks),
        stream.below(4),
        stream.pick((0.6, 4.0, 1e3)),
    )
    grip, grip_s = stream.chance(0.15), stream.pick((0.6, 4.0, 1e6))
    second, kind, after_s, for_s = (
        stream.chance(0.3),
        stream.pick(INTERRUPT),
        stream.pick((0.0, 0.0, 0.002)),
        stream.pick((0.6, 4.0)),
    )
    refused, refusing, visit = (
        stream.chance(0.015),
        stream.below(options.ranks),
        1 + stream.below(2),
    )
    faults = []
    if echo:
        fault = PlannedFault("echo", "repeat", echoing, for_s=echo_s)
        faults.append(replace(fault, at_step=step) if step else replace(fault, mark="boot"))
    if grip:
        faults.append(PlannedFault("grip", "linger", first.rank, mark="boot", for_s=grip_s))
    if second and options.ranks > 1:
        donor = 0 if first.rank else 1  # the lowest survivor
        faults.append(
            PlannedFault("donor", kind, donor, mark="donating", after_s=after_s, for_s=for_s)
        )
    if refused:
        faults.append(PlannedFault("input", "refuse", refusing, mark="setup", nth=visit))
    return tuple(faults)


def draw_saves(stream: Stream, options: Options) -> tuple[PlannedFault, ...]:
    """What strikes the disks that checkpoints lie on, processes that write them, and everybody at
    once, so that a checkpoint is needed.
    """
    if not options.checkpoint_every:
        return ()
    faults = []
    for number in range(stream.below(4)):
        kind, disk, how, mark, nth = (
            stream.pick(DISK_KINDS),
            stream.below(options.nodes),
            stream.below(4),
            stream.pick(SAVE_MARKS),
            1 + stream.below(20),
        )
        stage, at_s, for_s = (
            stream.pick(("leaving", "clearing", "starting")),
            stream.between(0.1, 2.0),
            stream.pick((0.02, 0.2, 1.0, 10.0)),
        )
        fault = PlannedFault(f"disk-{number + 1}", kind, None, disk=disk, for_s=for_s)
        faults.append(
            replace(fault, at_s=at_s)
            if how == 0
            else replace(fault, mark=stage)
            if how == 1
            else replace(fault, mark=mark, nth=nth)
        )
    writer, rank, mark, nth, kind = (
        stream.chance(0.3),
        stream.below(options.ranks),
        stream.pick(SAVE_MARKS),
        1 + stream.below(4),
        stream.pick(INTERRUPT),
    )
    if writer:
        faults.append(
            PlannedFault(
                "writer", kind, rank, mark=mark, nth=nth, after_s=stream.pick((0.0, 0.0, 0.01))
            )
        )
    for number in range(1 + stream.below(2)):
        all_at_once, step, apart_s = (
            stream.chance(0.5),
            1 + stream.below(options.steps),
            stream.pick((0.0, 0.0, 0.002)),
        )
        if all_at_once:
            faults += [
                PlannedFault(
                    f"all-{number + 1}-{one}", "kill", one, at_step=step, after_s=apart_s * one
                )
                for one in range(options.ranks)
            ]
        power, off_s = stream.chance(0.3), stream.pick((0.5, 20.0, 60.0)) * options.beat_s
        if power and options.nodes > 1:
            nodes = range(options.nodes)
            faults += [
                PlannedFault(
                    f"dark-{number + 1}-{one}",
                    "lose_node",
                    None,
                    node=one,
                    mark="saved",
                    nth=2 + step,
                    for_s=off_s,
                )
                for one in nodes
            ]
    return tuple(faults)


def simulate_seed(
    *,
    seed: int,
    given: Mapping[str, Any],
    faults: tuple[PlannedFault, ...] | None = None,
    every_step: bool = False,
    every_rank: bool = False,
    every_node: bool = False,
) -> SimulatedRun:
    """The life of one seed; `given` options are not drawn, nor are faults where a plan is given.

    Raises UsageError for what cannot be.
    """
    options = draw_options(Stream(seed, "options"), given)
    if not given and faults is None:
        options = draw_hardware(Stream(seed, "hardware"), options)
    if "checkpoint_every" not in given and not options.failures:
        options = draw_checkpoints(Stream(seed, "checkpoints"), options)
    if "for_s" not in given and not options.failures:
        options = draw_stop(Stream(seed, "stop"), options)
    if "step_s" not in given and not options.failures:
        options = draw_pace(Stream(seed, "pace"), options)
    if "policy" not in given and not options.failures:
        options = draw_policy(Stream(seed, "policy"), options)
    # what is drawn together with something else may be given by itself
    options = replace(options, **given)
    if faults is None and options.failures:
        faults = draw_failures(Stream(seed, "failures"), options)
    elif faults is None:
        faults = draw_faults(Stream(seed, "faults"), options)
        faults += draw_company(Stream(seed, "company"), options, faults[0])
        faults += draw_partition_faults(Stream(seed, "partings"), options)
        faults += draw_saves(Stream(seed, "saves"), options)
        faults += draw_headless(Stream(seed, "headless"), options)
        faults = (
            draw_alone(Stream(seed, "alone"), options)
            or draw_failing(Stream(seed, "failing"), options)
            or faults
        )
        options, faults = draw_scripted(Stream(seed, "rehearsed"), options, given) or (
            options,
            faults,
        )
        options, faults = draw_scripted(Stream(seed, "seldom"), options, given, seldom=True) or (
            options,
            faults,
        )
    return simulate(
        seed=seed,
        options=options,
        faults=faults,
        every_step=every_step,
        every_rank=every_rank,
        every_node=every_node,
    )


def simulate(
    *,
    seed: int,
    options: Options,
    faults: tuple[PlannedFault, ...],
    every_step: bool = False,
    every_rank: bool = False,
    every_node: bool = False,
) -> SimulatedRun:
    """The same with nothing drawn but what the world draws.

    `every_step`: see sim/shortcuts/skip_ahead.py; `every_rank`: sim/shortcuts/identical_ranks.py; `every_node`: sim/shortcuts/identical_nodes.py.
    """
    for fault in faults:
        if fault.rank is not None and fault.rank >= options.ranks:
            raise UsageError(
                f"fault {fault.id} strikes rank {fault.rank}, and there are {options.ranks}",
                hint=f"ranks are 0 to {options.ranks - 1}",
            )
        if fault.node is not None and fault.node >= options.nodes:
            raise UsageError(
                f"fault {fault.id} strikes node {fault.node}, and there are {options.nodes}",
                hint=f"nodes are 0 to {options.nodes - 1}",
            )
        if fault.peer is not None and fault.peer >= options.nodes:
            raise UsageError(
                f"fault {fault.id} strikes node {fault.peer}, and there are {options.nodes}",
                hint=f"nodes are 0 to {options.nodes - 1}",
            )
        if fault.disk is not None and fault.disk >= options.nodes:
            raise UsageError(
                f"fault {fault.id} strikes disk {fault.disk}, and there are {options.nodes}",
                hint="each node has one, from 0 on",
            )
        if (fault.agent or fault.kind in (*APART, *PARTITION_KINDS)) and options.nodes < 2:
            raise UsageError(
                f"fault {fault.id} is of several nodes, and there is one",
                hint="say how many with --nodes",
            )
        if fault.rank == -1 and not options.spares:
            raise UsageError(
                f"fault {fault.id} strikes a spare, and there is none",
                hint="say how many with --spares",
            )
    world = World(
        options=options,
        script=script_of(options.way),
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
                every_rank=every_node or world.fleet is None,
            )
    return SimulatedRun(
        seed=seed,
        options=options,
        faults=faults,
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
        committed=world.last_step,
        interruptions=_since_the_beginning(world),
    )


@contextmanager
def _seldom_collected() -> Iterator[None]:
    """What a world is made of lives as long as it.

    In large ones a third of the time would go into looking whether any of it is garbage.
    """
    before = gc.get_threshold()
    gc.set_threshold(COLLECTED_OBJECTS, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)


def _since_the_beginning(world: World) -> tuple[Interruption, ...]:
    """The interruptions, by a clock that begins with the run."""
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
