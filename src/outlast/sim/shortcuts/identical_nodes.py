"""Simulate nodes that cannot be distinguished as one.

The world uses this in lives whose faults strike some ranks at given moments (see `alike`). Most
nodes of a large run are never struck, and house no rank that has to hand over state. So they get
the same messages at the same moments. Such *identical nodes* have one clock, and draw from the same
place. The first of them is simulated, with its agent, its session and its processes.

Each of them sends the messages of the first node to the coordinator, one after the other and in its
own name. The coordinator has to send all of them the same messages as the first. If it does not
(`Parted`), the life is simulated again node by node. So the coordinator does all of its work for
thousands of nodes.

The node before the first is the *herald*. It is like them, but it is simulated by itself, and sends
its messages before them. If the coordinator answers the first sender differently, that is the
herald. For the same reason the last node with ranks is not one of them: all wait for the last.

Until the first stretch, or the first fault, nothing is drawn, and the nodes come in their order.
The trace shows only the first of the identical nodes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from operator import attrgetter
from typing import Any

from outlast.engine.placement import place
from outlast.model.fault_plan import PlannedFault
from outlast.model.messages import (
    AskProgressReport,
    Beat,
    Enrol,
    FromNode,
    FromWorkers,
    Grant,
    Hello,
    Judged,
    KillWorker,
    LinkMessage,
    Progress,
    ProgressReport,
    ReportedMember,
    StartWorker,
    ToNode,
    ToWorkers,
    Welcome,
    WorkerExited,
    WorkerStarted,
)
from outlast.sim.options import Options
from outlast.sim.shortcuts.parted import Parted

# They strike one node, and nothing beyond it.
STRIKES = (
    "kill",
    "exit",
    "hang",
    "stop",
    "deaf",
    "starve",
    "raise",
    "hold",
    "mute",
    "repeat",
    "linger",
    "lose_node",
    "cut",
    "lag",
)
LEAST_NODES = 2
PLACE = 700_001  # where the draws of identical nodes begin (sim/draws.py)


@dataclass(frozen=True, slots=True)
class Likeness:
    """Places of nodes that go the same way.

    `apart`: how far the ranks of one node are from those of the next.
    """

    herald: int
    members: tuple[int, ...]
    apart: int

    @property
    def places(self) -> frozenset[int]:
        return frozenset((self.herald, *self.members))


def alike(options: Options, faults: Sequence[PlannedFault]) -> Likeness | None:
    """Return the nodes that differ only in their names and the names of their ranks.

    Return None if there are too few of them, or if it is not known which they are.
    """
    timed = all(
        fault.kind in STRIKES
        and fault.rank is not None
        and fault.rank >= 0
        and fault.at_s is not None
        and not fault.agent
        for fault in faults
    )
    if not (
        timed
        and options.alike
        and options.recovery_mode == "in_place"
        and options.policy == "none"
        and not options.spares
    ):
        return None
    names, each = options.node_names, options.ranks_per_node
    homes = place(range(options.ranks), homes={}, room=dict.fromkeys(names, each))
    where = {name: number for number, name in enumerate(names)}
    housed = [0] * len(names)
    for home in homes.values():
        housed[where[home]] += 1
    struck = {
        where[homes[fault.rank]]
        for fault in faults
        if fault.rank is not None and fault.rank in homes
    }
    last = max(number for number, count in enumerate(housed) if count)
    same = [
        number
        for number, count in enumerate(housed)
        if count == each and 2 <= number < last and number not in struck
    ]
    return Likeness(same[0], tuple(same[1:]), each) if len(same) > LEAST_NODES else None


class IdenticalNodes:
    """The nodes that one node is simulated for; `names` has that node's name first."""

    def __init__(self, likeness: Likeness, names: Sequence[str]) -> None:
        self.likeness = likeness
        self.names = [names[number] for number in likeness.members]
        # from a rank, or worker, of the first to theirs
        self._by = [(number - likeness.members[0]) * likeness.apart for number in likeness.members]
        self._heard: list[LinkMessage] = []  # in this event, the first
        # and the others, by their place among the names
        self._echoes: list[tuple[int, LinkMessage]] = []
        self._since_s = math.inf  # when they were told what was not checked yet
        self._several: dict[tuple[int, ...], list[tuple[int, ...]]] = {}
        self._places = {number: which for which, number in enumerate(likeness.members)}
        self._ranks = range(
            likeness.members[0] * likeness.apart, (likeness.members[0] + 1) * likeness.apart
        )

    def __len__(self) -> int:
        return len(self.names)

    def place_of(self, number: int) -> int:
        """Return a node's place among these by its number, or -1 if it is none of them."""
        return self._places.get(number, -1)

    def houses(self, rank: int) -> bool:
        return rank // self.likeness.apart in self._places

    def like(self, rank: int) -> Iterator[int]:
        """Return the ranks that do what this rank does, if it is on the first node."""
        if rank in self._ranks:
            for by in self._by[1:]:
                yield rank + by

    def without_likes(self, ranks: int) -> list[int]:
        """Return those of all ranks that are simulated."""
        return [rank for rank in range(ranks) if rank in self._ranks or not self.houses(rank)]

    def spread(self, same: Callable[[int, Iterator[int]], None]) -> None:
        """Say of each rank of the first node which others did the same as it did."""
        for rank in self._ranks:
            same(rank, self.like(rank))

    def pairs(self) -> Iterator[tuple[str, int]]:
        """Return each name, and how far its workers and ranks are from those of the first node."""
        return zip(self.names, self._by, strict=True)

    def others(self) -> Iterator[tuple[str, int]]:
        """Yield the same for all nodes but the first."""
        return zip(self.names[1:], self._by[1:], strict=True)

    # --- what they say ----------------------------------------------------------------------------

    def said(self, message: LinkMessage) -> Iterator[tuple[str, LinkMessage]]:
        """Yield what the first node says, as each of them says it."""
        if isinstance(message, FromNode) and isinstance(message.message, FromWorkers):
            number, heard, sent_s, words = (
                message.number,
                message.heard,
                message.sent_s,
                message.message.message,
            )
            for name, workers in zip(self.names, self._each(message.message.workers), strict=True):
                yield name, FromNode(number, heard, sent_s, FromWorkers(workers, words))
        elif isinstance(message, FromNode) and isinstance(message.message, ProgressReport):
            said = message.message
            stood = [(one.worker, one.rank, _BUT_FOR_NAMES(one)) for one in said.members]
            rest = (said.quiet_s, said.silence_s, said.exhausted)
            for name, by in self.pairs():
                members = tuple(
                    [
                        ReportedMember(worker + by, rank + by, *others)
                        for worker, rank, others in stood
                    ]
                )
                yield (
                    name,
                    FromNode(
                        message.number,
                        message.heard,
                        message.sent_s,
                        ProgressReport(said.nonce, members, *rest),
                    ),
                )
        else:
            for name, by in self.pairs():
                yield name, _of_another(message, name, by)

    def _each(self, workers: tuple[int, ...]) -> list[tuple[int, ...]]:
        """Return what these workers are on each node."""
        found = self._several.get(workers)
        if found is None:
            found = self._several[workers] = [
                tuple([worker + by for worker in workers]) for by in self._by
            ]
        return found

    # --- what they hear ---------------------------------------------------------------------------

    def first_hears(self, message: LinkMessage) -> None:
        """Note a message to the first node."""
        self._heard.append(message)

    def echo(self, which: int, message: LinkMessage) -> None:
        """Note a message to another node, which `check` compares with that to the first."""
        self._echoes.append((which, message))

    def check(self, *, now_s: float) -> None:
        """Compare the messages to all nodes after an event.

        Raises Parted if a moment has passed at which not all got what the first got.
        """
        if not self._heard and not self._echoes:
            return
        heard, echoes = self._heard, self._echoes
        if len(echoes) != len(heard) * (len(self) - 1):
            self._since_s = min(self._since_s, now_s)
            if now_s == self._since_s:
                return
            raise Parted(
                f"of {len(self)} nodes that are alike, not all are told {heard[:1] or echoes[:1]}"
            )
        self._heard, self._echoes, self._since_s = [], [], math.inf
        seen = [0] * len(self)
        for which, message in echoes:
            number = seen[which]
            if number >= len(heard) or not self._is_same(heard[number], message, which):
                raise Parted(
                    f"node {self.names[which]} is told {message}, and {self.names[0]}, which is"
                    f" like it, {heard[min(number, len(heard) - 1)]}"
                )
            seen[which] = number + 1

    def _is_same(self, first: LinkMessage, other: LinkMessage, which: int) -> bool:
        if not isinstance(first, ToNode) or not isinstance(other, ToNode):
            assert isinstance(first, (Grant, Welcome)), first
            return first == other
        if (first.number, first.heard, first.sent_s) != (other.number, other.heard, other.sent_s):
            return False
        one, two = first.message, other.message
        if isinstance(one, ToWorkers) and isinstance(two, ToWorkers):
            same = one.message is two.message or one.message == two.message
            return (
                same
                and self._each(one.workers)[which] == two.workers
                and self._each(one.ranks)[which] == two.ranks
            )
        by = self._by[which]
        if isinstance(one, StartWorker) and isinstance(two, StartWorker):
            return (one.worker + by, one.rank + by, one.kind, one.generation) == (
                two.worker,
                two.rank,
                two.kind,
                two.generation,
            )
        if isinstance(one, KillWorker) and isinstance(two, KillWorker):
            return one.worker + by == two.worker
        return isinstance(one, (AskProgressReport, Judged)) and one == two


