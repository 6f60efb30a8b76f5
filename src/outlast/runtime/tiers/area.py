"""An area of the vault: a folder with one or two slots of shared memory, and their seals.

A seal says what its slot contains. A slot is a file of fixed size. It is allocated before it is
mapped, so that a full file system causes an error here and never a SIGBUS later. Its seal is
removed before the slot is written, and put back after. A writer that dies in between leaves a slot
without a seal, and does not change the other slot.

Seals are written by pwrite, not through a mapping. That is one system call, and the file's time of
change then says when the run was last alive. Several processes may have the same area open. Other
modules decide which of them writes.
"""

from __future__ import annotations

import errno
import mmap
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from outlast.engine.commit.image_place import STILL
from outlast.errors import CapacityError, CorruptError
from outlast.model.limits import METADATA_RESERVE_BYTES
from outlast.model.manifest import SEAL_BYTES, Seal, unpack_seal
from outlast.runtime.tiers.image import (
    Image,
    TensorPiece,
    header_bytes,
    read_image,
    write_image,
)
from outlast.runtime.tiers.vault_owner import OWNER

_AGAIN_COUNT, _AGAIN_S = 50, 0.01  # how often, and how far apart, a removed file is tried again
FULL_ERRNOS = (errno.ENOSPC, errno.EDQUOT, errno.ENOMEM)


