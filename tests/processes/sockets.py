"""The sockets that processes listen on, as the kernel lists them: /proc/net/{tcp,tcp6,unix}."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

_LISTENS = "0A"  # TCP_LISTEN
_ACCEPTS = 0x10000  # __SO_ACCEPTCON, for a Unix socket that listens
WILDCARDS = ("0.0.0.0", "::")


@dataclass(frozen=True)
class Listening:
    """One listening socket.

    `address` is numeric. For a Unix socket it is the path, and `port` is 0.
    """

    pid: int
    address: str
    port: int


def listening(pids: Iterable[int]) -> list[Listening]:
    """Return every socket on which one of these processes listens, in the network namespace of this
    process.
    """
    known = {
        inode: place for table in (_tcp("tcp"), _tcp("tcp6"), _unix()) for inode, place in table
    }
    return [
        Listening(pid, *known[inode]) for pid in pids for inode in _sockets(pid) if inode in known
    ]


def _sockets(pid: int) -> set[int]:
    found = set()
    with contextlib.suppress(OSError):  # the process has ended
        for fd in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                kind, _, inode = os.readlink(f"/proc/{pid}/fd/{fd}").rstrip("]").partition(":[")
                if kind == "socket":
                    found.add(int(inode))
    return found


def _tcp(table: str) -> Iterator[tuple[int, tuple[str, int]]]:
    for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[3] == _LISTENS:
            address, _, port = fields[1].partition(":")
            yield int(fields[9]), (_numeric(address), int(port, 16))


def _numeric(text: str) -> str:
    """Return an address as text. The kernel prints it as words of 32 bits in its own byte order."""
    words = [int(text[at : at + 8], 16) for at in range(0, len(text), 8)]
    family = socket.AF_INET if len(words) == 1 else socket.AF_INET6
    return socket.inet_ntop(family, struct.pack(f"={len(words)}I", *words))


def _unix() -> Iterator[tuple[int, tuple[str, int]]]:
    for line in Path("/proc/net/unix").read_text().splitlines()[1:]:
        fields = line.split(maxsplit=7)
        if int(fields[3], 16) & _ACCEPTS:
            yield int(fields[6]), (fields[7] if len(fields) > 7 else "", 0)
