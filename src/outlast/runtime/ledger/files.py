"""The files of a ledger: the database, and those that SQLite keeps beside it."""

from __future__ import annotations

import sqlite3
import stat
import time
from pathlib import Path

from outlast.errors import CorruptError
from outlast.runtime import clock
from outlast.runtime.folders.mounts import network_kind
from outlast.runtime.ledger.pointer import NAME

_LOOK_S = 0.02  # the time between two tries of a lock that another program holds
# the endings of the files that SQLite keeps beside the ledger
BESIDE = ("-wal", "-shm", "-journal")


def refuse_odd_files(path: Path) -> None:
    """Refuse a pipe in place of one of SQLite's files: SQLite would wait for it without end."""
    for name in (path, *(Path(f"{path}{ending}") for ending in BESIDE)):
        try:
            ordinary = stat.S_ISREG(name.stat().st_mode)
        except FileNotFoundError:
            continue
        except OSError:  # the path is a link to itself
            ordinary = False
        if not ordinary:
            raise CorruptError(
                f"{name} is not an ordinary file", hint="remove it; outlast writes none like it"
            )


def is_copy(path: Path) -> bool:
    """Return whether this ledger is never written in place: it is a copy (copier.py).

    SQLite is told so, because it must not use the locks of a network file system.
    """
    if Path(f"{path}-wal").exists():
        return False
    return (path.parent / NAME).exists() or bool(network_kind(path))


def write_ahead(connection: sqlite3.Connection, *, patience_s: float) -> None:
    """Let the ledger have a log that is written ahead, so that readers never hold up its writer.

    SQLite itself does not wait for the lock that this takes, so this tries again for `patience_s`.
    Raises sqlite3.Error.
    """
    over_s = clock.now_s() + patience_s
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or clock.now_s() > over_s:
                raise
            time.sleep(_LOOK_S)
        else:
            return
