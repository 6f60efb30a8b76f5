"""Which process listens on a TCP port of this host, by /proc/net/tcp and open descriptors."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from outlast.model.texts import cut_at_word

_LISTENS = "0A"


def holder_of(port: int) -> str:
    """Return in words which process listens there, as far as this user may see it."""
    inodes = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with suppress(OSError):
            for row in Path(table).read_text().splitlines()[1:]:
                fields = row.split()
                if fields[3] == _LISTENS and int(fields[1].rpartition(":")[2], 16) == port:
                    inodes.add(fields[9])
    if not inodes:
        return "nobody listens there"
    for entry in os.scandir("/proc"):
        if not entry.name.isdecimal():
            continue
        with suppress(OSError):
            for descriptor in os.scandir(f"/proc/{entry.name}/fd"):
                if os.readlink(descriptor.path) in {f"socket:[{inode}]" for inode in inodes}:
                    raw = Path(f"/proc/{entry.name}/cmdline").read_bytes()
                    command = raw.replace(b"\0", b" ").decode("utf-8", "replace").strip()
                    return f"pid {entry.name} listens there ({cut_at_word(command, 200)})"
    return "a process of another user listens there"