class Area:
    """The slots and seals in `folder`; there are `slots_count` of each.

    Errors of the file system that are not about room stay OSErrors.
    """

    def __init__(self, folder: Path, *, run: int, rank: int, slots_count: int) -> None:
        self.folder = folder
        self._run = run
        self._rank = rank
        self._slots_count = slots_count
        self._slots: dict[int, memoryview] = {}
        self._seals_fd = -1

    def slot_path(self, slot: int) -> Path:
        """Return the file of a slot."""
        return self.folder / f"slot-{slot}"

    def allocated(self) -> tuple[int, ...]:
        """Return the bytes of each slot, 0 if it does not exist."""
        return tuple(_size(self.slot_path(slot)) for slot in range(self._slots_count))

    def reserve(self, slot_bytes: int) -> None:
        """Allocate every slot as `allocate` does, and touch its pages."""
        self.allocate(slot_bytes)
        for slot in range(self._slots_count):
            self._slot(slot, slot_bytes)

    def allocate(self, slot_bytes: int) -> None:
        """Make every slot at least this large. What was sealed stays sealed.

        Raises CapacityError if memory does not suffice. Then everything is as it was before the
        call.
        """
        before, existed = self.allocated(), self.folder.exists()
        try:
            self.folder.mkdir(mode=0o700, exist_ok=True)
            allocate(self.folder / "seals", SEAL_BYTES * self._slots_count)
            for slot in range(self._slots_count):
                allocate(self.slot_path(slot), slot_bytes)
        except OSError as error:
            self._undo(before, existed=existed)
            if error.errno in FULL_ERRNOS:
                raise CapacityError(
                    f"{self._slots_count} slots of {slot_bytes:,} bytes could not be allocated in"
                    f" {self.folder}: {error.strerror}",
                    hint=(
                        "make /dev/shm larger (docker run --shm-size=..., mount -o"
                        " remount,size=...), or keep less state"
                    ),
                ) from error
            raise

    def write(
        self,
        slot: int,
        *,
        generation: int,
        step: int,
        pieces: Sequence[TensorPiece],
        metadata: Mapping[str, str],
        metadata_room: int = METADATA_RESERVE_BYTES,
    ) -> Seal:
        """Write the image of `step` into `slot`, and seal it.

        `metadata_room` is how many bytes of its header are kept for metadata. Raises what
        `write_image` does; the slot then stays without a seal.
        """
        target = self._slot(slot)
        self._put_seal(slot, bytes(SEAL_BYTES))
        specs = [piece.spec for piece in pieces]
        reserved = header_bytes(specs, metadata_bytes=metadata_room)
        written = write_image(
            target, pieces=pieces, metadata=metadata, header_bytes_reserved=reserved
        )
        seal = Seal(self._run, generation, self._rank, step, written.length, written.checksum)
        self._put_seal(slot, seal.pack())
        return seal

    def memory(self) -> list[memoryview]:
        """Return the slots that this process has mapped, each whole."""
        return list(self._slots.values())

    def put_seal(self, slot: int, seal: Seal) -> None:
        """Seal the bytes that were written into `slot`."""
        self._put_seal(slot, seal.pack())

    def receive(self, slot: int, seal: Seal, fill: Callable[[memoryview], None]) -> None:
        """Let `fill` write the bytes that `seal` describes, and put the seal on them."""
        self._put_seal(slot, bytes(SEAL_BYTES))
        fill(self._slot(slot, seal.length)[: seal.length])
        self._put_seal(slot, seal.pack())

    def confirm(self, slot: int, seal: Seal) -> None:
        """Note that what `seal` describes is still valid, now that its writer has gone further."""
        self._put_seal(slot, replace(seal, still=True).pack())

    def unseal(self, slot: int) -> None:
        self._put_seal(slot, bytes(SEAL_BYTES))

    def sealed(self) -> dict[int, Seal]:
        """Return each slot's valid seal: it is complete, and of this run and this rank."""
        try:
            data = os.pread(self._seals(), SEAL_BYTES * self._slots_count, 0)
        except FileNotFoundError:
            return {}
        found = {
            slot: unpack_seal(data[slot * SEAL_BYTES : (slot + 1) * SEAL_BYTES])
            for slot in range(self._slots_count)
        }
        return {
            slot: seal
            for slot, seal in found.items()
            if seal is not None and (seal.run, seal.rank) == (self._run, self._rank)
        }

    def view(self, slot: int, seal: Seal) -> memoryview:
        """Return the bytes that `seal` describes, unverified.

        Raises CorruptError if the slot is too small for it.
        """
        try:
            view = self._slot(slot, seal.length)
        except OSError as error:
            raise CorruptError(
                f"{self.slot_path(slot)} cannot be read: {error.strerror}"
            ) from error
        if len(view) < seal.length:
            raise CorruptError(
                f"{self.slot_path(slot)} has {len(view):,} bytes, its seal says {seal.length:,}",
                hint="an older image or another copy has to be used",
            )
        return view[: seal.length]

    def read(self, slot: int, seal: Seal) -> Image:
        """Return the verified image.

        Raises CorruptError if bytes and seal do not agree, or the slot was rewritten meanwhile.
        """
        image = read_image(self.view(slot, seal), seal.length, seal.checksum)
        if seal.still:
            image = replace(image, metadata={**image.metadata, **STILL})
        if self.sealed().get(slot) != seal:
            raise CorruptError(
                f"{self.slot_path(slot)} was rewritten while it was read",
                hint="read the newest seals again",
            )
        return image

    def map_ahead(self, slot: int, at_least: int = 0) -> memoryview:
        """Map a slot before it is used, because filling the page tables takes longer than reading.

        A slot of which fewer than `at_least` bytes are mapped is mapped again. Return all of it
        that is mapped. Raises OSError.
        """
        return self._slot(slot, at_least)

    def close(self) -> None:
        """Forget mappings and descriptors. Views given out stay valid until they are dropped."""
        self._slots.clear()
        if self._seals_fd >= 0:
            os.close(self._seals_fd)
            self._seals_fd = -1

    def _slot(self, slot: int, at_least: int = 0) -> memoryview:
        view = self._slots.get(slot)
        if view is None or len(view) < at_least:
            view = self._slots[slot] = map_file(self.slot_path(slot), patient=True)
        return view

    def _seals(self) -> int:
        if self._seals_fd < 0:
            self._seals_fd = _open(self.folder / "seals")
        return self._seals_fd

    def _put_seal(self, slot: int, record: bytes) -> None:
        os.pwrite(self._seals(), record, slot * SEAL_BYTES)

    def _undo(self, before: Sequence[int], *, existed: bool) -> None:
        """Give each slot the size that it had `before`, and remove slots that did not exist."""
        for slot, size in enumerate(before):
            path = self.slot_path(slot)
            if size:
                os.truncate(path, size)
            else:
                path.unlink(missing_ok=True)
        if not existed and self.folder.exists():
            (self.folder / "seals").unlink(missing_ok=True)
            self.folder.rmdir()


def allocate(path: Path, size: int) -> None:
    """Make `path` at least `size` bytes long, with memory for each of them.

    The content is kept, because it has its memory already. Raises OSError.
    """
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        if (there := os.fstat(fd).st_size) < size:
            os.posix_fallocate(fd, there, size - there)
    finally:
        os.close(fd)


def _open(path: Path) -> int:
    """Open a file of the vault.

    If the names of the whole vault were just removed, the launcher will restore them in a moment
    (vault_keeper.py). This waits for that, for half a second at most.
    """
    owner = path.parent.parent / OWNER
    for _ in range(_AGAIN_COUNT):
        try:
            return os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            if owner.exists():
                raise
            time.sleep(_AGAIN_S)
    return os.open(path, os.O_RDWR | os.O_CLOEXEC)


def map_file(path: Path, *, patient: bool = False) -> memoryview:
    """Map all of `path`, shared and writable, with its page tables filled at once.

    patient   wait for a file whose name was removed together with the whole vault
    """
    fd = _open(path) if patient else os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        size = os.fstat(fd).st_size
        if size == 0:
            return memoryview(b"")
        return memoryview(mmap.mmap(fd, size, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE))
    finally:
        os.close(fd)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
