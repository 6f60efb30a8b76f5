"""Copies of images that ranks of other nodes have sealed, in the vault of this node.

Each rank has two slots for them, so that one complete copy is here at any time while the next one
arrives. They are beside the images of this node's own ranks, and are never used in their place.

Promises   A copy is sealed once all of its bytes have arrived. It is verified when it is read.
Limits     It does not survive the node. That is why it is on another node than its rank.
"""

from __future__ import annotations

from pathlib import Path

from outlast.errors import CapacityError, CorruptError
from outlast.model.limits import SLOTS_COUNT
from outlast.model.manifest import SEAL_BYTES, Seal
from outlast.runtime.tiers.area import FULL_ERRNOS, Area, allocate
from outlast.runtime.tiers.image import Image
from outlast.runtime.tiers.rank_areas import RankAreas
from outlast.runtime.tiers.vault import Vault

_SLACK, _SLACK_BYTES = 1.25, 256 << 10  # loader positions and texts may grow, as in an image's slot


class HeldCopies:
    """Keep copies in one vault. Mappings are made once and kept until `close`."""

    def __init__(self, vault: Vault) -> None:
        self._vault = vault
        self._areas = RankAreas(vault.folder, "copy", run=vault.run)

    def ranks(self) -> tuple[int, ...]:
        """Return the ranks of which copies may be here."""
        return self._areas.ranks()

    def steps(self, rank: int) -> tuple[int, ...]:
        """Return the steps of which copies of the image of `rank` are here, the newest first."""
        return self._areas.steps(rank)

    def find(self, rank: int, step: int) -> tuple[Path, Seal] | None:
        """Return the copy of the image of `rank`, and the file that contains it."""
        found = self._areas.find(rank, step)
        return None if found is None else (self._areas.of(rank).slot_path(found[0]), found[1])

    def read(self, rank: int, step: int) -> Image:
        """Return the verified copy as views of its slot. Raises CorruptError."""
        found = self._areas.find(rank, step)
        if found is None:
            raise CorruptError(f"no copy of the image of rank {rank} of step {step} lies here")
        return self._areas.of(rank).read(*found)

    # --- a copy comes ----------------------------------------------------------------------------

    def begin(self, rank: int, seal: Seal) -> Incoming | None:
        """Prepare for the copy that `seal` describes. Return None if it is there already.

        Copies of later steps are forgotten: the rank has gone back, so those steps were rolled
        back. Raises CapacityError if there is no room, and CorruptError if the image is of another
        run.
        """
        if (seal.run, seal.rank) != (self._vault.run, rank):
            raise CorruptError(f"what was sent is no image of rank {rank} of this run")
        area = self._areas.of(rank)
        sealed = area.sealed()
        for slot, old in sealed.items():
            if old.step > seal.step:
                area.unseal(slot)
        older = {slot: old for slot, old in sealed.items() if old.step < seal.step}
        for slot, old in sealed.items():
            if (old.step, old.length, old.checksum) == (seal.step, seal.length, seal.checksum):
                return None
            if old.step == seal.step:
                return self._into(rank, slot, seal)
        newest = max(older, key=lambda slot: older[slot].step, default=1)
        return self._into(rank, 1 - newest, seal)

    def forget(self, rank: int) -> None:
        """Forget the copies of `rank`, because newer ones cannot be received."""
        area = self._areas.of(rank)
        for slot in area.sealed():
            area.unseal(slot)

    def drop(self, rank: int) -> None:
        """Remove the copies of `rank`, and give their memory back: another node keeps them now."""
        self.forget(rank)
        self._vault.drop_folder(self._areas.let_go(rank))

    def _into(self, rank: int, slot: int, seal: Seal) -> Incoming:
        area = self._areas.of(rank)
        lacking = [size for size in area.allocated() if size < seal.length]
        slot_bytes = int(seal.length * _SLACK) + _SLACK_BYTES if lacking else 0
        missing = sum(max(0, slot_bytes - size) for size in area.allocated())
        if missing:
            self._vault.need_room(missing, f"copies of the images of rank {rank}")
            try:
                area.folder.mkdir(mode=0o700, exist_ok=True)
                allocate(area.folder / "seals", SEAL_BYTES * SLOTS_COUNT)
            except OSError as error:
                raise _no_room(rank, error) from error
        return Incoming(area, rank, slot, seal, slot_bytes)

    def close(self) -> None:
        """Close all files. Views that were given out stay valid."""
        self._areas.close()


class Incoming:
    """A copy that is being received.

    Call `make_room` until it returns True, then `rest` and `took` in turn until all bytes have
    arrived, then `finish`. Each of these processes one piece only, so that the caller can serve
    others between two of them.
    """

    def __init__(self, area: Area, rank: int, slot: int, seal: Seal, slot_bytes: int) -> None:
        self.rank = rank
        self.seal = seal
        self.received = 0
        self.length = seal.length
        self.is_over = False  # no other copy is made in its place
        self._area = area
        self._slot = slot
        self._slot_bytes = slot_bytes
        self._target: memoryview | None = None

    def make_room(self, piece_bytes: int) -> bool:
        """Allocate the next piece of the slots. Return True once there is room.

        Raises CapacityError.
        """
        for slot, size in enumerate(self._area.allocated()):
            if size < self._slot_bytes:
                try:
                    allocate(self._area.slot_path(slot), min(self._slot_bytes, size + piece_bytes))
                except OSError as error:
                    if error.errno not in FULL_ERRNOS:
                        raise
                    raise _no_room(self.rank, error) from error
                return False
        return True

    def rest(self, at_most: int) -> memoryview:
        """Return where the next bytes have to be written. It is empty if all have arrived."""
        if self._target is None:
            self._area.unseal(self._slot)
            slot = self._area.map_ahead(self._slot, self.seal.length)
            self._target = slot[: self.seal.length]
        return self._target[self.received : self.received + at_most]

    def took(self, count: int) -> None:
        """Note that this number of bytes was written to where `rest` said."""
        self.received += count

    def finish(self) -> bool:
        """Seal the copy, now that all of its bytes have arrived.

        Return True, because this is news.
        """
        self._area.put_seal(self._slot, self.seal)
        return True


def _no_room(rank: int, error: OSError) -> CapacityError:
    return CapacityError(
        f"there is no room for copies of the images of rank {rank}: {error.strerror}",
        hint="make /dev/shm larger, or keep less state",
    )
