"""Who holds which rank, who is parked as a spare, and what is left of the dead.

This module is pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain

from outlast.engine.recovery import WAYS
from outlast.engine.restore import Holding, RestoreVerdict
from outlast.model.messages import Inventory, Registered, Regroup, WorkerExited


@dataclass(slots=True)
class Member:
    """One process as the coordinator knows it. rank -1: a spare."""

    worker: int
    rank: int
    kind: str
    started_s: float
    home: str = ""  # the node whose agent houses it; "" where there is one
    pid: int = 0
    node: str = ""  # that node's own name for itself
    plan: Regroup | None = None
    way: str = "respawn"
    sharded: bool = False
    greeted: bool = False  # it listens
    running: bool = False  # its script is at work: it said Hello, or it is a program that was started
    parked: bool = False
    registered: bool = False  # it called outlast.join
    registration: Registered | None = None  # the newest of its words of how it can be healed
    attached: bool = False  # its state is known to run.steps
    joined: bool = False  # it is in the current generation
    finished: bool = False  # past the last step
    done: bool = False  # ended well
    condemned: bool = False  # to be killed: its fault is booked
    dead: bool = False
    node_lost: str = ""  # why, if it died with its node
    victim: bool = False  # its own words: a collective failed under it
    still: Inventory | None = None
    told: int = 0  # generation of the newest plan that was sent to it
    said: tuple[int, int] = (0, -1)  # generation and step of the newest of its words: those that come again are older
    place: int = 0  # on its way into that generation: see Underway
    raised: tuple[str, str] | None = None
    committed_s: float | None = None  # its first commit in this generation

    @property
    def answers_leave(self) -> bool:
        """It has been given a generation to leave. One that boots takes the newest plan when it says Hello."""
        return self.told > 0 and not self.dead and not self.condemned and not self.done


@dataclass(slots=True)
class Roster:
    world_size: int
    next_worker: int = 1
    outlast: bool = False  # some worker called outlast.join
    sharded: bool = False  # some worker registered sharded state: so it stays, whoever lives
    step_s: float = 0.0  # learned step time
    _ranks: dict[int, Member] = field(default_factory=dict)
    _spares: dict[int, Member] = field(default_factory=dict)
    _remains: dict[int, Holding] = field(default_factory=dict)
    _done: dict[int, int] = field(default_factory=dict)
    _homes: dict[int, str] = field(default_factory=dict)  # where each rank lives, or lived last
    moved: dict[int, str] = field(default_factory=dict)  # homes that nobody has written down yet
    _imageless: set[int] = field(default_factory=set)  # ranks whose slots are lost with their node
    _by_worker: dict[int, Member] = field(default_factory=dict)
    _cursors: dict[str, int] = field(default_factory=dict)  # what was looked for -> the rank of whom it was found last
    strays: dict[int, Member] = field(default_factory=dict)  # that were found in ranks of others: killed, and waited for

    def add(self, *, rank: int, kind: str, now_s: float, home: str = "") -> Member:
        member = Member(worker=self.next_worker, rank=rank, kind=kind, started_s=now_s, home=home)
        self.next_worker += 1
        self.seat(member)
        return member

    def seat(self, member: Member) -> None:
        """It holds its rank, or is a spare. What a rank had sealed stays behind where it moves to another node."""
        if member.rank >= 0:
            if self._homes.get(member.rank, member.home) != member.home:
                self.lose_rank(member.rank)
            if (before := self._ranks.get(member.rank)) is not None:
                self._by_worker.pop(before.worker, None)
            self._ranks[member.rank] = member
            if self._homes.get(member.rank) != member.home:
                self._homes[member.rank] = self.moved[member.rank] = member.home
        else:
            self._spares[member.worker] = member
        self._by_worker[member.worker] = member

    def promote(self, worker: int, rank: int, *, now_s: float) -> Member:
        spare = self._spares.pop(worker)
        spare.rank, spare.started_s, spare.parked = rank, now_s, False
        self.seat(spare)
        return spare

    def in_rank(self, rank: int) -> Member | None:
        return self._ranks.get(rank)

    def lose_rank(self, rank: int) -> None:
        """Nobody knows what was left of it."""
        self._remains.pop(rank, None)
        self._imageless.add(rank)

    def spare(self, worker: int) -> Member:
        return self._spares[worker]

    def is_done(self, rank: int) -> bool:
        return rank in self._ranks and self._ranks[rank].done

    def drop(self, spare: Member) -> None:
        self._spares.pop(spare.worker, None)
        self._by_worker.pop(spare.worker, None)

    def clear(self) -> None:
        """All ranks are empty; the spares stay, and so does what lies in the slots."""
        for member in self._ranks.values():
            self._by_worker.pop(member.worker, None)
        self._ranks.clear()

    def of(self, worker: int) -> Member | None:
        return self._by_worker.get(worker)

    def those(self, workers: Iterable[int]) -> list[Member]:
        """Without those that were given up."""
        return [member for member in map(self._by_worker.get, workers) if member is not None]

    def first(self, what: str, is_so: Callable[[Member], bool]) -> Member | None:
        """A holder of a rank of whom `is_so`; None: there is none. `what` names the question: it goes on from where it was answered last, so that
        asking it at each of n messages takes about n looks, and not n times n.
        """
        start, ranks = self._cursors.get(what, 0), self._ranks
        member = ranks.get(start)
        if member is not None and is_so(member):
            return member
        for rank in chain(range(start + 1, self.world_size), range(start)):
            member = ranks.get(rank)
            if member is not None and is_so(member):
                self._cursors[what] = rank
                return member
        return None

    @property
    def homes(self) -> dict[int, str]:
        """Where each rank lives, or lived last."""
        return self._homes

    def lose_images(self, node: str) -> None:
        """What the ranks of `node` had sealed is gone with it."""
        for rank, home in self._homes.items():
            if home == node:
                self._remains.pop(rank, None)
                self._imageless.add(rank)

    def remember(self, homes: Mapping[int, str]) -> None:
        """Where each rank lived. What it had sealed there has to be found again."""
        self._homes.update(homes)
        self._imageless.update(homes)

    def find_images(self, rank: int, steps: tuple[int, ...]) -> None:
        """Of a rank that has no holder: they are there after all."""
        self._imageless.discard(rank)
        self._remains[rank] = Holding((rank,), False, -1, steps, -1, False, steps)

    def has_images(self, rank: int) -> bool:
        return rank not in self._imageless

    def now_attached(self, rank: int) -> None:
        """What its holder seals lies where it lives now."""
        self._imageless.discard(rank)

    def holder(self, rank: int) -> Member:
        return self._ranks[rank]

    def members(self) -> list[Member]:
        return list(self._ranks.values())

    def live(self) -> list[Member]:
        """Holders of ranks whose process has not ended."""
        return [m for m in self._ranks.values() if not m.dead]

    def not_still(self) -> list[Member]:
        """Those that were told to leave, and have not said that they stand still."""
        return [m for m in self._ranks.values() if m.still is None and m.answers_leave]  # nearly all stand still, and this is asked again and again

    def any_live(self) -> bool:
        """Asked at each death: see `first`."""
        return self.first("live", lambda m: not m.dead) is not None

    def holding_up(self) -> list[Member]:
        """Whom the others wait for, when not all have joined: those that have come least far."""
        known = self.outlast or any(m.place for m in self.live())  # one that is underway has called outlast.join
        late = [m for m in self.live() if not m.joined and not m.condemned] if known else []
        least = min((m.place for m in late), default=0)
        return [m for m in late if m.place == least]

    def spares(self) -> list[Member]:
        return list(self._spares.values())

    def parked(self) -> list[int]:
        """Spares that can take a rank now, hot ones first."""
        ready = [m for m in self._spares.values() if m.parked and not m.condemned]
        return [m.worker for m in sorted(ready, key=lambda m: (m.kind != "hot", m.worker))]

    def bury(self, member: Member, message: WorkerExited) -> None:
        """Keep what the agent found sealed in the dead rank's slots, until a successor has attached."""
        before = self._remains.get(member.rank) or _nothing(member.rank)
        if member.attached and not member.node_lost:
            committed, prepared, sealed = message.committed, message.prepared, message.sealed
        else:  # what lies there is its predecessor's, or was found when its node came back; the agent may not even have known which slots were to be its own
            committed, prepared, sealed = before.committed, message.prepared or before.prepared, message.sealed or before.sealed
        self._remains[member.rank] = Holding((member.rank,), False, committed, prepared, committed, False, sealed)

    def note_done(self, rank: int, step: int) -> None:
        """A holder of `rank` has committed `step`, and booked it."""
        if step > self._done.get(rank, 0):
            self._done[rank] = step

    def done(self, rank: int) -> int:
        """The newest step that a holder of `rank` has committed, as far as is known: executing it again is repeating it."""
        return self._done.get(rank, 0)

    def lies_sealed(self, rank: int, step: int) -> bool:
        """The slots of `rank` hold `step`, as far as its last process's end or its present holder's state tells."""
        remains, member = self._remains.get(rank), self._ranks.get(rank)
        return (remains is not None and step in (*remains.prepared, *remains.sealed)) or (member is not None and member.attached)

    def lacks(self, rank: int, step: int) -> bool:
        """Its last holder is gone, and what that left behind in the slots is known, and is not of `step`."""
        remains, member = self._remains.get(rank), self._ranks.get(rank)
        held = () if remains is None else (*remains.prepared, *remains.sealed)
        return bool(held) and step not in held and (member is None or member.told == 0)

    @property
    def way(self) -> str:
        """The dearest way of the members that have said theirs at run.steps; one that is not there yet follows the others."""
        if not self.outlast:
            return "plain"
        attached = {m.way for m in self._ranks.values() if m.attached}
        ways = attached or {m.way for m in self._ranks.values() if m.registered and not m.dead}
        return max(ways, key=WAYS.index, default="respawn")

    def holdings(self) -> list[Holding]:
        """What each rank holds: survivors by their inventory, those that say alike as one, others by what lies in their slots."""
        out = []
        alike: dict[tuple[Inventory, bool], list[int]] = {}
        before: Inventory | None = None
        finished, ranks = False, []  # of the one before
        for rank in range(self.world_size):
            member = self._ranks[rank]
            said = member.still
            if member.dead or said is None:
                out.append(self._remains.get(rank) or _nothing(rank))
            elif said.committed < 0:  # alive, state not built yet
                remains = self._remains.get(rank) or _nothing(rank)
                out.append(Holding((rank,), True, -1, remains.prepared, -1, False, said.sealed or remains.sealed, usable=False))
            else:
                if (said, member.finished) != (before, finished):
                    before, finished = said, member.finished
                    ranks = alike.setdefault((replace(said, worker=0), finished), [])
                ranks.append(rank)
        return out + [_held(said, tuple(ranks), usable=not finished) for (said, finished), ranks in alike.items()]

    def committed_by_all(self) -> int:
        """The newest step that the present, or last, holder of each rank has committed; -1: one has no state yet. True once all stand still or are dead."""
        return min(held.committed for held in self.holdings())

    def torn(self, restore: RestoreVerdict) -> list[Member]:
        """Live members with attached state that cannot reach the restore point in their process."""
        return [m for m in self.live() if m.rank not in restore.settle and m.still is not None and m.still.committed >= 0]


def said_before(one: Registered, known: Registered | None) -> bool:
    """A word comes again that was said before `known`: what comes twice may come after what was said later."""
    if known is None:
        return False
    return (one.generation, one.step, one.at_steps) < (known.generation, known.step, known.at_steps)


def _nothing(rank: int) -> Holding:
    return Holding((rank,), False, -1, (), -1, False, ())


def _held(said: Inventory, ranks: tuple[int, ...], *, usable: bool) -> Holding:
    prepared = tuple(sorted({said.committed, said.prepared}))
    return Holding(ranks, True, said.committed, prepared, said.passed, said.in_hook, said.sealed, usable, said.phases, said.begun, said.over, said.finishing)
