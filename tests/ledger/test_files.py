"""The files of a ledger, while other programs hold them."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from outlast.runtime.ledger.files import write_ahead


@pytest.fixture
def both(tmp_path: Path) -> Iterator[tuple[sqlite3.Connection, sqlite3.Connection]]:
    """A connection to a new database, and one of another program."""
    path = tmp_path / "ledger.db"
    ours = sqlite3.connect(path, timeout=30, isolation_level=None)
    others = sqlite3.connect(path, timeout=30, isolation_level=None, check_same_thread=False)
    yield ours, others
    ours.close()
    others.close()


@pytest.mark.parametrize("lock", ["BEGIN IMMEDIATE", "BEGIN EXCLUSIVE"])
def test_a_new_ledger_waits_for_the_lock_of_another_program(
    both: tuple[sqlite3.Connection, sqlite3.Connection], lock: str
) -> None:
    """The lock is given back while the ledger tries again."""
    ours, others = both
    others.execute(lock)
    release = threading.Timer(0.05, lambda: others.execute("ROLLBACK"))
    release.start()
    write_ahead(ours, patience_s=60.0)
    release.join()
    assert ours.execute("PRAGMA journal_mode").fetchone()[0] == "wal"


def test_it_does_not_wait_for_longer_than_its_patience(
    both: tuple[sqlite3.Connection, sqlite3.Connection],
) -> None:
    ours, others = both
    others.execute("BEGIN IMMEDIATE")
    with pytest.raises(sqlite3.OperationalError, match="locked"):
        write_ahead(ours, patience_s=0.0)
