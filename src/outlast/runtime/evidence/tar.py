"""Read tar archives as a stream.

The headers are parsed here, so that no header decides how much memory or time is spent.

Read       regular members, under names of the ustar, GNU (L) and pax (x, path) kinds.
Not read   links, devices and FIFOs, which are reported as such; sparse members, whose bytes are not
           where their names are.
"""

from __future__ import annotations

import tarfile
from collections.abc import Iterator
from dataclasses import dataclass

from outlast.model.limits import EVIDENCE_READ_BYTES, EVIDENCE_TAR_NAME_MAX_BYTES
from outlast.runtime.evidence.decompress import Damaged
from outlast.runtime.evidence.opening import Peeked

_BLOCK = tarfile.BLOCKSIZE
_HOLES_GO_ON_AT, _MORE_HOLES_GO_ON_AT = 482, 504  # offsets in the old GNU format
_NAMES = {
    tarfile.GNUTYPE_LONGNAME,
    tarfile.GNUTYPE_LONGLINK,
    tarfile.XHDTYPE,
    tarfile.XGLTYPE,
    tarfile.SOLARIS_XHDTYPE,
}
_KINDS = {
    tarfile.LNKTYPE: "hard link in an archive",
    tarfile.SYMTYPE: "symbolic link in an archive",
}


@dataclass(slots=True)
class ArchiveMember:
    """One member of an archive.

    `body` returns the member's bytes until the next member is requested. It is None if there is
    nothing to read. Then `why` gives the reason.
    """

    name: str
    size_bytes: int
    body: _Body | None
    why: str = ""


class _Body:
    def __init__(self, stream: Peeked, size: int) -> None:
        self._stream = stream
        self.left = size

    def read(self, size: int, /) -> bytes:
        if self.left <= 0:
            return b""
        data = self._stream.read(min(size, self.left))
        if not data:
            raise EOFError("it was cut short")
        self.left -= len(data)
        return data


def members(stream: Peeked) -> Iterator[ArchiveMember]:
    """Yield all members except folders, in order. Raises Damaged, EOFError, or as `stream` does."""
    name, pax_size, sparse = "", None, False
    while True:
        block = stream.peek(_BLOCK)
        if len(block) < _BLOCK or not block.strip(b"\x00"):
            return  # these are the two empty blocks, or the archive ends without them
        info = _header(stream.exactly(_BLOCK))
        more_holes = info.type == tarfile.GNUTYPE_SPARSE and block[_HOLES_GO_ON_AT]
        while more_holes:
            more_holes = stream.exactly(_BLOCK)[_MORE_HOLES_GO_ON_AT]
        if info.type in _NAMES:
            text = _named(stream, info)
            if info.type == tarfile.GNUTYPE_LONGNAME:
                name = text.partition(b"\x00")[0].decode("utf-8", "backslashreplace")
            elif info.type in (tarfile.XHDTYPE, tarfile.SOLARIS_XHDTYPE):
                facts = pax_facts(text)
                name = facts.get("path", name)
                pax_size = int(facts["size"]) if facts.get("size", "").isdecimal() else None
                sparse = any(key.startswith("GNU.sparse") for key in facts)
            continue
        size = info.size if pax_size is None else pax_size
        yield from _member(
            stream,
            info,
            name or info.name,
            size,
            sparse=sparse or info.type == tarfile.GNUTYPE_SPARSE,
        )
        name, pax_size, sparse = "", None, False


def _member(
    stream: Peeked, info: tarfile.TarInfo, name: str, size: int, *, sparse: bool
) -> Iterator[ArchiveMember]:
    if info.type == tarfile.DIRTYPE or (info.isreg() and name.endswith("/")):
        return
    regular = info.isreg() and not sparse
    body = _Body(stream, size if info.isreg() else 0)
    why = (
        ""
        if regular
        else "sparse file in an archive"
        if sparse
        else _KINDS.get(info.type, "special file in an archive")
    )
    yield ArchiveMember(name, size, body if regular else None, why)
    while body.left:
        body.read(EVIDENCE_READ_BYTES)
    padding = -(size if info.isreg() else 0) % _BLOCK
    if padding and len(stream.peek(padding)) == padding:
        stream.exactly(padding)


def _header(block: bytes) -> tarfile.TarInfo:
    try:
        info = tarfile.TarInfo.frombuf(block, "utf-8", "backslashreplace")
    except (tarfile.HeaderError, ValueError) as error:
        raise Damaged(f"a header of the archive is not one: {error}") from None
    if info.size < 0:
        raise Damaged("a member of negative size")
    return info


def _named(stream: Peeked, info: tarfile.TarInfo) -> bytes:
    if info.size > EVIDENCE_TAR_NAME_MAX_BYTES:
        raise Damaged(f"a member's name of {info.size:,} bytes")
    return stream.exactly(info.size + -info.size % _BLOCK)[: info.size]


def pax_facts(text: bytes) -> dict[str, str]:
    """Return the records "<length> <key>=<value>\\n" of an extended header, up to a bad one."""
    facts: dict[str, str] = {}
    at = 0
    while at < len(text):
        digits = text[at : at + 8].partition(b" ")[0]
        if (
            not digits.isdigit()
            or not len(digits) + 1 < int(digits) <= len(text) - at
            or text[at + int(digits) - 1 : at + int(digits)] != b"\n"
        ):
            break
        key, equals, value = text[at + len(digits) + 1 : at + int(digits) - 1].partition(b"=")
        if equals:
            facts[key.decode("utf-8", "backslashreplace")] = value.decode(
                "utf-8", "backslashreplace"
            )
        at += int(digits)
    return facts
