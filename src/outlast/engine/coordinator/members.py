"""`Roster`: which worker holds which rank, which are spares, and what dead workers have left.

This module is pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import chain

from outlast.engine.coordinator.member import Member
from outlast.engine.coordinator.remains import Remains, ScriptFacts
from outlast.engine.recovery import RECOVERY_MODES
from outlast.engine.restore import Holding, RestoreVerdict
from outlast.model.messages import Inventory
from outlast.model.terms import Waypoint


class Roster:
    """The members of a run: the holder of each rank, and the spares.

        member = roster.add(rank=3, kind="rank", now_s=now_s, home="b")   # its process is ordered
        member = roster.promote(worker=7, rank=3, now_s=now_s)            # a spare takes rank 3
        roster.holder(3), roster.live(), roster.parked()

    remains   what dead holders have left: images in slots, copies, committed steps
    script    the facts about the script that all workers run
    orphans   processes that a new coordinator found in a rank that belongs to another process; they
              are killed, and their ends are awaited
    """

    def __init__(self, *, world_size: int, next_worker: int = 1) -> None:
        self.world_size = world_size
        self.next_worker = next_worker
        self.remains = Remains()
        self.script = ScriptFacts()
        self.orphans: dict[int, Member] = {}
        self._ranks: dict[int, Member] = {}
        self._spares: dict[int, Member] = {}
        self._by_worker: dict[int, Member] = {}
        self._cursors: dict[str, int] = {}  # question -> the rank for which it was true last

    @property
    def outlast(self) -> bool:
        """Return True once some worker has called outlast.join."""
        return self.script.outlast

    @property
    def sharded(self) -> bool:
        """Return True once some worker has registered sharded state, even a dead one."""
        return self.script.sharded

    @property
    def homes(self) -> dict[int, str]:
        """Return the node on which each rank lives, or lived last."""
        return self.remains.homes

    def add(self, *, rank: int, kind: str, now_s: float, home: str = "") -> Member:
        """Add the member for a process that is about to be started, and return it."""
        member = Member(worker=self.next_worker, rank=rank, kind=kind, started_s=now_s, home=home)
        self.next_worker += 1
        self.assign(member)
        return member

    def assign(self, member: Member) -> None:
        """Make `member` the holder of its rank, or a spare if it has none.

        If the rank moves to another node, the images on the old node do not count any more.
        """
        if member.rank >= 0:
            self.remains.note_move(member.rank, member.home)
            if (before := self._ranks.get(member.rank)) is not None:
                self._by_worker.pop(before.worker, None)
            self._ranks[member.rank] = member
            self.remains.set_home(member.rank, member.home)
        else:
            self._spares[member.worker] = member
        self._by_worker[member.worker] = member

    def promote(self, worker: int, rank: int, *, now_s: float) -> Member:
        """Give `rank` to a spare, and return that member."""
        spare = self._spares.pop(worker)
        spare.rank, spare.started_s, spare.process.parked = rank, now_s, False
        self.assign(spare)
        return spare

    def in_rank(self, rank: int) -> Member | None:
        """Return the holder of `rank`, dead or alive; None: it has none."""
        return self._ranks.get(rank)

    def spare(self, worker: int) -> Member:
        """Return the spare with this worker number. There must be one."""
        return self._spares[worker]

    def adopt_orphan(self, member: Member) -> None:
        """Keep `member` until its end is reported, because another process holds its rank."""
        self.orphans[member.worker] = member

    def is_done(self, rank: int) -> bool:
        """Return True if the holder of `rank` has ended well."""
        return rank in self._ranks and self._ranks[rank].life.done

    def drop(self, spare: Member) -> None:
        """Forget a spare that has ended."""
        self._spares.pop(spare.worker, None)
        self._by_worker.pop(spare.worker, None)

    def clear(self) -> None:
        """Take every rank from its holder. The spares stay, and so do the images in the slots."""
        for member in self._ranks.values():
            self._by_worker.pop(member.worker, None)
        self._ranks.clear()

    def of(self, worker: int) -> Member | None:
        """Return the member with this worker number; None: it was given up."""
        return self._by_worker.get(worker)

    def those(self, workers: Iterable[int]) -> list[Member]:
        """Return the members of `workers`, without those that were given up."""
        return [member for member in map(self._by_worker.get, workers) if member is not None]

    def first(self, what: str, is_so: Callable[[Member], bool]) -> Member | None:
        """Return a holder of a rank for which `is_so` is true, or None.

        `what` names the question. The search begins where the last one for that question ended. So
        asking it at each of n messages costs about n looks in all, and not n times n.
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

    def holder(self, rank: int) -> Member:
        """Return the holder of `rank`, dead or alive. There must be one."""
        return self._ranks[rank]

    def members(self) -> list[Member]:
        """Return the holders of all ranks, dead or alive."""
        return list(self._ranks.values())

    def live(self) -> list[Member]:
        """Return the holders of ranks whose process has not ended."""
        return [m for m in self._ranks.values() if not m.life.dead]

    def not_quiesced(self) -> list[Member]:
        """Return the members that were told to leave, and have not sent their inventory."""
        # The cheap condition comes first: nearly all are quiet, and this is called often.
        return [m for m in self._ranks.values() if m.path.inventory is None and m.answers_leave]

    def any_live(self) -> bool:
        """Return True while some holder of a rank lives. It is asked at each death: see `first`."""
        return self.first("live", lambda m: not m.life.dead) is not None

    def holding_up(self) -> list[Member]:
        """Return the members that have come least far into the generation: the others wait for
        them.
        """
        # a member with a waypoint has called outlast.join
        known = self.outlast or any(m.path.waypoint for m in self.live())
        late = self.late() if known else []
        least = min((m.path.waypoint for m in late), default=Waypoint.BEGINS)
        return [m for m in late if m.path.waypoint == least]

    def late(self) -> list[Member]:
        """Return the living members that have not joined the generation."""
        return [m for m in self._ranks.values() if m.is_late]

    def spares(self) -> list[Member]:
        """Return all spares, whether they can take a rank now or not."""
        return list(self._spares.values())

    def parked(self) -> list[int]:
        """Return the spares that can take a rank now, hot ones first."""
        ready = [m for m in self._spares.values() if m.process.parked and not m.life.condemned]
        return [m.worker for m in sorted(ready, key=lambda m: (m.kind != "hot", m.worker))]

    def lies_sealed(self, rank: int, step: int) -> bool:
        """Return whether the slots of `rank` hold `step`.

        The report on its last process says so, or its present holder has attached and so has sealed
        the step.
        """
        member = self._ranks.get(rank)
        return self.remains.hold(rank, step) or (member is not None and member.script.attached)

    def lacks(self, rank: int, step: int) -> bool:
        """Return whether the slots of `rank` are known not to hold `step`.

        That is known only once the rank's last holder is gone.
        """
        member = self._ranks.get(rank)
        no_holder = member is None or member.path.plan_generation == 0
        return no_holder and self.remains.hold_another(rank, step)

    def twin(self, rank: int, step: int) -> int:
        """Return a rank that holds the same shards as `rank`, and has sealed `step`; -1: none."""
        twins = self.remains.twins(rank)
        return next((one for one in twins if self._has_sealed(one, step)), -1)

    def has_twin_elsewhere(self, rank: int, step: int) -> bool:
        """Return True if a rank that stays holds the same shards, and has sealed `step`.

        It has to be on another node.
        """
        remains = self.remains
        return any(
            one not in remains.leaving
            and remains.homes.get(one) != remains.homes.get(rank)
            and self._has_sealed(one, step)
            for one in remains.twins(rank)
        )

    def _has_sealed(self, rank: int, step: int) -> bool:
        member = self._ranks.get(rank)
        said = None if member is None or member.life.dead else member.path.inventory
        # One that lives, and has not built its state yet, may know nothing of its slots.
        held = () if said is None else said.sealed
        return step in held if held else self.remains.hold(rank, step)

    @property
    def recovery_mode(self) -> str:
        """Return the most expensive recovery mode that members have registered at run.steps.

        A member that is not there yet follows the others, unless it cannot get there without all
        ranks.
        """
        if not self.outlast:
            return "plain"
        attached = {
            m.script.recovery_mode
            for m in self._ranks.values()
            if m.script.attached or (m.path.needs_all_ranks and not m.life.dead)
        }
        modes = attached or {
            m.script.recovery_mode
            for m in self._ranks.values()
            if m.script.registered and not m.life.dead
        }
        return max(modes, key=RECOVERY_MODES.index, default="respawn")

    def holdings(self) -> list[Holding]:
        """Return what each rank holds.

        For survivors that is their inventory; those that say the same count as one. For others it
        is what their slots hold.
        """
        out = []
        alike: dict[tuple[Inventory, bool], list[int]] = {}
        before: Inventory | None = None
        finished, ranks = False, []  # of the one before
        for rank in range(self.world_size):
            member = self._ranks[rank]
            said = member.path.inventory
            if member.life.dead or said is None:
                out.append(self.remains.of(rank))
            elif said.committed < 0:  # alive, state not built yet
                remains = self.remains.of(rank)
                out.append(
                    Holding(
                        (rank,),
                        True,
                        -1,
                        remains.prepared,
                        -1,
                        False,
                        said.sealed or remains.sealed,
                        usable=False,
                    )
                )
            else:
                if (said, member.script.finished) != (before, finished):
                    before, finished = said, member.script.finished
                    ranks = alike.setdefault((replace(said, worker=0), finished), [])
                ranks.append(rank)
        return out + [
            _held(said, tuple(ranks), usable=not finished)
            for (said, finished), ranks in alike.items()
        ]

    def committed_by_all(self) -> int:
        """Return the newest step that all ranks have committed; -1: some rank has no state yet.

        Call it once every member stands still or is dead.
        """
        return min(held.committed for held in self.holdings())

    def torn(self, restore: RestoreVerdict) -> list[Member]:
        """Return the live members that cannot get to the restore point in their processes."""
        return [
            m
            for m in self.live()
            if m.rank not in restore.settle
            and m.path.inventory is not None
            and m.path.inventory.committed >= 0
        ]


def _held(said: Inventory, ranks: tuple[int, ...], *, usable: bool) -> Holding:
    prepared = tuple(sorted({said.committed, said.prepared}))
    return Holding(
        ranks,
        True,
        said.committed,
        prepared,
        said.passed,
        said.in_hook,
        said.sealed,
        usable,
        said.phases,
        said.begun,
        said.over,
    )
