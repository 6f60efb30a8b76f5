"""Draw the faults of a seed: which fault strikes which process or node, and when.

Everything is drawn, even if it is not used. So no choice changes the draws after it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from outlast.model.fault_plan import DISK_KINDS, MARKS, SAVE_MARKS, STAGES, PlannedFault
from outlast.sim.draws import Stream
from outlast.sim.options import (
    Options,
)
from outlast.sim.world.strikes import STEP_MARKS

APART = ("lose_node", "cut", "lag", "lose_coordinator")  # faults in runs with several nodes


INTERRUPT = ("kill", "exit", "stop", "deaf", "hang", "raise")


DISTURB = ("lose_store", "hold", "mute", "repeat", "linger")


# marks of a recovery, and the visit from which on they belong to one
RECOVERY_MARKS = {
    "still": 1,
    "settled": 1,
    "donating": 1,
    "grouping": 2,
    "restoring": 2,
    "joined": 2,
}


SPARE_MARKS = ("boot", "join", "setup", "parked")


# most of these strike one process, and one in six strikes its node
FAILURES = (*("kill",) * 10, *("exit",) * 3, *("hang",) * 2, "stop", *("lose_node",) * 3, "cut")


FAILS_S = {"stop": 30.0, "lose_node": 300.0, "cut": 20.0}


FOR_EVER_S = 1e6


STARVES_S = (1.0, 4.0, 15.0, 30.0, 50.0)  # all below limits.STARVED_MAX_S


STORM = 6  # the largest number of faults in one run


class _Draws(NamedTuple):
    """Everything that is drawn for one fault, in this order, even if it is not used."""

    kind: str
    rank: int
    at_spare: bool
    how: int
    recovering: str
    any_mark: str
    step_mark: str
    nth: int
    step: int
    at_s: float
    after_s: float
    for_s: float
    for_ever: bool
    stuck: bool
    spare_mark: str
    apart: bool
    thing: str
    at_stage: int
    stage: str
    passes_s: float


def _draw(stream: Stream, options: Options, *, first: bool) -> _Draws:
    return _Draws(
        kind=stream.pick(INTERRUPT if first else INTERRUPT + DISTURB),
        rank=stream.below(options.ranks),
        at_spare=stream.chance(0.15),
        how=stream.below(10),
        recovering=stream.pick(tuple(RECOVERY_MARKS)),
        any_mark=stream.pick(MARKS),
        step_mark=stream.pick(STEP_MARKS),
        nth=stream.below(5),
        step=1 + stream.below(options.steps),
        at_s=stream.between(0.0, 2.0),
        after_s=stream.pick((0.0, 0.0, 0.002, 0.02)),
        for_s=stream.pick((0.05, 0.6, 4.0)),
        for_ever=stream.chance(0.04),
        stuck=stream.chance(0.1),
        spare_mark=stream.pick(SPARE_MARKS),
        apart=stream.chance(0.5),
        thing=stream.pick(APART),
        at_stage=stream.below(10),
        stage=stream.pick(STAGES),
        passes_s=stream.pick((0.1, 0.5, 2.0, 10.0, 40.0)),
    )


def draw_faults(stream: Stream, options: Options) -> tuple[PlannedFault, ...]:
    """Draw the first fault, which cuts a step short, and the faults that follow it.

    Most of the others strike during the recovery from the first one. The rest strike at any mark,
    step or time.
    """
    alone, count = stream.chance(0.15), 2 + stream.below(STORM - 1)
    faults = []
    for number in range(1 if alone else count):
        drawn = _draw(stream, options, first=not number)
        if options.nodes > 1 and drawn.apart and number:
            faults.append(_between_nodes(number, drawn, options))
        else:
            faults.append(_of_a_process(number, drawn, options))
    return tuple(faults)


def _between_nodes(number: int, drawn: _Draws, options: Options) -> PlannedFault:
    return _apart(
        number,
        drawn.thing,
        drawn.rank,
        drawn.at_stage,
        drawn.stage,
        drawn.recovering,
        drawn.step,
        drawn.at_s,
        drawn.after_s,
        drawn.passes_s * options.beat_s * 3,
    )


def _of_a_process(number: int, drawn: _Draws, options: Options) -> PlannedFault:
    kind, nth = drawn.kind, drawn.nth
    spare = number > 0 and drawn.at_spare and options.spares > 0 and kind != "lose_store"
    # A device driver may never release a killed process.
    never = kind == "linger" and drawn.stuck
    fault = PlannedFault(
        id=str(number + 1),
        kind=kind,
        rank=None if kind == "lose_store" else -1 if spare else drawn.rank,
        after_s=drawn.after_s,
        for_s=FOR_EVER_S if never else drawn.for_s,
    )
    if number == 0:
        times = 1_000 if drawn.for_ever else 1
        return replace(fault, mark=drawn.step_mark, nth=1 + nth % options.steps, times=times)
    if spare and drawn.how < 4:
        return replace(fault, mark=drawn.spare_mark, nth=1 + nth // 3)
    if drawn.how < 7:
        visit = RECOVERY_MARKS[drawn.recovering] + nth // 3
        return replace(fault, mark=drawn.recovering, nth=visit)
    if drawn.how == 7:
        return replace(fault, at_s=drawn.at_s)
    if drawn.how == 8:
        return replace(fault, at_step=drawn.step)
    return replace(fault, mark=drawn.any_mark, nth=1 + nth)


def draw_alone(stream: Stream, options: Options) -> tuple[PlannedFault, ...]:
    """Draw a single fault: a rank that stands still at any step, or a fault between nodes."""
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
    never = stream.chance(0.4)  # a node that has no power from the beginning on
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
        # also end the present group, so that the next one has to be built across the cut
        torn = replace(cut, id="2", kind="snap", after_s=0.001)
        return (cut, torn) if options.recovery_mode != "plain" else ()
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
    if options.recovery_mode == "plain":
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
    """Draw a run in which all ranks fail while they apply a step that they repeat.

    Then the only state that is left is a transfer image, if a survivor has written one.
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
    return (first, *torn) if some and options.recovery_mode != "plain" else ()


