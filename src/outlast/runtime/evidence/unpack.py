"""Unpack archives into files in a scratch folder, under limits.

The limits are on bytes, files, nesting, and on how much a compressed byte may expand to. If a limit
is reached, what was unpacked before is kept, and a note says so. Members are written under numbers,
so no name inside an archive becomes a path.
"""

from __future__ import annotations

import lzma
import os
import shutil
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO, cast

from outlast.model import limits
from outlast.runtime.evidence import tar
from outlast.runtime.evidence.decompress import Damaged, decompressed
from outlast.runtime.evidence.kinds import COMPRESSED, FileKind
from outlast.runtime.evidence.opening import ByteSource, Peeked

SUFFIXES = (".gz", ".bz2", ".xz", ".zst", ".zstd")
_ZIP_END_BYTES, _ZIP_COMMENT_MAX_BYTES = 22, 65_535
_ENCRYPTED = 0x1


class Enough(Exception):
    """A limit was reached. The text says which one."""


@dataclass(slots=True)
class UnpackBudget:
    """This says how many bytes archives may still expand to.

    Call `begin` for each archive on the disk. Archives that are nested in it count as part of it.
    """

    left_bytes: int
    packed_bytes: int = 0
    unpacked_bytes: int = 0

    def begin(self, packed_bytes: int) -> None:
        self.packed_bytes, self.unpacked_bytes = packed_bytes, 0

    def take(self, count: int) -> None:
        self.left_bytes -= count
        self.unpacked_bytes += count
        if self.left_bytes < 0:
            raise Enough("no more room for what archives unfold to")
        if (
            self.unpacked_bytes > limits.EVIDENCE_RATIO_FREE_BYTES
            and self.unpacked_bytes > self.packed_bytes * limits.EVIDENCE_RATIO_MAX
        ):
            raise Enough(f"it unfolds to more than {limits.EVIDENCE_RATIO_MAX} times its size")


class Metered:
    """A stream whose bytes are taken from a budget."""

    def __init__(self, stream: ByteSource, budget: UnpackBudget) -> None:
        self._stream = stream
        self._budget = budget

    def read(self, size: int, /) -> bytes:
        data = self._stream.read(size)
        self._budget.take(len(data))
        return data


@dataclass(slots=True)
class Inside:
    """Something in an archive: what can be read of it, or why it is not read."""

    name: str
    body: Peeked | None
    why: str = ""


def room_in(folder: str) -> int:
    """Return how many bytes may be unpacked there."""
    return max(
        0,
        min(
            limits.EVIDENCE_UNPACKED_MAX_BYTES,
            shutil.disk_usage(folder).free - limits.EVIDENCE_DISK_SPARE_BYTES,
        ),
    )


def inside(stream: Peeked, kind: FileKind, name: str, budget: UnpackBudget) -> Iterator[Inside]:
    """Yield the members of an archive that can be read as a stream.

    Raises Damaged, EOFError, CannotRead and Enough.
    """
    if kind in COMPRESSED:
        yield Inside(name, Peeked(Metered(decompressed(stream, kind), budget)))
        return
    assert kind is FileKind.TAR, kind
    for member in tar.members(stream):
        yield Inside(
            f"{name}/{_plain(member.name)}",
            None if member.body is None else Peeked(member.body),
            member.why,
        )


def inside_zip(path: str, name: str, budget: UnpackBudget) -> Iterator[Inside]:
    """Yield the members of a zip file on the disk. Raises as `inside`."""
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    with os.fdopen(fd, "rb") as file:
        _refuse_endless_directory(file)
        try:
            with zipfile.ZipFile(file) as archive:
                yield from _zip_members(archive, name, budget)
        except (zipfile.BadZipFile, NotImplementedError, ValueError, OverflowError) as error:
            raise Damaged(str(error)) from None


def _zip_members(archive: zipfile.ZipFile, name: str, budget: UnpackBudget) -> Iterator[Inside]:
    infos = archive.infolist()
    names = {info.filename.partition("/")[2] for info in infos[:64]}
    if "data.pkl" in names and ("version" in names or "byteorder" in names):
        yield Inside(name, None, "a checkpoint of torch")
        return
    for info in infos:
        full = f"{name}/{_plain(info.filename)}"
        if info.is_dir():
            continue
        if info.flag_bits & _ENCRYPTED:
            yield Inside(full, None, "encrypted")
            continue
        if info.header_offset < 0:
            # In a file that was cut, the directory points to a place before the beginning.
            yield Inside(full, None, "damaged: it begins before the file")
            continue
        try:
            with archive.open(info) as member:
                yield Inside(full, Peeked(Metered(_ZipBody(cast(BinaryIO, member)), budget)))
        except (zipfile.BadZipFile, NotImplementedError) as error:
            yield Inside(
                full, None, f"damaged, or packed in a way that is not known here ({error})"
            )


class _ZipBody:
    """The bytes of one member. Damage ends this member only."""

    def __init__(self, member: BinaryIO) -> None:
        self._member = member

    def read(self, size: int, /) -> bytes:
        try:
            return self._member.read(size)
        except (
            zipfile.BadZipFile,
            zlib.error,
            lzma.LZMAError,
            OSError,
            ValueError,
            EOFError,
        ) as error:
            raise MemberDamaged(str(error)) from None


class MemberDamaged(Exception):
    """One member of a zip is damaged. The others can still be read."""


def _refuse_endless_directory(file: BinaryIO) -> None:
    """Refuse a zip whose directory is too long, because zipfile reads all of it into memory.

    The directory is as long as its end record says. A zip64 record may give another length, but
    never less than is there.
    """
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - _ZIP_END_BYTES - _ZIP_COMMENT_MAX_BYTES))
    tail = file.read()
    end = tail.rfind(b"PK\x05\x06")
    if end < 0 or len(tail) - end < _ZIP_END_BYTES:
        raise Damaged("the directory at its end is missing")
    directory = int.from_bytes(tail[end + 12 : end + 16], "little")
    zip64 = tail.rfind(b"PK\x06\x06", 0, end)
    if zip64 >= 0 and len(tail) - zip64 >= 56:
        directory = int.from_bytes(tail[zip64 + 40 : zip64 + 48], "little")
    if min(directory, size) > limits.EVIDENCE_DIRECTORY_MAX_BYTES:
        raise Enough(f"its directory has {directory:,} bytes")


def without_suffix(name: str) -> str:
    """Return the name that a compressed file had before it was compressed."""
    return next(
        (
            name[: -len(suffix)]
            for suffix in SUFFIXES
            if name.lower().endswith(suffix) and len(name) > len(suffix)
        ),
        name,
    )


def _plain(name: str) -> str:
    """Return a member's name as people should see it, without leading slashes and `..`."""
    return (
        "/".join(part for part in name.replace("\\", "/").split("/") if part not in ("", ".", ".."))
        or "unnamed"
    )
