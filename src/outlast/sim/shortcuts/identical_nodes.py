"""Simulate several nodes that cannot be distinguished as a single one.

The world uses this in runs whose faults strike some ranks at given times (see `alike`). Most nodes
of a large run are never struck, and house no rank that has to hand over state. So they get the same
messages at the same times. Such *identical nodes* have the same clock, and draw from the same place
in the pool. Only the first of them is simulated, with its agent, its session and its processes.

The coordinator still does all of its work for thousands of nodes. It receives each message of the
first node from each of them, one after the other and in their names. It has to send all of them the
same messages as the first node. If it does not (`Parted`), the run is simulated again node by node.

The node before the first one is the *herald*. It is like them, but is simulated by itself, and
sends its messages before they do. So if the coordinator treats the first sender differently, that
is the herald. The last node with ranks is not one of them either, because all wait for the last.

Until the first stretch, or the first fault, nothing is drawn, and messages of nodes arrive in the
order of the nodes. The trace shows only the first of the identical nodes.
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

# these faults affect only one node
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
PLACE = 700_001  # the place in the pool at which identical nodes begin (sim/draws.py)


@dataclass(frozen=True, slots=True)
class Likeness:
    """The places of nodes that behave in the same way.

    `apart` is the difference between the ranks of a node and those of the next one.
    """

    herald: int
    members: tuple[int, ...]
    apart: int

    @property
    def places(self) -> frozenset[int]:
        return frozenset((self.herald, *self.members))


def alike(options: Options, faults: Sequence[PlannedFault]) -> Likeness | None:
    """Return the nodes that differ only in their names and in the numbers of their ranks.

    Return None if there are too few of them, or if they are not known.
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
    """The nodes that are simulated as one. The first of `names` is the node that is simulated."""

    def __init__(self, likeness: Likeness, names: Sequence[str]) -> None:
        self.likeness = likeness
        self.names = [names[number] for number in likeness.members]
        # the difference from a rank or worker of the first node to those of the others
        self._by = [(number - likeness.members[0]) * likeness.apart for number in likeness.members]
        self._heard: list[LinkMessage] = []  # messages to the first node in this event
        # messages to the others, by their place in `names`
        self._echoes: list[tuple[int, LinkMessage]] = []
        self._since_s = math.inf  # the time of the messages that were not checked yet
        self._several: dict[tuple[int, ...], list[tuple[int, ...]]] = {}
        self._places = {number: which for which, number in enumerate(likeness.members)}
        self._ranks = range(
            likeness.members[0] * likeness.apart, (likeness.members[0] + 1) * likeness.apart
        )

    def __len__(self) -> int:
        return len(self.names)

    def place_of(self, number: int) -> int:
        """Return the place of a node among these, or -1 if it is not one of them."""
        return self._places.get(number, -1)

    def houses(self, rank: int) -> bool:
        return rank // self.likeness.apart in self._places

    def like(self, rank: int) -> Iterator[int]:
        """Return the ranks that do the same as this rank, if it is on the first node."""
        if rank in self._ranks:
            for by in self._by[1:]:
                yield rank + by

    def without_likes(self, ranks: int) -> list[int]:
        """Return the ranks that are simulated."""
        return [rank for rank in range(ranks) if rank in self._ranks or not self.houses(rank)]

    def spread(self, same: Callable[[int, Iterator[int]], None]) -> None:
        """Call `same` for each rank of the first node, with the ranks that did the same."""
        for rank in self._ranks:
            same(rank, self.like(rank))

    def pairs(self) -> Iterator[tuple[str, int]]:
        """Yield each node, and the difference of its ranks and workers from the first node's."""
        return zip(self.names, self._by, strict=True)

    def others(self) -> Iterator[tuple[str, int]]:
        """Yield the same for all nodes but the first."""
        return zip(self.names[1:], self._by[1:], strict=True)

    # --- messages to the coordinator --------------------------------------------------------------

    def said(self, message: LinkMessage) -> Iterator[tuple[str, LinkMessage]]:
        """Yield a message of the first node in the name of each of the nodes."""
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
        """Return, for each node, the workers that correspond to these ones."""
        found = self._several.get(workers)
        if found is None:
            found = self._several[workers] = [
                tuple([worker + by for worker in workers]) for by in self._by
            ]
        return found

    # --- messages from the coordinator ------------------------------------------------------------

    def first_hears(self, message: LinkMessage) -> None:
        """Note a message to the first node."""
        self._heard.append(message)

    def echo(self, which: int, message: LinkMessage) -> None:
        """Note a message to another node. `check` compares it with the one to the first node."""
        self._echoes.append((which, message))

    def check(self, *, now_s: float) -> None:
        """Compare the messages to all nodes after an event.

        Raises Parted if time has moved on and not all nodes got the messages of the first one.
        """
        if not self._heard and not self._echoes:
            return
        heard, echoes = self._heard, self._echoes
        if len(echoes) != len(heard) * (len(self) - 1):
            self._since_s = min(self._since_s, now_s)
            if now_s == self._since_s:
                return
            raise Parted(f"not all of {len(self)} identical nodes get {heard[:1] or echoes[:1]}")
        self._heard, self._echoes, self._since_s = [], [], math.inf
        seen = [0] * len(self)
        for which, message in echoes:
            number = seen[which]
            if number >= len(heard) or not self._is_same(heard[number], message, which):
                raise Parted(
                    f"node {self.names[which]} gets {message}, but the identical node"
                    f" {self.names[0]} gets {heard[min(number, len(heard) - 1)]}"
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
    """The coordinator's end of the link of a node that is not simulated by itself."""

    def __init__(self, twins: IdenticalNodes, which: int) -> None:
        self._twins = twins
        self._which = which

    def down(self, message: LinkMessage) -> None:
        self._twins.echo(self._which, message)


def _of_another(message: Any, name: str, by: int) -> Any:
    """Return a message in the name of node `name`, with ranks and workers raised by `by`."""
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
_ALL: dict[type, Callable[[Any], tuple[Any, ...]]] = {}  # functions that return all fields


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
