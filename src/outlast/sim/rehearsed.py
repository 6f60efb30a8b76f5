"""Plays: faults in an order that a life seldom comes to by chance, each for a branch of the protocol that nothing else tells right from wrong.

A play says what it needs of the options, and leaves the rest, and its moments, to the draws. In each of them the first fault is one of a rank; what
follows strikes where that is dealt with.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from outlast.model.fault_plan import PlannedFault
from outlast.sim.draws import Stream
from outlast.sim.options import Options

CHANCE = 0.08
FOR_EVER_S = 1e6
Drawn = tuple[Options, tuple[PlannedFault, ...]]


def draw_rehearsed(stream: Stream, options: Options, given: Mapping[str, Any]) -> Drawn | None:
    """None: none is drawn, or what it needs is not what is `given`."""
    some, play = stream.chance(CHANCE), stream.pick(PLAYS)
    needed, faults = play(stream, options)
    return (needed, faults) if some and all(getattr(needed, name) == value for name, value in given.items()) else None


def _three_nodes(options: Options, way: str, **more: Any) -> Options:
    """Ranks 0 and 1 live on one node, ranks 2 and 3 on another, nobody on the third."""
    plain = {
        "nodes": 3,
        "spare_nodes": 1,
        "beat_s": 0.1,
        "steps": 24,
        "step_s": 0.05,
        "spares": 0,
        "policy": "none",
        "for_s": 0.0,
        "again_s": 0.0,
        "checkpoint_every": 0,
        "first_step_s": 0.0,
        "max_restarts": None,
    }
    return replace(options, way=way, ranks=4, **(plain | more))


def _killed(rank: int, step: int) -> PlannedFault:
    return PlannedFault("first", "kill", rank, mark="body", nth=step)


def _node_of_the_dying(stream: Stream, options: Options) -> Drawn:
    """A rank dies, and its node after it: what the rank had sealed was known, and is gone."""
    way, rank, step = stream.pick(("in_place", "reenter", "respawn")), stream.below(4), 2 + stream.below(8)
    after_s, for_s = stream.pick((0.0, 0.002)), stream.pick((2.0, 60.0))
    power = PlannedFault("power", "lose_node", rank ^ 1, mark="still", after_s=after_s, for_s=for_s)
    return _three_nodes(options, way), (_killed(rank, step), power)


def _image_lost(stream: Stream, options: Options) -> Drawn:
    """A survivor has handed over, all are killed, and the node that the image lies on has no power any more."""
    step, rank, after_s, for_s = 2 + stream.below(8), 1 + stream.below(3), stream.between(0.0, 0.3), stream.pick((2.0, 60.0))
    power = PlannedFault("power", "lose_node", 0, mark="donating", after_s=after_s, for_s=for_s)
    return _three_nodes(options, "respawn"), (_killed(rank, step), power)


def _image_alone(stream: Stream, options: Options) -> Drawn:
    """All enter main's function again, and have forgotten what they held but for one that reads the image first; another dies, and then that one."""
    step, mark, second = 2 + stream.below(8), stream.pick(("grouping", "restoring", "joined")), 1 + stream.below(3)
    after_s, last_s = stream.pick((0.0, 0.002, 0.01)), stream.pick((0.0, 0.0, 0.002, 0.01))
    again = PlannedFault("again", "kill", second, mark=mark, nth=2, after_s=after_s)
    donor = PlannedFault("donor", "kill", 0, mark="donating", nth=2, after_s=last_s)
    return replace(_three_nodes(options, "reenter"), nodes=1, spare_nodes=0), (_killed(3, step), again, donor)


def _store_moves(stream: Stream, options: Options) -> Drawn:
    """Nodes cannot reach each other, so the store moves; then the coordinator dies, and the next one hears of both."""
    way, step, mark = stream.pick(("in_place", "reenter", "respawn")), 2 + stream.below(8), stream.pick(("still", "settled"))
    for_s, head_s, head_for_s, late = stream.pick((1.0, 3.0)), stream.between(0.8, 4.0), stream.pick((0.1, 0.5)), 12 + stream.below(8)
    part = PlannedFault("part", "part", None, node=0, peer=1, mark=mark, for_s=for_s)
    head = PlannedFault("head", "lose_coordinator", None, at_s=head_s, for_s=head_for_s)
    last = PlannedFault("last", "kill", 2, at_step=late)
    return _three_nodes(options, way), (_killed(3, step), part, head, last)


