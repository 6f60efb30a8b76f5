"""Copies of the state of all ranks, of one step, in the vault of a node.

Under replicated state every live rank holds all of it. These copies are what all ranks go on from
if all are lost at once. A rank has two slots for them, beside those of its images. Rank 0's hold
the replicated state, and every rank's hold what is its own.

Promises   The newest step of which all ranks have a copy stays, until they all have a newer one.
Limits     All ranks of the run are on this node.
"""

from __future__ import annotations

from collections.abc import Sequence

from outlast.errors import CorruptError
from outlast.model.limits import SLOTS_COUNT
from outlast.runtime.tiers.area import Area
from outlast.runtime.tiers.image import Image, Piece
from outlast.runtime.tiers.vault import Vault


class KeptCopies:
    """The copies in one vault. Mappings are made once and kept until `close`."""

    def __init__(self, vault: Vault) -> None:
        self._vault = vault
        self._areas: dict[int, Area] = {}

    def reserve(self, rank: int, slot_bytes: int) -> None:
        """Make room for two copies of `rank`'s state, if there is none. Raises CapacityError.

        It is mapped by the first copy: a rank that is replaced need not wait for that.
        """
        area = self._area(rank)
        missing = sum(max(0, slot_bytes - size) for size in area.allocated())
        if missing:
            self._vault.need_room(missing, f"two copies of the state of rank {rank}")
            area.allocate(slot_bytes)

    def write(
        self, rank: int, *, generation: int, step: int, pieces: Sequence[Piece], world_size: int
    ) -> None:
        """Seal a copy of `rank`'s state of `step`, unless there is one. Raises CapacityError."""
        area, whole = self._area(rank), self.whole_steps(world_size)
        there = {seal.step: slot for slot, seal in area.sealed().items()}
        if step in there:
            # To write it again would leave none if this process died meanwhile.
            return
        slot = 1 - there[whole[0]] if whole else 0
        self._vault.write_area(area, slot, generation, step, pieces, {"step": str(step)})

    def read(self, rank: int, step: int) -> Image:
        """Return the verified copy of `rank`'s state: views of its slot. Raises CorruptError."""
        area = self._area(rank)
        for slot, seal in area.sealed().items():
            if seal.step == step:
                return area.read(slot, seal)
        raise CorruptError(f"the vault holds no copy of the state of rank {rank} at step {step}")

    def whole_steps(self, world_size: int) -> list[int]:
        """Return the steps of which all ranks have sealed a copy, the newest first, unverified."""
        steps = [set(self._steps(rank)) for rank in range(world_size)]
        return sorted(set.intersection(*steps), reverse=True)

    def newest_good(self, world_size: int) -> tuple[int, list[str]]:
        """Return the newest step of which every rank's copy is as it was written, or 0.

        Also return why newer ones were refused. These are forgotten.
        """
        refused = []
        for step in self.whole_steps(world_size):
            try:
                for rank in range(world_size):
                    self.read(rank, step)
            except CorruptError as error:
                refused.append(f"the copy of step {step} in shared memory: {error}")
                for rank in range(world_size):
                    self._forget(rank, step)
                continue
            return step, refused
        return 0, refused

    def forget_after(self, rank: int, step: int) -> None:
        """Remove the seals of later copies, because those steps were rolled back."""
        for later in self._steps(rank):
            if later > step:
                self._forget(rank, later)

    def close(self) -> None:
        """Close all files. Views that were given out stay valid."""
        for area in self._areas.values():
            area.close()
        self._areas.clear()

    def _steps(self, rank: int) -> tuple[int, ...]:
        return tuple(seal.step for seal in self._area(rank).sealed().values())

    def _forget(self, rank: int, step: int) -> None:
        area = self._area(rank)
        for slot, seal in area.sealed().items():
            if seal.step == step:
                area.unseal(slot)

    def _area(self, rank: int) -> Area:
        if rank not in self._areas:
            folder, run = self._vault.folder / f"kept-{rank}", self._vault.run
            self._areas[rank] = Area(folder, run=run, rank=rank, slots_count=SLOTS_COUNT)
        return self._areas[rank]
