"""`NodeDrain`: a drain of a node, from its beginning until the rung of the recovery is chosen.

    begin     the ranks are named. All ranks leave their collectives, as after a fault
    decide    all stand still. Either the drain goes on, or it is called off
    carry     under sharded state, the images of these ranks move first: each rank that stands still
              sends its image to the node that takes over, unless it lies elsewhere already
    over      the images lie elsewhere, so the ranks may be given up

An image lies elsewhere if another node keeps a copy of it, if it can be rebuilt from parity, or if
a rank of another replica holds the same shards. Until all of them do, no process is killed. If an
image does not arrive in time, the drain is called off, and all go on from their images.

This module is pure.
"""

from __future__ import annotations

from dataclasses import replace

from outlast.engine.coordinator.decisions import (
    DrainVerdict,
    Quiesced,
    decide_drain,
    why_no_drain,
)
from outlast.engine.coordinator.run_parts import RunParts
from outlast.engine.coordinator.stages import Timer, set_timer
from outlast.engine.placement import offers, place
from outlast.engine.protocol.outputs import Output, Tell
from outlast.model import limits
from outlast.model.messages import CopyKept, SendImage
from outlast.model.texts import some

Asked = tuple[int, int, str]  # generation, step, and the node that takes over


class NodeDrain:
    """Carry out the part of a drain that comes before its ranks are given up.

    The regroup makes one, and calls it in the order that the head of this module names:

        drain.begin(frozenset({0, 1}), until_s=now_s + 15.0)
        verdict = drain.decide(seen)
        outputs = drain.carry(now_s, verdict, seen)    # None: nothing has to be awaited
        drain.note_kept(message, "node-c")             # an image has arrived

    It forgets everything once the drain is over or called off. It does not kill any process, and
    does not choose the rung.

    ranks   the ranks that are to be given up; empty: no node is drained now
    """

    def __init__(self, run: RunParts) -> None:
        self.run = run
        self.ranks: frozenset[int] = frozenset()
        self._until_s = 0.0  # the images have arrived by then, or the drain is called off
        self._asked: dict[int, Asked] = {}  # rank -> where its image was last sent
        self._waits = False  # images are on their way
        self._why_not = ""  # why the images cannot be moved
        self._stood = -1  # the ranks stand still once more, at this step

    def begin(self, ranks: frozenset[int], *, until_s: float) -> None:
        """Begin to drain the node of `ranks`."""
        self.over()
        self.ranks, self._until_s = ranks, until_s

    def over(self) -> None:
        """Forget the drain: its ranks are given up, or it was called off."""
        self.ranks, self._why_not, self._stood = frozenset(), "", -1
        self._waits = False
        self._asked.clear()

    # --- all stand still -------------------------------------------------------------------------

    def decide(self, seen: Quiesced) -> DrainVerdict:
        """Decide whether the drain goes on. If it is called off, its ranks stay where they are."""
        fits_elsewhere = bool(self.ranks) and self.run.fits_elsewhere(self.ranks)
        seen = replace(seen, sharded=self.run.roster.sharded, stood=self._stood)
        verdict = decide_drain(seen=seen, fits_elsewhere=fits_elsewhere, why_not=self._why_not)
        if self.ranks and not verdict.ranks:
            self.run.roster.remains.leaving.clear()
            self.over()
        elif verdict.finish and seen.restore.step is not None:
            self._stood = seen.restore.step
        return verdict

    def why_not(self, seen: Quiesced, ranks: frozenset[int]) -> str:
        """Return why `ranks` could not be drained now; "": they could. All ranks stand still."""
        if self.ranks:
            return "another node is being drained"
        seen = replace(seen, drained=ranks, sharded=self.run.roster.sharded)
        return why_no_drain(seen=seen, fits_elsewhere=self.run.fits_elsewhere(ranks))

    # --- the images move -------------------------------------------------------------------------

    def carry(self, now_s: float, verdict: DrainVerdict, seen: Quiesced) -> list[Output] | None:
        """Let the images of the ranks that are given up move first. None: they lie elsewhere."""
        run, step = self.run, seen.restore.step
        if not verdict.ranks or not run.roster.sharded or step is None:
            return None
        run.roster.remains.leaving.update(verdict.ranks)
        missing = [rank for rank in verdict.ranks if not run.lies_elsewhere(rank, step)]
        if not missing:
            return None
        takers = self._takers(verdict.ranks, restarts=seen.mode == "respawn")
        if any(rank not in takers for rank in missing):
            self._until_s = now_s  # no node can take this rank, so the drain is called off
        self._waits = True
        told = []
        for rank in missing:
            member, taker = run.roster.holder(rank), takers.get(rank, "")
            if member.life.dead:
                continue
            asked = (member.path.plan_generation, step, taker)
            if taker and self._asked.get(rank) != asked:
                self._asked[rank] = asked
                told.append((member, SendImage(asked[0], step, run.nodes.serves(taker))))
        out: list[Output] = [set_timer(Timer.LEAVE, self._until_s), *run.tell(told)]
        if told:
            ranks = some([str(rank) for rank in missing])
            out.append(Tell(f"the images of ranks {ranks} of step {step} move to another node"))
        return out

    def _takers(self, ranks: tuple[int, ...], *, restarts: bool) -> dict[int, str]:
        """Return the node that takes each of `ranks` over.

        restarts   all ranks restart, and are placed anew
        """
        run, homes = self.run, self.run.roster.homes
        if restarts:
            everybody = range(run.options.world_size)
            placed = place(everybody, homes=homes, room=run.room(()))
            return {rank: placed[rank] for rank in ranks if rank in placed}
        parked = run.roster.parked()
        spares = [(worker, run.roster.spare(worker).home) for worker in parked]
        found = offers(ranks, homes=homes, spares=spares, room=run.room_without(ranks))
        return {rank: node for rank, (_, node) in found.items()}

    def note_kept(self, message: CopyKept, node: str) -> bool:
        """Note which images of a rank `node` keeps. Return True if the drain waits for that."""
        if message.rank not in self._asked or self._asked[message.rank][2] != node:
            return False
        if not message.steps:
            self._why_not = f"node {node} has no room for the image of rank {message.rank}"
        return True

    def is_late(self, now_s: float) -> bool:
        """Return True if images were awaited for too long. The drain is called off then."""
        if not self._waits or now_s < self._until_s:
            return False
        self._why_not = "the images of its ranks did not reach another node in time"
        return True


def carried_until_s(now_s: float, notice_until_s: float | None) -> float:
    """Return until when the images of a node's ranks have to arrive.

    notice_until_s   the node is taken away, and is to be empty by then; None: there is no hurry
    """
    until_s = now_s + limits.IMAGES_MOVE_S
    return until_s if notice_until_s is None else min(until_s, notice_until_s)