def _head_of_the_dying(stream: Stream, options: Options) -> Drawn:
    """Who is killed does not end, and the coordinator that waits for it does."""
    way, rank, step, kind = stream.pick(("in_place", "reenter", "sharded")), stream.below(4), 2 + stream.below(8), stream.pick(("stop", "raise"))
    after_s, head_s = stream.pick((0.002, 0.2, 2.0)), stream.pick((0.1, 0.5))
    grip = PlannedFault("grip", "linger", rank, mark="boot", for_s=FOR_EVER_S)
    first = PlannedFault("first", kind, rank, mark="applied" if kind == "raise" else "body", nth=step, for_s=FOR_EVER_S)
    head = PlannedFault("head", "lose_coordinator", None, mark="leaving", after_s=after_s, for_s=head_s)
    return _three_nodes(options, way), (first, grip, head)


def _only_the_plan_knows(stream: Stream, options: Options) -> Drawn:
    """The dead had sealed the step, so all are to go forward. The donor has, before any other is told, and is lost with its node, and with its own slots."""
    step, mark, rank, after_s = 2 + stream.below(8), stream.pick(("prepared", "voting")), 1 + stream.below(3), stream.pick((0.0, 0.0, 0.002))
    power = PlannedFault("power", "lose_node", 0, mark="donating", after_s=after_s, for_s=stream.pick((5.0, 60.0)))
    return _three_nodes(options, "reenter"), (PlannedFault("first", "kill", rank, mark=mark, nth=step), power)


def _drain_outlives_its_head(stream: Stream, options: Options) -> Drawn:
    """A node is to be taken out, and the coordinator dies before it is, or after."""
    way, rank, step, head_s = stream.pick(("in_place", "reenter", "respawn")), stream.below(4), 2 + stream.below(4), stream.between(0.4, 2.5)
    head_for_s, policy, late, second = stream.pick((0.1, 0.5)), stream.pick(("default", "eager", "eager")), 14 + stream.below(12), stream.below(4)
    head = PlannedFault("head", "lose_coordinator", None, at_s=head_s, for_s=head_for_s)
    last = PlannedFault("last", "kill", second, at_step=late)
    return _three_nodes(options, way, policy=policy), (_killed(rank, step), head, last)


def _twice_anew(stream: Stream, options: Options) -> Drawn:
    """A node comes back, houses ranks again, and one of these stands still on its way into a generation."""
    way, step, off_s, mark = stream.pick(("in_place", "reenter", "sharded")), 2 + stream.below(8), stream.pick((0.05, 0.2)), stream.pick(("setup", "join"))
    kind, nth = stream.pick(("stop", "hang", "deaf")), 2 + stream.below(2)
    power = PlannedFault("first", "lose_node", 2, mark="body", nth=step, for_s=off_s)
    still = PlannedFault("still", kind, 2, mark=mark, nth=nth, for_s=FOR_EVER_S)
    return _three_nodes(options, way, spare_nodes=0, nodes=2), (power, still)


def _back_in_time(stream: Stream, options: Options) -> Drawn:
    """All begin anew from something old, and fail again when there is something newer."""
    way, step, every, second = stream.pick(("respawn", "reenter", "sharded")), 3 + stream.below(6), 1 + stream.below(2), 1 + stream.below(4)
    mark, power, off_s = stream.pick(("body", "applied", "committed")), stream.chance(0.5), stream.pick((2.0, 60.0))
    faults = [PlannedFault(f"all-{rank}", "kill", rank, at_step=step) for rank in range(4)]
    if power:
        faults = [PlannedFault(f"dark-{node}", "lose_node", None, node=node, at_step=step, for_s=off_s) for node in range(3)]
    again = [PlannedFault(f"again-{rank}", "kill", rank, mark=mark, nth=step + second) for rank in range(4)]
    return _three_nodes(options, way, checkpoint_every=every), (*faults, *again)


PLAYS: tuple[Callable[[Stream, Options], Drawn], ...] = (
    _node_of_the_dying, _image_lost, _image_alone, _store_moves, _head_of_the_dying, _only_the_plan_knows, _drain_outlives_its_head, _twice_anew, _back_in_time,
)  # fmt: skip