def draw_headless(stream: Stream, options: Options) -> tuple[PlannedFault, ...]:
    """Draw the death of the coordinator in some stage, in addition to all other faults."""
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
    """Draw faults like those of hardware, at any time.

    Processes end or hang, and nodes are down for minutes.
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
    """Return a fault of the link or the whole node of `rank`, or of the coordinator."""
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
    """Draw faults that make the fault `first` worse.

    Messages may come twice during the recovery, or a culprit may not end when it is killed. A donor
    may be struck too, or input may be refused.
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
    """Draw faults of disks and of processes that save, and the loss of all ranks.

    After that loss, a checkpoint is needed.
    """
    if not options.checkpoint_every:
        return ()
    faults = [_disk_fault(stream, options, number) for number in range(1, 1 + stream.below(4))]
    writer, rank, mark, nth, kind = (
        stream.chance(0.3),
        stream.below(options.ranks),
        stream.pick(SAVE_MARKS),
        1 + stream.below(4),
        stream.pick(INTERRUPT),
    )
    if writer:
        after_s = stream.pick((0.0, 0.0, 0.01))
        faults.append(PlannedFault("writer", kind, rank, mark=mark, nth=nth, after_s=after_s))
    for number in range(1, 2 + stream.below(2)):
        faults += _loss_of_all(stream, options, number)
    return tuple(faults)


def _disk_fault(stream: Stream, options: Options, number: int) -> PlannedFault:
    """Draw a fault of a disk, at some time, in a stage of the run, or while a shard is saved."""
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
    fault = PlannedFault(f"disk-{number}", kind, None, disk=disk, for_s=for_s)
    if how == 0:
        return replace(fault, at_s=at_s)
    if how == 1:
        return replace(fault, mark=stage)
    return replace(fault, mark=mark, nth=nth)


def _loss_of_all(stream: Stream, options: Options, number: int) -> list[PlannedFault]:
    """Draw the loss of all ranks in a step, or of all nodes, or of both, or of none."""
    faults: list[PlannedFault] = []
    all_at_once, step, apart_s = (
        stream.chance(0.5),
        1 + stream.below(options.steps),
        stream.pick((0.0, 0.0, 0.002)),
    )
    if all_at_once:
        faults += [
            PlannedFault(f"all-{number}-{one}", "kill", one, at_step=step, after_s=apart_s * one)
            for one in range(options.ranks)
        ]
    power, off_s = stream.chance(0.3), stream.pick((0.5, 20.0, 60.0)) * options.beat_s
    if power and options.nodes > 1:
        dark = PlannedFault("", "lose_node", None, mark="saved", nth=2 + step, for_s=off_s)
        faults += [
            replace(dark, id=f"dark-{number}-{one}", node=one) for one in range(options.nodes)
        ]
    return faults
