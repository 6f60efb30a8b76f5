"""The files of a ledger: the database, and those that SQLite keeps beside it."""

from __future__ import annotations

import stat
from pathlib import Path

from outlast.errors import CorruptError

BESIDE = ("-wal", "-shm", "-journal")  # endings of the files that SQLite keeps beside the ledger


def refuse_odd_files(path: Path) -> None:
    """Refuse a pipe in place of one of SQLite's files: SQLite would wait for it for ever."""
    for name in (path, *(Path(f"{path}{ending}") for ending in BESIDE)):
        try:
            ordinary = stat.S_ISREG(name.stat().st_mode)
        except FileNotFoundError:
            continue
        except OSError:  # a link to itself
            ordinary = False
        if not ordinary:
            raise CorruptError(
                f"{name} is not an ordinary file", hint="remove it; outlast writes none like it"
            )