class Echo:
    """The coordinator's end of the link of a node that is simulated as another one."""

    def __init__(self, twins: IdenticalNodes, which: int) -> None:
        self._twins = twins
        self._which = which

    def down(self, message: LinkMessage) -> None:
        self._twins.echo(self._which, message)


def _of_another(message: Any, name: str, by: int) -> Any:
    """Return a message as the node `name` says it, whose ranks and workers are `by` further on."""
    if not by or isinstance(message, Beat):
        return message
    if isinstance(message, Enrol):
        assert not message.housed and not message.images, "identical nodes enrol once"
        return replace(message, node=name)
    assert isinstance(message, FromNode), message
    said = message.message
    if isinstance(said, Progress):
        return message
    return FromNode(message.number, message.heard, message.sent_s, _words(said, name, by))


_BUT_FOR_NAMES = attrgetter(
    *(field.name for field in fields(ReportedMember) if field.name not in ("worker", "rank"))
)
_ALL: dict[type, Callable[[Any], tuple[Any, ...]]] = {}  # how to take all fields of such a message


def _words(said: Any, name: str, by: int) -> Any:
    if isinstance(said, WorkerStarted):
        return WorkerStarted(said.worker + by, said.pid + by, name, said.at_s)
    kind = type(said)
    if kind not in _ALL:
        assert next(field.name for field in fields(said)) == "worker", said
        _ALL[kind] = attrgetter(*(field.name for field in fields(said)))
    worker, *others = _ALL[kind](said)
    if kind is WorkerExited or kind is Hello:
        others[0] += by  # its pid
    return kind(worker + by, *others)
