"""Rows of parity in the vault of this node, of images that ranks of other nodes have sealed.

A row is the sum of one part of the image of each rank of a stripe (parity.py). Parts come in any
order, and each is added as it arrives, so no part is ever kept as a whole. A stripe has two slots,
so that one complete row is here at any time while the next one is made:

    slot    a head of `head_bytes`, then the sums
    head    the row's number, then the seal of the image of each rank, by place; zeros: no rank

The slot is sealed once all parts are in it. So a row itself says from which images it is made.

Promises   A sealed row is the sum of exactly the parts of those images. The row before stays until
           then. Parts of another generation are never in one sum. The reader verifies the row's own
           checksum, and then that of the image that is rebuilt.
Limits     It does not survive the node. A sum that is not complete is lost with the agent.
"""

from __future__ import annotations

import struct
from pathlib import Path

import xxhash

from outlast.errors import CapacityError, CorruptError
from outlast.model.limits import IMAGE_PIECE_BYTES, SLOTS_COUNT
from outlast.model.manifest import SEAL_BYTES, Seal, unpack_seal
from outlast.model.messages import KeptRow, ParityKept, Share
from outlast.runtime.tiers.area import FULL_ERRNOS, Area, allocate
from outlast.runtime.tiers.parity import PLACES_MAX, ROWS_MAX, fold, part_of, weight
from outlast.runtime.tiers.rank_areas import RankAreas
from outlast.runtime.tiers.vault import Vault

_SLACK, _SLACK_BYTES = 1.25, 64 << 10  # images may grow, as in an image's own slot
_ROW = struct.Struct("<II56x")  # row, places
assert _ROW.size == SEAL_BYTES


def head_bytes(places: int) -> int:
    """Return the length of the head of a row that has this number of places."""
    return _ROW.size + places * SEAL_BYTES


def read_head(data: bytes) -> tuple[int, tuple[Seal | None, ...]]:
    """Return the number of a row, and the seals of its images by place. Raises CorruptError."""
    if len(data) < _ROW.size:
        raise CorruptError("the head of a row of parity is too short")
    row, places = _ROW.unpack_from(data)
    if len(data) < head_bytes(places):
        raise CorruptError("the head of a row of parity is damaged")
    texts = [data[head_bytes(place) : head_bytes(place + 1)] for place in range(places)]
    seals = tuple(unpack_seal(text) for text in texts)
    if any(seal is None and any(text) for seal, text in zip(seals, texts, strict=True)):
        raise CorruptError("the head of a row of parity is damaged")
    return row, seals


