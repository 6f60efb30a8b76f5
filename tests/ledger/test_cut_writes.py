"""A launcher that is killed at any write of the ledger loses at most what it was writing.

SQLite only appends to the file ledger.db-wal between two checkpoints: 32 bytes of head, and for
each page 24 bytes and then the page, each by a write of its own. So the file as a kill leaves it is
one of its own beginnings. A checkpoint copies those pages into ledger.db one by one.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from outlast.errors import OutlastError
from outlast.model.records import Event
from outlast.runtime.ledger.store import Ledger, read_ledger
from tests.ledger import a_run

HEAD, FRAME_HEAD, PAGE = 32, 24, 4096
FLUSHES = 8
EACH = 3  # records of a flush


def text_of(number: int) -> str:
    return f"{number} " * (400 * (number % 3))  # some flushes take several pages


@pytest.fixture
def written(tmp_path: Path) -> Iterator[tuple[Path, list[int]]]:
    """A ledger after some flushes, and how long its log was when each was acknowledged."""
    path = tmp_path / "whole" / "ledger.db"
    path.parent.mkdir()
    lengths = []
    with closing(Ledger.create(path, a_run.META, pid=os.getpid())) as ledger:
        for number in range(FLUSHES):
            for part in range(EACH):
                data = {"part": part, "text": text_of(number)}
                ledger.add(Event(float(number), 0.0, "note", data))
            ledger.flush()
            lengths.append(os.path.getsize(f"{path}-wal"))
        yield path, lengths


def is_left(path: Path, *, least: int) -> None:
    """Whole flushes are there, in order, and at least the first `least` of them."""
    notes = read_ledger(path).sessions[0].events
    assert len(notes) % EACH == 0, "part of a flush"
    assert [one.at_s for one in notes] == [float(each // EACH) for each in range(len(notes))]
    assert least <= len(notes) // EACH <= min(least + 1, FLUSHES)


def test_a_kill_at_any_write_of_a_flush_loses_at_most_that_flush(
    tmp_path: Path, written: tuple[Path, list[int]]
) -> None:
    """Method: the log is cut at each write, and in the middle of each."""
    path, lengths = written
    begun = lengths[0] - 1  # before that, the run itself is being written down
    ends = [HEAD]
    while ends[-1] < lengths[-1]:
        ends += [ends[-1] + FRAME_HEAD, ends[-1] + FRAME_HEAD + PAGE]
    assert ends[-1] == lengths[-1], "the log has another shape than this test knows"
    cuts = {cut for end in ends for cut in (end, end - 11) if cut >= begun}
    assert len(cuts) > 40
    for cut in sorted(cuts):
        left = tmp_path / str(cut)
        left.mkdir()
        shutil.copy(path, left / "ledger.db")
        log = Path(f"{path}-wal").read_bytes()[:cut]
        (left / "ledger.db-wal").write_bytes(log)
        is_left(left / "ledger.db", least=sum(length <= cut for length in lengths))


def test_a_kill_while_the_ledger_is_made_leaves_a_run_or_a_reason(
    tmp_path: Path, written: tuple[Path, list[int]]
) -> None:
    """Method: the log is cut at each write before the first flush, and in the middle of each."""
    path, lengths = written
    ends = range(HEAD, lengths[0], FRAME_HEAD + PAGE)
    cuts, refused = sorted({0, *ends, *(end - 11 for end in ends)}), []
    for cut in cuts:
        left = tmp_path / str(cut)
        left.mkdir()
        shutil.copy(path, left / "ledger.db")
        (left / "ledger.db-wal").write_bytes(Path(f"{path}-wal").read_bytes()[:cut])
        try:
            records = read_ledger(left / "ledger.db")
        except OutlastError as error:
            refused.append((cut, error))
            continue
        assert (records.meta, len(records.sessions)) == (a_run.META, 1)
        assert records.sessions[0].events == ()
    assert [cut for cut, _ in refused] == cuts[:-1], "only the last one has the session's record"
    assert all(error.hint for _, error in refused)


def test_a_kill_at_any_page_of_a_checkpoint_loses_nothing(
    tmp_path: Path, written: tuple[Path, list[int]]
) -> None:
    """Method: the first pages are those behind the checkpoint, the others those before it."""
    path, _ = written
    before, log = path.read_bytes(), Path(f"{path}-wal").read_bytes()
    with closing(sqlite3.connect(path)) as other:
        assert other.execute("PRAGMA wal_checkpoint(FULL)").fetchone()[0] == 0
    after = path.read_bytes()
    assert after != before
    for pages in range(len(after) // PAGE + 1):
        left = tmp_path / str(pages)
        left.mkdir()
        done = pages * PAGE
        (left / "ledger.db").write_bytes(after[:done] + before[done:])
        (left / "ledger.db-wal").write_bytes(log)
        is_left(left / "ledger.db", least=FLUSHES)
