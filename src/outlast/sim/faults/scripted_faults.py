"""Scripted faults: sequences of faults that a simulated run seldom reaches by chance.

Each is for a branch of the protocol that nothing else tests. A script sets the options that it
needs. The other options, and the times of its faults, are drawn. Its later faults strike during the
recovery from the first one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from outlast.model import limits
from outlast.model.fault_plan import PlannedFault
from outlast.sim.draws import Stream
from outlast.sim.options import Options

CHANCE = 0.1
SELDOM_CHANCE = 0.03
FOR_EVER_S = 1e6
Drawn = tuple[Options, tuple[PlannedFault, ...]]


def draw_scripted(
    stream: Stream, options: Options, given: Mapping[str, Any], *, seldom: bool = False
) -> Drawn | None:
    """Draw one of the scripted runs, or return None.

    None means that none is drawn, or that it needs other options than those `given`. With `seldom`,
    it is drawn from a second list, so that the draws from the first list do not change.
    """
    some, play = (
        stream.chance(SELDOM_CHANCE if seldom else CHANCE),
        stream.pick(SELDOM if seldom else SCRIPTED),
    )
    needed, faults = play(stream, options)
    return (
        (needed, faults)
        if some and all(getattr(needed, name) == value for name, value in given.items())
        else None
    )


def _three_nodes(options: Options, mode: str, **more: Any) -> Options:
    """Return options with ranks 0 and 1 on one node, 2 and 3 on another, and an empty third node.

    `more` overrides them.
    """
    short: dict[str, Any] = {
        "ranks": 4,
        "nodes": 3,
        "spare_nodes": 1,
        "spares": 0,
        "steps": 24,
        "step_s": 0.05,
        "beat_s": 0.1,
        "checkpoint_every": 0,
        "keep_every": 0,
    }
    plain: dict[str, Any] = {
        "policy": "none",
        "for_s": 0.0,
        "again_s": 0.0,
        "first_step_s": 0.0,
        "max_restarts": None,
    }
    if mode != "sharded":  # only images of sharded state are copied to other nodes
        plain |= {"peer_copies": False, "parity": "", "peers": 1, "domains": 0}
    return replace(options, recovery_mode=mode, **(short | plain | more))


def _killed(rank: int, step: int) -> PlannedFault:
    return PlannedFault("first", "kill", rank, mark="body", nth=step)


def _node_of_the_dying(stream: Stream, options: Options) -> Drawn:
    """Kill a rank, and cut the power of its node before the process has ended.

    All other ranks already stand still then.
    """
    mode, rank, step, hangs = (
        stream.pick(("in_place", "reenter", "sharded")),
        2 * stream.below(2),
        2 + stream.below(8),
        stream.chance(0.7),
    )
    after_s, for_s = stream.pick((0.0, 0.02, 0.2)), stream.pick((2.0, 60.0))
    first = (
        PlannedFault("first", "stop", rank, mark="body", nth=step, for_s=FOR_EVER_S)
        if hangs
        else _killed(rank, step)
    )
    grip = PlannedFault("grip", "linger", rank, mark="boot", for_s=FOR_EVER_S)
    power = PlannedFault("power", "lose_node", rank + 1, mark="still", after_s=after_s, for_s=for_s)
    return _three_nodes(options, mode), (first, grip, power)


def _image_lost(stream: Stream, options: Options) -> Drawn:
    """Kill all ranks after a survivor has handed state over, and cut power where the image is."""
    step, rank, after_s, for_s = (
        2 + stream.below(8),
        2 + stream.below(2),
        stream.between(0.05, 0.4),
        stream.pick((2.0, 60.0)),
    )
    grip = PlannedFault("grip", "linger", 1, mark="boot", for_s=0.6)
    power = PlannedFault("power", "lose_node", 1, mark="still", after_s=after_s, for_s=for_s)
    return _three_nodes(options, "respawn"), (_killed(rank, step), grip, power)


def _image_alone(stream: Stream, options: Options) -> Drawn:
    """Lose all state except that of the rank that has first read the transfer image.

    All ranks enter main's function again, and forget their state. Another rank dies, and then the
    one that has read the image.
    """
    step, mark, second = (
        2 + stream.below(8),
        stream.pick(("grouping", "restoring", "joined")),
        1 + stream.below(3),
    )
    after_s, last_s = stream.pick((0.0, 0.002, 0.01)), stream.pick((0.0, 0.0, 0.002, 0.01))
    again = PlannedFault("again", "kill", second, mark=mark, nth=2, after_s=after_s)
    donor = PlannedFault("donor", "kill", 0, mark="donating", nth=2, after_s=last_s)
    return _three_nodes(options, "reenter", nodes=1, spare_nodes=0), (
        _killed(3, step),
        again,
        donor,
    )


def _store_moves(stream: Stream, options: Options) -> Drawn:
    """Let the store move to another node, and kill the coordinator after that.

    The store moves because nodes cannot reach each other. The next coordinator learns of both
    stores.
    """
    step, mark, node = 2 + stream.below(8), stream.pick(("still", "settled")), stream.below(3)
    for_s, nth, after_s, head_for_s = (
        stream.pick((20.0, 40.0)),
        2 + stream.below(2),
        stream.pick((0.1, 0.3, 2.0, 8.0)),
        stream.pick((0.1, 0.5)),
    )
    part = PlannedFault(
        "part", "part", None, node=node, peer=(node + 1) % 3, mark=mark, for_s=for_s
    )
    head = PlannedFault(
        "head", "lose_coordinator", None, mark="moving", nth=nth, after_s=after_s, for_s=head_for_s
    )
    last = PlannedFault("last", "kill", 2, at_step=14 + stream.below(8))
    return _three_nodes(options, "in_place", ranks=6, spare_nodes=0), (
        _killed(3, step),
        part,
        head,
        last,
    )


def _head_of_the_dying(stream: Stream, options: Options) -> Drawn:
    """Kill a process that does not end, and the coordinator that waits for it."""
    mode, rank, step, kind = (
        stream.pick(("in_place", "reenter", "sharded")),
        stream.below(4),
        2 + stream.below(8),
        stream.pick(("stop", "raise")),
    )
    after_s, head_s = stream.pick((0.002, 0.2, 2.0)), stream.pick((0.1, 0.5))
    grip = PlannedFault("grip", "linger", rank, mark="boot", for_s=FOR_EVER_S)
    first = PlannedFault(
        "first",
        kind,
        rank,
        mark="applied" if kind == "raise" else "body",
        nth=step,
        for_s=FOR_EVER_S,
    )
    head = PlannedFault(
        "head", "lose_coordinator", None, mark="leaving", after_s=after_s, for_s=head_s
    )
    return _three_nodes(options, mode, beat_s=limits.BEAT_S), (first, grip, head)


def _only_the_plan_knows(stream: Stream, options: Options) -> Drawn:
    """Lose all facts that say that the ranks have to go forward, except the plan.

    The dead rank had sealed the step. The donor goes forward before any other rank has its plan,
    and is lost with its node and its slots.
    """
    step, mark, rank, after_s = (
        2 + stream.below(8),
        stream.pick(("prepared", "voting")),
        1 + stream.below(3),
        stream.pick((0.0, 0.0, 0.002)),
    )
    power = PlannedFault(
        "power", "lose_node", 0, mark="donating", after_s=after_s, for_s=stream.pick((5.0, 60.0))
    )
    return _three_nodes(options, "reenter"), (
        PlannedFault("first", "kill", rank, mark=mark, nth=step),
        power,
    )


def _drain_outlives_its_head(stream: Stream, options: Options) -> Drawn:
    """Let a node be drained because a rank was lost there.

    The coordinator is killed before that or after it.
    """
    mode, rank, step, head_s = (
        stream.pick(("in_place", "reenter", "respawn")),
        stream.below(4),
        2 + stream.below(2),
        stream.between(0.3, 4.0),
    )
    head_for_s, second = stream.pick((0.1, 0.5)), stream.below(4)
    head = PlannedFault(
        "head", "lose_coordinator", None, mark="leaving", after_s=head_s, for_s=head_for_s
    )
    last = PlannedFault("last", "kill", second, at_step=8)
    return _three_nodes(options, mode, policy="eager", step_s=0.3, beat_s=0.3), (
        _killed(rank, step),
        head,
        last,
    )


def _started_over_twice(stream: Stream, options: Options) -> Drawn:
    """Let a node come back twice, because it loses its link before it is welcome.

    Then kill one of its ranks.
    """
    mode, node, at_s, off_s = (
        stream.pick(("in_place", "reenter", "sharded")),
        stream.below(2),
        stream.between(0.6, 1.5),
        stream.pick((0.05, 0.2, 0.5)),
    )
    late_s, cut_s, rank = (
        stream.between(0.2, 1.5) * options.latency_s,
        stream.pick((0.05, 0.3)),
        stream.below(2),
    )
    dying = rank, rank + 2  # one of these is on that node
    power = PlannedFault("first", "lose_node", None, node=node, at_s=at_s, for_s=off_s)
    cut = PlannedFault(
        "cut", "cut", None, node=node, at_s=at_s + off_s, after_s=late_s, for_s=cut_s
    )
    grip = [
        PlannedFault(f"grip-{one}", "linger", one, mark="boot", nth=2, for_s=FOR_EVER_S)
        for one in dying
    ]
    still = [
        PlannedFault(f"still-{one}", "stop", one, mark="setup", nth=2, for_s=FOR_EVER_S)
        for one in dying
    ]
    return _three_nodes(options, mode, spare_nodes=0, nodes=2, beat_s=limits.BEAT_S, step_s=0.1), (
        power,
        cut,
        *grip,
        *still,
    )


def _back_in_time(stream: Stream, options: Options) -> Drawn:
    """Let all ranks restart from a checkpoint, and kill one before it has sealed anything since.

    Its slots hold images of steps that are not committed any more.
    """
    mode, step, every, rank = (
        stream.pick(("in_place", "in_place", "reenter")),
        4 + stream.below(6),
        1 + stream.below(3),
        stream.below(4),
    )
    mark, after_s, nodes = (
        stream.pick(("grouping", "restoring", "joined", "joined")),
        stream.pick((0.0, 0.005, 0.02, 0.05)),
        stream.pick((1, 3)),
    )
    at_once = [PlannedFault(f"all-{one}", "kill", one, at_step=step) for one in range(4)]
    again = PlannedFault("again", "kill", rank, mark=mark, nth=2, after_s=after_s)
    return _three_nodes(
        options, mode, checkpoint_every=every, nodes=nodes, spare_nodes=nodes // 2
    ), (*at_once, again)


def _nobody_else(stream: Stream, options: Options) -> Drawn:
    """Lose the only survivor that can hand over state a second time.

    It has handed it over, and all ranks have restarted. The other rank is lost once more, so the
    survivor has to hand over the same state again. Then it is lost too.
    """
    step, mark, after_s, last_s = (
        2 + stream.below(8),
        stream.pick(("joined", "joined", "grouping")),
        stream.between(0.0, 0.03),
        stream.pick((0.0, 0.0, 0.002)),
    )
    again = PlannedFault("again", "kill", 1, mark=mark, nth=2, after_s=after_s)
    donor = PlannedFault("donor", "kill", 0, mark="donating", nth=2, after_s=last_s)
    return _three_nodes(options, "respawn", ranks=2, nodes=1, spare_nodes=0), (
        _killed(1, step),
        again,
        donor,
    )


def _returns_amid(stream: Stream, options: Options) -> Drawn:
    """Let a node come back during a regroup that waits for its ranks to leave.

    The node has no link. Its lease runs out, and it enrols again with the images that its ranks had
    sealed.
    """
    mode, step, rank, other = (
        stream.pick(("in_place", "reenter", "sharded")),
        2 + stream.below(8),
        stream.below(4),
        stream.below(2),
    )
    for_s, after_s = stream.between(0.6, 1.6), stream.between(0.0, 0.5)
    cut = PlannedFault("first", "cut", rank, mark="body", nth=step, for_s=for_s)
    second = PlannedFault(
        "second", "kill", (rank + 2) % 4 ^ other, mark="body", nth=step, after_s=after_s
    )
    return _three_nodes(options, mode), (cut, second)


def _orphaned(stream: Stream, options: Options) -> Drawn:
    """Kill only the coordinator of a plain script on several nodes, once or twice.

    The script goes on.
    """
    at_s, for_s, again, again_s = (
        stream.between(0.02, 1.5),
        stream.pick((0.1, 0.5, 2.0)),
        stream.chance(0.4),
        stream.between(2.1, 5.0),
    )
    faults = [PlannedFault("first", "lose_coordinator", None, at_s=at_s, for_s=for_s)]
    faults += (
        [PlannedFault("again", "lose_coordinator", None, at_s=at_s + again_s, for_s=for_s)]
        if again
        else []
    )
    return _three_nodes(options, "plain", steps=60, beat_s=limits.BEAT_S), tuple(faults)


def _never_evaluates(stream: Stream, options: Options) -> Drawn:
    """Stop one rank before the evaluation in which all others wait for it."""
    mode, step, rank, nodes = (
        stream.pick(("in_place", "reenter", "sharded")),
        1 + stream.below(6),
        stream.below(4),
        stream.pick((1, 3)),
    )
    kind, mark = stream.pick(("hang", "hang", "deaf")), stream.pick(("committed", "phase"))
    still = PlannedFault(
        "first", kind, rank, mark=mark, nth=step if mark == "committed" else 1, for_s=FOR_EVER_S
    )
    return _three_nodes(
        options, mode, nodes=nodes, spare_nodes=nodes // 2, phase_after=step, beat_s=limits.BEAT_S
    ), (still,)


def _drain_of_the_last(stream: Stream, options: Options) -> Drawn:
    """Let a node be drained, and kill all ranks on other nodes meanwhile.

    Then the drained node holds all the state that is left.
    """
    mode, rank, step, more = (
        stream.pick(("in_place", "reenter")),
        stream.below(4),
        2 + stream.below(2),
        3 + stream.below(4),
    )
    after_s, both = stream.pick((0.0, 0.0, 0.001)), stream.chance(0.8)
    again = PlannedFault("again", "kill", rank, mark="", at_step=step + more)
    elsewhere = [(rank + 2) % 4, (rank + 2) % 4 ^ 1][: 1 + both]
    dying = [
        PlannedFault(f"last-{one}", "kill", one, mark="still", nth=3, after_s=after_s)
        for one in elsewhere
    ]
    return _three_nodes(options, mode, policy="default", beat_s=0.3, step_s=0.2, phase_after=-1), (
        _killed(rank, step),
        again,
        *dying,
    )


SCRIPTED: tuple[Callable[[Stream, Options], Drawn], ...] = (
    _node_of_the_dying,
    _image_lost,
    _image_alone,
    _store_moves,
    _head_of_the_dying,
    _only_the_plan_knows,
    _drain_outlives_its_head,
    _started_over_twice,
    _back_in_time,
    _nobody_else,
    _returns_amid,
)
SELDOM: tuple[Callable[[Stream, Options], Drawn], ...] = (
    _orphaned,
    _never_evaluates,
    _drain_of_the_last,
)
