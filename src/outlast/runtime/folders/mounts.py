"""On what kind of file system a path lies, by the kernel's table of mounts.

SQLite needs locks and shared memory that all processes of a machine see alike. Network file systems
promise neither, so a ledger never lies on one (state_folder.py).
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

TABLE = Path("/proc/self/mountinfo")
# names as in mountinfo, of file systems whose files other machines can change
NETWORK = frozenset(
    (
        "9p", "afs", "beegfs", "ceph", "cifs", "glusterfs", "gpfs", "lustre", "nfs", "nfs4",
        "orangefs", "panfs", "pvfs2", "smb3", "smbfs", "wekafs",
    )
)  # fmt: skip  # one name a line would fill a page
# what a program serves may be anywhere, except for these, which lie on a disk of this machine
_LOCAL_FUSE = frozenset(("fuseblk", "fuse.fuse-overlayfs"))
_ESCAPED = re.compile(r"\\([0-7]{3})")


class Mount(NamedTuple):
    """One mount: where it is, and the kind of its file system."""

    point: str
    kind: str


def parse(text: str) -> list[Mount]:
    """Return the mounts of a table like /proc/self/mountinfo, in its order.

    Lines of another form are left out. See proc_pid_mountinfo(5): fields of which there are none or
    more end with a hyphen, and the kind comes after that.
    """
    found = []
    for line in text.splitlines():
        before, hyphen, after = line.partition(" - ")
        fields, kind = before.split(" "), after.split(" ")[0]
        if hyphen and kind and len(fields) >= 6:
            found.append(Mount(_ESCAPED.sub(_character, fields[4]), kind))
    return found


def _character(escaped: re.Match[str]) -> str:
    return chr(int(escaped[1], 8))


def kind_at(path: str, mounts: Sequence[Mount]) -> str:
    """Return the kind of the file system at an absolute path without links; "": not known.

    The deepest mount counts. Of several at one point, the last one hides the others.
    """
    best = Mount("", "")
    for mount in mounts:
        inside = mount.point == "/" or path == mount.point or path.startswith(f"{mount.point}/")
        if inside and len(mount.point) >= len(best.point):
            best = mount
    return best.kind


def is_network(kind: str) -> bool:
    """Return whether a file system of this kind may be shared with other machines."""
    is_fuse = kind == "fuse" or kind.startswith("fuse.")
    return kind in NETWORK or (is_fuse and kind not in _LOCAL_FUSE)


def network_kind(path: Path) -> str:
    """Return the kind of the network file system on which `path` lies, or will lie; "": none.

    It is "" as well if the table of mounts cannot be read.
    """
    text = ""
    with contextlib.suppress(OSError):
        text = TABLE.read_text(errors="surrogateescape")
    kind = kind_at(os.path.realpath(path), parse(text))
    return kind if is_network(kind) else ""
