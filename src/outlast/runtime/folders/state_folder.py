"""The local folder for the ledger of a run whose folder is on a network file system.

`--state-dir` names it. Otherwise it is $XDG_STATE_HOME/outlast, which is ~/.local/state/outlast
unless the variable is set, or /var/tmp/outlast-UID if the home folder is on a network file system
as well. A run whose folder is on a disk of this machine needs none.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from outlast.errors import UsageError
from outlast.runtime.folders.mounts import network_kind

Kind = Callable[[Path], str]


def state_root(given: str, folder: Path, *, kind_of: Kind = network_kind) -> Path | None:
    """Return where ledgers lie on this machine; None: in the folder of their run.

    given     what --state-dir says; "": nothing
    folder    the folder of the run, which need not be there yet
    kind_of   returns the kind of the network file system of a path; "": it is on none

    Raises UsageError if there is no folder on a disk of this machine.
    """
    if given:
        if kind := kind_of(Path(given)):
            raise UsageError(
                f"--state-dir {given} lies on {kind}, where SQLite is not safe",
                hint="name a folder on a disk of this machine",
            )
        return Path(given).absolute()
    if not (kind := kind_of(folder)):
        return None
    for one in _usual():
        if not kind_of(one):
            return one
    raise UsageError(
        f"{folder} lies on {kind}, where SQLite is not safe, and so do the home folder and"
        " /var/tmp",
        hint="name a folder on a disk of this machine with --state-dir",
    )


def _usual() -> tuple[Path, ...]:
    """Return the folders that are tried without --state-dir, in this order."""
    state = os.environ.get("XDG_STATE_HOME", "")
    home = Path(state) if os.path.isabs(state) else Path("~/.local/state").expanduser()
    at_home = (home / "outlast",) if home.is_absolute() else ()
    return (*at_home, Path(f"/var/tmp/outlast-{os.getuid()}"))