class HeldParity:
    """Keep rows of parity in one vault. Mappings are made once and kept until `close`."""

    def __init__(self, vault: Vault) -> None:
        self.piece = memoryview(bytearray(IMAGE_PIECE_BYTES))  # what has just arrived
        self._vault = vault
        self._areas = RankAreas(vault.folder, "parity", run=vault.run)  # "rank" is the stripe
        self._sums: dict[int, _Sum] = {}  # by stripe: the row that is being made, or was made last

    def rows(self, stripe: int) -> ParityKept:
        """Return the complete rows of a stripe, the newest first."""
        return ParityKept(stripe, tuple(row for _, _, row in self._found(stripe)))

    def all_rows(self) -> tuple[ParityKept, ...]:
        """Return all complete rows, for a coordinator that does not know them."""
        found = (self.rows(stripe) for stripe in self._areas.ranks())
        return tuple(one for one in found if one.rows)

    def find(self, stripe: int, row: int, step: int) -> tuple[Path, Seal] | None:
        """Return the newest complete row of `step`, and the file that contains it.

        Return None if it is not here.
        """
        for slot, seal, kept in self._found(stripe):
            if (kept.row, kept.step) == (row, step):
                return self._areas.of(stripe).slot_path(slot), seal
        return None

    def _found(self, stripe: int) -> list[tuple[int, Seal, KeptRow]]:
        """Return each complete row of a stripe with its slot and seal, the newest first."""
        area, out = self._areas.of(stripe), []
        for slot, seal in sorted(area.sealed().items(), key=lambda one: _age(one[1]), reverse=True):
            try:
                row, seals = read_head(_head(area.view(slot, seal)))
            except CorruptError:
                continue
            ranks = tuple(-1 if of is None else of.rank for of in seals)
            out.append((slot, seal, KeptRow(row, ranks, seal.generation, seal.step)))
        return out

    def is_older(self, stripe: int, generation: int) -> bool:
        """Return whether a part of `generation` comes too late: a later one is sent already."""
        coming = self._sums.get(stripe)
        return coming is not None and generation < coming.generation

    def begin(self, share: Share, generation: int, seal: Seal) -> IncomingPart | None:
        """Prepare for a part of the image that `seal` describes.

        Return None if it is in the sum already. Rows of later steps are forgotten: the rank has
        gone back, so those steps were rolled back. Raises CapacityError if there is no room, and
        CorruptError if the image is of another run or if the share is not valid.
        """
        _check(share, seal, run=self._vault.run)
        area = self._areas.of(share.stripe)
        sealed = area.sealed()
        for slot, old in tuple(sealed.items()):
            if old.step > seal.step:
                area.unseal(slot)
                del sealed[slot]
        coming = self._sums.get(share.stripe)
        if coming is None or not coming.is_of(share, generation, seal.step):
            if coming is not None:
                coming.is_over = True
            newest = max(sealed, key=lambda slot: _age(sealed[slot]), default=1)
            coming = _Sum(area, 1 - newest, share, generation, seal.step)
            self._sums[share.stripe] = coming
        begin, end = part_of(seal.length, data=len(share.ranks), place=share.place)
        if coming.seals.setdefault(share.place, seal) != seal:
            raise CorruptError(f"rank {seal.rank} has sealed step {seal.step} twice")
        if coming.received.get(share.place) == end - begin:
            return None
        coming.received.setdefault(share.place, 0)
        missing, slot_bytes = coming.lacks(head_bytes(len(share.ranks)) + end - begin)
        if missing:
            self._vault.need_room(missing, f"parity of the image of rank {seal.rank}")
            try:
                area.folder.mkdir(mode=0o700, exist_ok=True)
                allocate(area.folder / "seals", SEAL_BYTES * SLOTS_COUNT)
            except OSError as error:
                raise _no_room(seal.rank, error) from error
        return IncomingPart(coming, share.place, end - begin, slot_bytes, self.piece)

    def forget(self, stripe: int) -> None:
        """Forget the rows of a stripe, because newer ones cannot be made."""
        if (coming := self._sums.pop(stripe, None)) is not None:
            coming.is_over = True
        area = self._areas.of(stripe)
        for slot in area.sealed():
            area.unseal(slot)

    def is_stale(self, stripe: int, *, generation: int, step: int) -> bool:
        """Return whether nothing here of a stripe is of this generation, or of `step` or later."""
        coming = self._sums.get(stripe)
        rows = self.rows(stripe).rows
        return (coming is None or coming.generation < generation) and all(
            row.generation < generation and row.step < step for row in rows
        )

    def stripes(self) -> tuple[int, ...]:
        """Return the stripes of which rows may be here."""
        return self._areas.ranks()

    def drop(self, stripe: int) -> None:
        """Remove the rows of a stripe, and give their memory back: other nodes keep them now."""
        self.forget(stripe)
        self._vault.drop_folder(self._areas.let_go(stripe))

    def close(self) -> None:
        """Close all files."""
        self._sums.clear()
        self._areas.close()


