"""Copies of the state of all ranks, of one step, in the vault of a node.

Under replicated state every live rank has all of it. If all ranks are lost at once, they go on from
these copies. A rank has two slots for them, beside those of its images. They contain the rank's own
state, and its share of the replicated state (split_state.py).

Promises   The newest step of which all ranks have a copy stays, until they all have a newer one.
Limits     All ranks of the run are on this node.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from outlast.engine.durable import newest_common
from outlast.errors import CorruptError
from outlast.runtime.tiers.image import Image, TensorPiece, metadata_bytes
from outlast.runtime.tiers.rank_areas import RankAreas
from outlast.runtime.tiers.replicated import check_together, put_together
from outlast.runtime.tiers.split_state import is_split
from outlast.runtime.tiers.vault import Vault


class KeptCopies:
    """Keep copies in one vault. Mappings are made once and kept until `close`."""

    def __init__(self, vault: Vault) -> None:
        self._vault = vault
        self._areas = RankAreas(vault.folder, "kept", run=vault.run)

    def reserve(self, rank: int, slot_bytes: int) -> None:
        """Make room for two copies of `rank`'s state, if there is none. Raises CapacityError.

        The room is mapped when the first copy is written, so that a rank that is replaced need not
        wait.
        """
        area = self._areas.of(rank)
        missing = sum(max(0, slot_bytes - size) for size in area.allocated())
        if missing:
            self._vault.need_room(missing, f"two copies of the state of rank {rank}")
            area.allocate(slot_bytes)

    def write(
        self,
        rank: int,
        *,
        generation: int,
        step: int,
        pieces: Sequence[TensorPiece],
        metadata: Mapping[str, str],
        world_size: int,
    ) -> None:
        """Seal a copy of `rank`'s state of `step`, unless there is one. Raises CapacityError.

        `metadata` says what share of the replicated state the pieces have.
        """
        if self._areas.find(rank, step) is not None:
            # To write it again would leave no copy if this process died meanwhile.
            return
        whole = self.newest_whole(world_size)
        used = None if whole is None else self._areas.find(rank, whole)
        slot = 0 if used is None else 1 - used[0]
        metadata = {"step": str(step), **metadata}
        self._vault.write_area(
            self._areas.of(rank),
            slot,
            generation,
            step,
            pieces,
            metadata,
            metadata_room=metadata_bytes(metadata),
        )

    def read(self, rank: int, step: int) -> Image:
        """Return the verified copy of `rank`'s state: views of its slot. Raises CorruptError."""
        found = self._areas.find(rank, step)
        if found is None:
            raise CorruptError(
                f"the vault holds no copy of the state of rank {rank} at step {step}"
            )
        return self._areas.of(rank).read(*found)

    def read_state(self, step: int, *, like: int, world_size: int) -> Image:
        """Return the replicated state of `step`, and the private state of the rank `like`.

        Raises CorruptError.
        """
        return put_together([self.read(rank, step) for rank in range(world_size)], like)

    def newest_whole(self, world_size: int) -> int | None:
        """Return the newest step of which all ranks have sealed a copy, unverified."""
        return newest_common(self._steps_by_rank(world_size), is_whole=lambda step: True)

    def newest_good(self, world_size: int) -> tuple[int, list[str]]:
        """Return the newest step of which every rank's copy is as it was written, or 0.

        Also return why newer ones were refused, in one sentence each. These are forgotten.
        """
        refused: list[str] = []

        def is_whole(step: int) -> bool:
            try:
                images = [self.read(rank, step) for rank in range(world_size)]
                if is_split(images[0].metadata):
                    check_together(images)
            except CorruptError as error:
                what = f"the copies of the state of step {step} in shared memory are not used"
                refused.append(f"{what}: {error.message}")
                for rank in range(world_size):
                    self._forget(rank, step)
                return False
            return True

        newest = newest_common(self._steps_by_rank(world_size), is_whole=is_whole)
        return newest or 0, refused

    def forget_after(self, rank: int, step: int) -> None:
        """Remove the seals of later copies, because those steps were rolled back."""
        for later in self._areas.steps(rank):
            if later > step:
                self._forget(rank, later)

    def close(self) -> None:
        """Close all files. Views that were given out stay valid."""
        self._areas.close()

    def _steps_by_rank(self, world_size: int) -> list[tuple[int, ...]]:
        return [self._areas.steps(rank) for rank in range(world_size)]

    def _forget(self, rank: int, step: int) -> None:
        if (found := self._areas.find(rank, step)) is not None:
            self._areas.of(rank).unseal(found[0])
