"""`Remains`: what dead holders of ranks have left, and where each rank lives.

This module is pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, field, replace

from outlast.engine.coordinator.parity_rows import ParityRows
from outlast.engine.coordinator.peer_copies import PeerCopies
from outlast.engine.restore import Holding
from outlast.model.messages import WorkerExited


@dataclass(slots=True)
class ScriptFacts:
    """The facts known about the script that runs.

    outlast   some worker called outlast.join
    sharded   some worker registered sharded state: this stays true when that worker is dead
    step_s    the step time that agents have learned
    alike     from the ledger, in order: ranks, and whether they hold the same shards (True) or not
              any more (False)
    """

    outlast: bool = False
    sharded: bool = False
    step_s: float = 0.0
    alike: list[tuple[tuple[int, ...], bool]] = field(default_factory=list)

    def learn(self, *, outlast: bool, sharded: bool = False) -> None:
        """Note facts about the script. A fact that was True once stays True."""
        self.outlast = self.outlast or outlast
        self.sharded = self.sharded or sharded

    def learn_step(self, step_s: float) -> None:
        """Note the step time that an agent has learned."""
        self.step_s = step_s


class Remains:
    """The images that dead holders of ranks have left in their slots, and the node of each rank.

    The images of a rank are lost when its node is lost, or when the rank moves to another node.

    homes       the node on which each rank lives, or lived last
    imageless   ranks whose images are lost
    copies      copies of images on other nodes
    parity      parity of images on other nodes
    leaving     ranks that are about to leave their node, because their images lie elsewhere too
    refused     for each rank without a holder: the steps of which its own image was refused as
                damaged, each with the reason
    """

    def __init__(self) -> None:
        self.homes: dict[int, str] = {}
        self.imageless: set[int] = set()
        self._left: dict[int, Holding] = {}
        self._done: dict[int, int] = {}
        self._moved: dict[int, str] = {}  # homes that are not written down yet
        self._alike: dict[int, tuple[int, ...]] = {}  # ranks that hold the same shards
        self.copies = PeerCopies()
        self.parity = ParityRows()
        self.leaving: set[int] = set()
        self.refused: dict[int, dict[int, str]] = {}

    # --- where ranks live ----------------------------------------------------------------------

    def note_move(self, rank: int, home: str) -> None:
        """Note that `rank` moves to `home`. Its images on another node stay there, and are lost."""
        if self.homes.get(rank, home) != home:
            self.lose_rank(rank)
        self.leaving.discard(rank)

    def set_home(self, rank: int, home: str) -> None:
        """Note that `rank` lives on `home` from now on."""
        if self.homes.get(rank) != home:
            self.homes[rank] = self._moved[rank] = home

    def take_moved(self) -> dict[int, str]:
        """Return the homes that are not written down yet. The caller writes them down now."""
        moved, self._moved = self._moved, {}
        return moved

    def remember(self, homes: Mapping[int, str]) -> None:
        """Recover from the ledger where each rank lived. Images there have to be found again."""
        self.homes.update(homes)
        self.imageless.update(homes)

    # --- images in slots -------------------------------------------------------------------------

    def of(self, rank: int) -> Holding:
        """Return what the last holder of `rank` has left, as far as that is known."""
        return self._left.get(rank) or Holding((rank,), False, -1, (), -1, False, ())

    def lose_rank(self, rank: int) -> None:
        """Forget what was left of `rank`: it is not known any more."""
        self._left.pop(rank, None)
        self.refused.pop(rank, None)
        self.imageless.add(rank)

    def lose_images(self, node: str) -> None:
        """Note that the memory of `node` is lost.

        With it go the images of the ranks that live there, and the copies and parity of other
        ranks' images.
        """
        self.copies.lose_node(node)
        self.parity.lose_node(node)
        for rank, home in self.homes.items():
            if home == node:
                self.lose_rank(rank)

    def find_images(self, rank: int, steps: tuple[int, ...]) -> None:
        """Note that the images of a rank without a holder are there after all."""
        self.imageless.discard(rank)
        self._left[rank] = Holding((rank,), False, -1, steps, -1, False, steps)

    def has_images(self, rank: int) -> bool:
        """Return True unless the images of `rank` were lost."""
        return rank not in self.imageless

    def note_attached(self, rank: int) -> None:
        """Note that the holder of `rank` has attached, so its images are on its node now."""
        self.imageless.discard(rank)
        self.refused.pop(rank, None)

    def refuse_own(self, rank: int, step: int, reason: str) -> None:
        """Note that the image of `step` in the slots of `rank` is damaged. It does not count."""
        if rank in self.imageless:
            return  # none of its images counts
        self.refused.setdefault(rank, {})[step] = reason
        if (left := self._left.get(rank)) is not None:
            self._left[rank] = replace(
                left,
                prepared=tuple(one for one in left.prepared if one != step),
                sealed=tuple(one for one in left.sealed if one != step),
            )

    def is_refused(self, rank: int, step: int) -> bool:
        """Return True if the image of `step` in the slots of `rank` was refused as damaged."""
        return step in self.refused.get(rank, ())

    def lost_at(self, step: int) -> Set[int]:
        """Return the ranks whose own image of `step` was lost, or was refused as damaged."""
        damaged = {rank for rank, steps in self.refused.items() if step in steps}
        return self.imageless | damaged if damaged else self.imageless

    def record_exit(self, rank: int, message: WorkerExited, *, had_state: bool) -> None:
        """Record what the agent found sealed in the slots of `rank` after its holder ended.

        had_state   the holder had attached its state, and its node is still in the run. If this is
                    False, the slots hold what a predecessor sealed. Then each field that is empty
                    in the message keeps its known value

        If the images of the rank are lost, its slots hold at most one that was fetched from another
        node and never loaded. That one does not count: it may be the one that was just refused.
        """
        if rank in self.imageless:
            self._left.pop(rank, None)
            return
        if had_state:
            committed, prepared, sealed = message.committed, message.prepared, message.sealed
        else:
            before = self.of(rank)
            committed = before.committed
            prepared, sealed = message.prepared or before.prepared, message.sealed or before.sealed
        self._left[rank] = Holding((rank,), False, committed, prepared, committed, False, sealed)

    def hold(self, rank: int, step: int) -> bool:
        """Return True if `step` is known to be in the slots of `rank`."""
        left = self.of(rank)
        return step in (*left.prepared, *left.sealed)

    def hold_another(self, rank: int, step: int) -> bool:
        """Return True if the slots of `rank` are known to hold something, and not `step`."""
        left = self.of(rank)
        held = (*left.prepared, *left.sealed)
        return bool(held) and step not in held

    # --- replicas --------------------------------------------------------------------------------

    def learn_alike(self, ranks: tuple[int, ...], *, alike: bool = True) -> bool:
        """Note whether `ranks` hold the same shards. Return True if that is new."""
        sets = {rank: self._alike.get(rank, ()) for rank in ranks}
        if alike:
            self._alike |= dict.fromkeys(ranks, ranks)
            return any(known != ranks for known in sets.values())
        for known in sets.values():
            for rank in known:
                self._alike.pop(rank, None)
        return any(sets.values())

    def twins(self, rank: int) -> tuple[int, ...]:
        """Return the other ranks that hold the same shards as `rank`, and have images."""
        alike = self._alike.get(rank, ())
        return tuple(one for one in alike if one != rank and one not in self.imageless)

    def twins_of_imageless(self) -> dict[int, tuple[int, ...]]:
        """Return the twins of each rank whose images are lost, and that has any."""
        found = {rank: self.twins(rank) for rank in self.imageless}
        return {rank: twins for rank, twins in found.items() if twins}

    def copies_of_lost(self) -> dict[int, tuple[int, ...]]:
        """Return the steps of which copies are kept, by rank, of images lost or refused."""
        found = self.copies.steps_of(self.imageless)
        for rank, damaged in self.refused.items():
            found[rank] = tuple(step for step in self.copies.steps(rank) if step in damaged)
        return found

    def rebuilt_of_lost(self) -> dict[int, tuple[int, ...]]:
        """Return the steps that parity can rebuild, by rank, of images lost or refused."""
        return self.parity.steps_of(self.imageless, refused=self.refused)

    # --- what was committed ----------------------------------------------------------------------

    def note_done(self, rank: int, step: int) -> None:
        """Note that a holder of `rank` has committed `step`, and booked it."""
        if step > self._done.get(rank, 0):
            self._done[rank] = step

    def done(self, rank: int) -> int:
        """Return the newest step that a holder of `rank` is known to have committed."""
        return self._done.get(rank, 0)