class _Sum:
    """A row that is being made, in one slot of its stripe.

    received   by place, how many bytes of that rank's part are in the sum
    seals      by place, of the images of which the parts are
    is_over    another sum is made in its place, so nothing may be added any more
    """

    def __init__(self, area: Area, slot: int, share: Share, generation: int, step: int) -> None:
        self.area = area
        self.generation = generation
        self.received: dict[int, int] = {}
        self.seals: dict[int, Seal] = {}
        self.is_over = False
        self._slot = slot
        self._share = share
        self._step = step
        self._cleared = 0  # how many bytes of the sums were set to zero, or summed up, so far

    def is_of(self, share: Share, generation: int, step: int) -> bool:
        """Return whether this is the sum to which such a part belongs."""
        mine = self._share.row, self._share.ranks, self.generation, self._step
        return mine == (share.row, share.ranks, generation, step)

    def lacks(self, needed: int) -> tuple[int, int]:
        """Return how many bytes the slots lack, and how large to make them to have `needed` each.

        0 bytes: they are large enough.
        """
        sizes = self.area.allocated()
        if all(size >= needed for size in sizes):
            return 0, 0
        slot_bytes = int(needed * _SLACK) + _SLACK_BYTES
        return sum(max(0, slot_bytes - size) for size in sizes), slot_bytes

    def add(self, place: int, data: memoryview) -> None:
        """Add the next bytes of the part at `place`."""
        if not self._cleared:
            self.area.unseal(self._slot)
        at, begin = self.received[place], head_bytes(len(self._share.ranks))
        sums = self.area.map_ahead(self._slot, begin + at + len(data))[begin:]
        if (end := at + len(data)) > self._cleared:
            sums[self._cleared : end] = bytes(end - self._cleared)
            self._cleared = end
        fold(sums[at:end], data, weight(self._share.row, place))
        self.received[place] = end

    def is_complete(self) -> bool:
        """Return whether the parts of all ranks are in the sum."""
        return all(
            rank < 0 or (place in self.seals and self.received[place] == self._part_bytes(place))
            for place, rank in enumerate(self._share.ranks)
        )

    def seal_it(self) -> None:
        """Seal the row, now that all parts are in it."""
        places = len(self._share.ranks)
        head = _ROW.pack(self._share.row, places) + b"".join(
            self.seals[place].pack() if place in self.seals else bytes(SEAL_BYTES)
            for place in range(places)
        )
        length = len(head) + self._cleared
        view = self.area.map_ahead(self._slot, length)[:length]
        view[: len(head)] = head
        checksum = xxhash.xxh3_64_intdigest(view)
        number = self._share.stripe
        run = next(iter(self.seals.values())).run
        seal = Seal(run, self.generation, number, self._step, length, checksum)
        self.area.put_seal(self._slot, seal)

    def allocate(self, piece_bytes: int, slot_bytes: int) -> bool:
        """Allocate the next piece of the slots. Return True once there is room. Raises OSError."""
        for slot, size in enumerate(self.area.allocated()):
            if size < slot_bytes:
                allocate(self.area.slot_path(slot), min(slot_bytes, size + piece_bytes))
                return False
        return True

    def _part_bytes(self, place: int) -> int:
        begin, end = part_of(self.seals[place].length, data=len(self._share.ranks), place=place)
        return end - begin


class IncomingPart:
    """A part that is being received.

    Call `make_room` until it returns True, then `rest` and `took` in turn. Each of these processes
    one piece only, so that the caller can serve others between two of them.
    """

    def __init__(
        self, coming: _Sum, place: int, length: int, slot_bytes: int, piece: memoryview
    ) -> None:
        self.length = length
        self._sum = coming
        self._place = place
        self._slot_bytes = slot_bytes
        self._piece = piece

    @property
    def received(self) -> int:
        """Return how many bytes of the part are in the sum, with those of earlier connections."""
        return self._sum.received[self._place]

    @property
    def is_over(self) -> bool:
        """Return whether nothing may be added any more: another sum is made in its place."""
        return self._sum.is_over

    def make_room(self, piece_bytes: int) -> bool:
        """Allocate the next piece of the slots. Return True once there is room.

        Raises CapacityError.
        """
        try:
            return self._sum.allocate(piece_bytes, self._slot_bytes)
        except OSError as error:
            if error.errno not in FULL_ERRNOS:
                raise
            raise _no_room(self._sum.seals[self._place].rank, error) from error

    def rest(self, at_most: int) -> memoryview:
        """Return where the next bytes have to be written. It is empty if all have arrived."""
        return self._piece[: min(at_most, self.length - self.received)]

    def took(self, count: int) -> None:
        """Add the bytes that were just written to where `rest` said."""
        self._sum.add(self._place, self._piece[:count])

    def finish(self) -> bool:
        """Note that the part is complete. Return whether this completes the row."""
        if not self._sum.is_complete():
            return False
        self._sum.seal_it()
        return True


def _check(share: Share, seal: Seal, *, run: int) -> None:
    """Raise CorruptError if what is sent is not a part of an image of the run."""
    in_row = 0 <= share.row < ROWS_MAX and len(share.ranks) <= PLACES_MAX and share.stripe >= 0
    is_there = 0 <= share.place < len(share.ranks) and share.ranks[share.place] == seal.rank
    if seal.run != run or not in_row or not is_there:
        raise CorruptError(f"what was sent is no part of an image of rank {seal.rank} of this run")


def _head(view: memoryview) -> bytes:
    data = bytes(view[: _ROW.size])
    if len(data) < _ROW.size:
        return data
    return bytes(view[: head_bytes(min(_ROW.unpack(data)[1], PLACES_MAX))])


def _age(seal: Seal) -> tuple[int, int]:
    return seal.step, seal.generation


def _no_room(rank: int, error: OSError) -> CapacityError:
    return CapacityError(
        f"there is no room for parity of the image of rank {rank}: {error.strerror}",
        hint="make /dev/shm larger, or keep less state",
    )
