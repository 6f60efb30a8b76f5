"""runtime/ledger: what was flushed is there, for any reader, whatever happens to the writer."""

from __future__ import annotations

import dataclasses
import itertools
import os
import resource
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlast.errors import CapacityError, CorruptError, OutlastError, RunFolderError
from outlast.model import limits
from outlast.model.records import Event, Generation, Interruption, Life, StepsBucket
from outlast.model.terms import CAUSES, Mechanism, Rung
from outlast.runtime.ledger import rows
from outlast.runtime.ledger.store import Ledger, _as_our_errors, read_ledger
from tests.ledger import a_run

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
number = st.integers(-(2**63), 2**63 - 1)
moment = st.floats(allow_nan=False, allow_infinity=False)
RECORDS = {
    Generation: st.builds(
        Generation, number, number, moment, st.lists(number, max_size=4).map(tuple)
    ),
    Life: st.builds(
        Life,
        number,
        number,
        text,
        number,
        text,
        moment,
        st.none() | moment,
        st.none() | moment,
        st.dictionaries(st.sampled_from(CAUSES), moment),
        st.sampled_from(CAUSES),
        text,
    ),
    Interruption: st.builds(
        Interruption,
        id=number,
        mechanism=st.sampled_from(Mechanism),
        detected_s=moment,
        parent=st.none() | number,
        ranks=st.lists(number, max_size=3).map(tuple),
        nodes=st.lists(text, max_size=3).map(tuple),
        rung=st.none() | st.sampled_from(Rung),
        fault_s=st.none() | moment,
        error=text,
        traceback=text,
    ),
    StepsBucket: st.builds(StepsBucket, moment, moment, number, number, moment, moment, moment),
    Event: st.builds(
        Event,
        moment,
        moment,
        text,
        st.dictionaries(text, st.none() | number | text | st.lists(number, max_size=3)),
    ),
}


@pytest.fixture
def ledger(tmp_path: Path):
    with closing(Ledger.create(tmp_path / "ledger.db", a_run.META, pid=os.getpid())) as one:
        yield one


# --- what goes in comes out -----------------------------------------------------------------------


@given(data=st.data())
@pytest.mark.parametrize("kind", RECORDS, ids=lambda kind: kind.__name__)
def test_every_record_comes_back_as_it_was_added(kind: type, data: st.DataObject) -> None:
    """Method: through the same SQL, in memory."""
    record = data.draw(RECORDS[kind])
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.row_factory = sqlite3.Row
        connection.executescript(rows.schema())
        connection.execute(rows.PUT[kind], {"session": 1, **rows.to_row(record)})
        assert (
            rows.from_row(kind, connection.execute(f"SELECT * FROM {rows.TABLES[kind]}").fetchone())
            == record
        )


def test_a_run_comes_back_whole_and_in_order(tmp_path: Path) -> None:
    records = read_ledger(a_run.ended_run(tmp_path) / "ledger.db")
    assert records.meta == a_run.META
    part = records.sessions[0]
    assert (part.session.state, part.session.exit_code, part.session.ended_s) == ("ended", 0, 120.0)
    assert part.interruptions == (a_run.KILL, a_run.CHILD, a_run.HANG)
    assert sorted(part.lives, key=lambda life: (life.worker, life.rank)) == sorted(
        a_run.LIVES, key=lambda life: (life.worker, life.rank)
    )
    assert [one.generation for one in part.generations] == [0, 2]
    assert records.newest_step == 200
    assert records.snapshot == a_run.SNAPSHOT


def test_a_later_record_with_the_same_key_replaces_the_row(ledger: Ledger) -> None:
    """An interruption fills up; within one flush, and over two."""
    ledger.add(dataclasses.replace(a_run.KILL, resumed_s=None))
    ledger.add(dataclasses.replace(a_run.KILL, resumed_s=None, left_s=110.005))
    ledger.flush()
    ledger.add(a_run.KILL)
    ledger.flush()
    assert ledger.read().sessions[0].interruptions == (a_run.KILL,)


def test_text_that_is_no_unicode_is_kept_as_far_as_it_goes(ledger: Ledger) -> None:
    ledger.add(dataclasses.replace(a_run.KILL, error="path \udcff", nodes=("n\udcff",)))
    ledger.flush()
    assert ledger.read().sessions[0].interruptions[0].error == "path ?"


def test_events_and_steps_cannot_be_changed_and_nothing_can_be_deleted(tmp_path: Path) -> None:
    path = a_run.ended_run(tmp_path) / "ledger.db"
    with closing(sqlite3.connect(path)) as connection:
        for table in rows.TABLES.values():
            with pytest.raises(sqlite3.IntegrityError, match="only grows"):
                connection.execute(f"DELETE FROM {table}")
        for table in ("events", "steps"):
            with pytest.raises(sqlite3.IntegrityError, match="only grows"):
                connection.execute(f"UPDATE {table} SET rowid = rowid + 1000")


def test_old_buckets_of_steps_are_merged_and_cover_the_same_steps(ledger: Ledger) -> None:
    """Three days of a bucket every 10 s, flushed a day at a time: far fewer rows, no gap."""
    day = 8_640
    for number in range(3 * day):
        at_s = 100.0 + 10 * number
        loss = {"loss": float(number % 3)} if number % 2 == 0 else {}
        ledger.add(
            StepsBucket(at_s, at_s + 10, number, number + 1, 9.0, 9.0 + number % 3, 12.0, loss)
        )
        if number % day == day - 1:
            ledger.set_snapshot({}, now_s=at_s + 10)
            ledger.flush()
    steps = ledger.read().sessions[0].steps
    assert len(steps) < 2 * 48 + 24 * 60 + 360 + 70, len(steps)
    assert (steps[0].from_step, steps[-1].to_step) == (0, 3 * day)
    assert all(one.to_step == two.from_step for one, two in itertools.pairwise(steps))
    assert all(one.to_s == two.from_s for one, two in itertools.pairwise(steps))
    assert steps[0].median_s == 10.0
    assert {one.max_s for one in steps} == {12.0}
    assert steps[0].logged == {"loss": pytest.approx(1.0, abs=0.05)}, "the mean of 0, 1 and 2"


def test_a_bucket_of_steps_only_gives_way_to_one_that_covers_it(ledger: Ledger) -> None:
    for from_step in (0, 5, 7):
        ledger.add(StepsBucket(from_step, from_step + 2, from_step, from_step + 2, 1.0, 1.0, 1.0))
    ledger.flush()
    with closing(sqlite3.connect(ledger.path)) as connection:
        with pytest.raises(sqlite3.IntegrityError, match="only grows"):
            connection.execute("DELETE FROM steps WHERE from_step = 0")
        with pytest.raises(sqlite3.IntegrityError, match="only grows"):
            connection.execute("DELETE FROM steps WHERE from_step = 7")


# --- flush ----------------------------------------------------------------------------------------


def test_only_what_was_flushed_is_there(ledger: Ledger) -> None:
    ledger.add(a_run.KILL)
    ledger.set_snapshot({"step": 3}, now_s=101.0)
    assert ledger.read().sessions[0].interruptions == ()
    assert ledger.snapshot() is None
    assert ledger.flush() == 1
    assert ledger.flush() == 0
    assert ledger.snapshot() == {"step": 3}
    assert ledger.read().sessions[0].session.seen_s == 101.0


def test_a_disk_that_refuses_keeps_the_queue(ledger: Ledger) -> None:
    """Method: SQLite's own page limit stands for the full disk; when it is lifted, everything
    arrives.
    """
    pages = ledger._connection.execute("PRAGMA page_count").fetchone()[0]
    ledger._connection.execute(f"PRAGMA max_page_count = {pages}")
    for number in range(2000):
        ledger.add(Event(float(number), 0.0, "noise", {"text": "x" * 100}))
    ledger.set_snapshot({"step": 4}, now_s=101.0)
    with pytest.raises(CapacityError, match="full") as caught:
        ledger.flush()
    # A run that cannot begin reads this too: nothing may be said that holds for training alone.
    assert caught.value.hint == "free space on that disk, or name another folder with --run-dir"
    ledger.add(Event(2000.0, 0.0, "noise"))
    ledger._connection.execute("PRAGMA max_page_count = 1000000")
    assert ledger.flush() == 2001
    assert [event.at_s for event in ledger.read().sessions[0].events] == [
        float(number) for number in range(2001)
    ]
    assert ledger.snapshot() == {"step": 4}


def test_a_limit_of_file_sizes_is_named_beside_the_disk(tmp_path: Path) -> None:
    """Method: this process may write a few KiB more into a file, for a moment."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (8192, before[1]))
    try:
        with pytest.raises(CapacityError, match="cannot be written") as caught:
            Ledger.create(tmp_path / "ledger.db", a_run.META, pid=os.getpid())
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert "may have 8,192 bytes (`ulimit -f`)" in caught.value.hint, caught.value.hint


def test_a_ledger_that_was_removed_is_no_full_disk(tmp_path: Path) -> None:
    """SQLite calls both a disk I/O error. Method: its error, with and without the file there."""
    path = tmp_path / "ledger.db"
    for raised, there in ((RunFolderError, False), (CapacityError, True)):
        if there:
            path.touch()
        with pytest.raises(raised), _as_our_errors(path):
            raise sqlite3.OperationalError("disk I/O error")


def test_a_queue_over_its_limit_drops_the_oldest_and_counts_them(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same interruption written often is one record, not many."""
    monkeypatch.setattr("outlast.runtime.ledger.store.LEDGER_QUEUE_MAX_COUNT", 100)
    for number in range(95):
        ledger.add(dataclasses.replace(a_run.KILL, step=number))
    for number in range(110):
        ledger.add(Event(float(number), 0.0, "noise"))
    ledger.flush()
    events = [event.at_s for event in ledger.read().sessions[0].events]
    assert events == sorted(events)
    assert events[-1] == 109.0
    assert len(events) + ledger.dropped_count >= 110
    assert limits.LEDGER_QUEUE_MAX_COUNT > 1000


def test_one_thread_may_add_while_another_flushes(ledger: Ledger) -> None:
    over = threading.Event()
    flusher = threading.Thread(target=lambda: [ledger.flush() for _ in iter(over.is_set, True)])
    flusher.start()
    try:
        for number in range(500):
            ledger.add(Event(float(number), 0.0, "noise"))
    finally:
        over.set()
        flusher.join(10)
    ledger.flush()
    assert [event.at_s for event in ledger.read().sessions[0].events] == [
        float(number) for number in range(500)
    ]


# --- readers and writers --------------------------------------------------------------------------


def test_a_reader_never_blocks_the_writer(ledger: Ledger) -> None:
    """Method: a reader stands in the middle of its transaction while the writer flushes; then it
    still sees its own moment.
    """
    ledger.add(Event(1.0, 0.0, "a"))
    ledger.flush()
    with closing(Ledger.read_only(ledger.path)) as reader:
        reader._connection.execute("BEGIN")
        assert len(reader._read().sessions[0].events) == 1
        ledger.add(Event(2.0, 0.0, "b"))
        assert ledger.flush() == 1
        assert len(reader._read().sessions[0].events) == 1
        reader._connection.rollback()
        assert len(reader.read().sessions[0].events) == 2


def test_a_reader_cannot_write(tmp_path: Path) -> None:
    with closing(Ledger.read_only(a_run.ended_run(tmp_path) / "ledger.db")) as reader:
        reader.add(a_run.KILL)
        with pytest.raises(OutlastError, match="readonly"):
            reader.flush()


WRITER = """
import sys
from pathlib import Path
from outlast.model.records import Event, Meta
from outlast.runtime.ledger.store import Ledger
ledger = Ledger.create(Path(sys.argv[1]), Meta("r", "r", 1, "0", 0.0, 0.0), pid=1)
number = 0
while True:
    for _ in range(7):
        number += 1
        ledger.add(Event(float(number), 0.0, "beat"))
    ledger.flush()
    print(number, flush=True)
"""


def test_what_was_flushed_survives_a_kill_of_the_writer(tmp_path: Path) -> None:
    """Method: a process flushes batches of seven and says so; SIGKILL in the middle; whole batches
    are there, at least all that it said.
    """
    path = tmp_path / "ledger.db"
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True
    )
    assert writer.stdout is not None
    said = [int(writer.stdout.readline()) for _ in range(20)]
    writer.send_signal(signal.SIGKILL)
    rest = writer.stdout.read().split("\n")
    writer.wait(10)
    writer.stdout.close()
    said += [int(line) for line in rest[:-1]]
    events = read_ledger(path).sessions[0].events
    assert [event.at_s for event in events] == [
        float(number) for number in range(1, len(events) + 1)
    ]
    assert len(events) % 7 == 0
    assert said[-1] <= len(events) <= said[-1] + 7


NOBODY_READS = """
import os, sys
from pathlib import Path
from outlast.runtime.ledger.store import read_ledger
if os.getuid() == 0:
    os.setuid(65534)
print(read_ledger(Path(sys.argv[1])).newest_step)
"""


def test_a_ledger_in_a_folder_that_cannot_be_written_is_readable() -> None:
    """Method: an ended run, its folder read-only, read by a user who is not root (root may write
    anywhere).
    """
    with tempfile.TemporaryDirectory() as home:
        Path(home).chmod(0o755)
        folder = a_run.ended_run(Path(home))
        assert not list(folder.glob("ledger.db-*")), "an ended run leaves one file"
        folder.chmod(0o555)
        try:
            done = subprocess.run(
                [sys.executable, "-c", NOBODY_READS, str(folder / "ledger.db")],
                capture_output=True,
                text=True,
                timeout=30,
            )
        finally:
            folder.chmod(0o755)
    assert done.stdout.strip() == "200", done.stderr


# --- sessions -------------------------------------------------------------------------------------


def test_a_second_launcher_appends_a_session_and_goes_on_with_the_numbers(tmp_path: Path) -> None:
    path = a_run.lost_run(tmp_path) / "ledger.db"
    with closing(
        Ledger.resume(path, pid=77, started_s=5.0, started_wall_s=a_run.META.started_wall_s + 100)
    ) as ledger:
        newest = ledger.newest()
        assert (newest.generation, newest.worker, newest.interruption, newest.step) == (
            2,
            5,
            3,
            200,
        )
        ledger.add(
            dataclasses.replace(a_run.KILL, id=1, detected_s=7.0, fault_s=6.5, resumed_s=7.5)
        )
        ledger.end_session(ended_s=9.0, state="ended", exit_code=0, reason="")
        records = ledger.read()
    assert [part.session.session for part in records.sessions] == [1, 2]
    assert [len(part.interruptions) for part in records.sessions] == [3, 1]
    assert records.sessions[0].session.over_s == 119.0
    last = records.interruptions()[-1]
    assert (last["id"], last["fault_s"]) == (4, 101.5), (
        "an id that was given again is moved up; times count from the first start"
    )


def test_a_ledger_of_schema_3_is_read_and_goes_on_with_other_ranks(tmp_path: Path) -> None:
    """It does not say how many ranks its session had: as many as the run."""
    path = a_run.ended_run(tmp_path) / "ledger.db"
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("ALTER TABLE sessions DROP COLUMN world_size")
        connection.execute("PRAGMA user_version = 3")
    assert read_ledger(path).sizes == (a_run.META.world_size,)
    wall_s = a_run.META.started_wall_s + 100
    with closing(
        Ledger.resume(path, pid=7, started_s=5.0, started_wall_s=wall_s, world_size=5)
    ) as ledger:
        ledger.end_session(ended_s=6.0, state="ended", exit_code=0, reason="")
    records = read_ledger(path)
    assert records.sizes == (a_run.META.world_size, 5)
    assert records.world_size == 5


def test_a_session_that_has_just_begun_shows_nothing_of_the_one_before(tmp_path: Path) -> None:
    """Its workers are gone, and there may be others of another number."""
    path = a_run.lost_run(tmp_path) / "ledger.db"
    assert read_ledger(path).snapshot
    wall_s = a_run.META.started_wall_s + 100
    with closing(Ledger.resume(path, pid=7, started_s=5.0, started_wall_s=wall_s)) as ledger:
        assert read_ledger(path).snapshot is None
        ledger.set_snapshot({"step": 1}, now_s=5.5)
        ledger.flush()
        assert read_ledger(path).snapshot == {"step": 1}


def test_a_new_ledger_has_no_numbers_yet(ledger: Ledger) -> None:
    assert dataclasses.astuple(ledger.newest()) == (-1, -1, -1, 0)


# --- what is refused ------------------------------------------------------------------------------


def test_a_ledger_of_another_version_is_refused(tmp_path: Path) -> None:
    path = a_run.ended_run(tmp_path) / "ledger.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA user_version = 99")
    with pytest.raises(RunFolderError, match="schema 99") as caught:
        Ledger.read_only(path)
    assert caught.value.exit_code == 2
    assert "install that version or a newer one" in caught.value.hint


@pytest.mark.parametrize(
    ("content", "error"),
    [(b"this is no database, whatever its name says" * 30, CorruptError), (b"", RunFolderError)],
)
def test_a_file_that_is_no_ledger_is_refused(
    tmp_path: Path, content: bytes, error: type[OutlastError]
) -> None:
    path = tmp_path / "ledger.db"
    path.write_bytes(content)
    with pytest.raises(error) as caught:
        read_ledger(path)
    assert caught.value.hint


def test_a_ledger_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match="there is no ledger"):
        Ledger.read_only(tmp_path / "ledger.db")
    assert not (tmp_path / "ledger.db").exists()


def test_a_ledger_is_never_made_over_another(ledger: Ledger) -> None:
    with pytest.raises(RunFolderError, match="exists already"):
        Ledger.create(ledger.path, a_run.META, pid=1)


def test_a_row_that_was_tampered_with_is_corrupt(tmp_path: Path) -> None:
    path = a_run.ended_run(tmp_path) / "ledger.db"
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE interruptions SET mechanism = 'magic'")
    with closing(Ledger.read_only(path)) as ledger, pytest.raises(CorruptError, match="Interr"):
        ledger.read()
    records = read_ledger(path)
    assert records.sessions[0].interruptions == ()
    assert records.missing == {
        "interruptions": "interruptions: 0 were read, without 3 that make no sense"
    }
    assert len(records.sessions[0].lives) == len(a_run.LIVES)


@pytest.mark.parametrize("harm", ["zeros", "noise", "cut"])
def test_what_lies_on_good_pages_of_a_damaged_ledger_is_read(tmp_path: Path, harm: str) -> None:
    """Three of the pages that hold 3,000 events are overwritten, or the end of the file is gone."""
    path = a_run.ended_run(tmp_path) / "ledger.db"
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.executemany(
            "INSERT INTO events VALUES (1, 101.0, 0.0, 'note', ?)",
            [(f'{{"number": {number}, "text": "{"x" * 80}"}}',) for number in range(3000)],
        )
    data, page = bytearray(path.read_bytes()), 4096
    assert len(data) > 60 * page, "the events are on many pages"
    if harm == "cut":
        path.write_bytes(data[: len(data) - 20 * page])
    else:
        for number in (40, 41, 55):
            filler = bytes(page) if harm == "zeros" else bytes(range(256)) * (page // 256)
            data[number * page : (number + 1) * page] = filler
        path.write_bytes(data)
    records = read_ledger(path)
    seen = {one.data.get("number") for one in records.sessions[0].events if one.kind == "note"}
    assert 1500 < len(seen) < 3000, len(seen)
    assert records.sessions[0].interruptions == (a_run.KILL, a_run.CHILD, a_run.HANG)
    (said,) = records.missing.values()
    assert said.startswith("events: ")
    assert "pages that cannot be read" in said


def test_add_is_cheap(ledger: Ledger) -> None:
    """Off the disk: a thousand adds take less than a tenth of a second on any machine."""
    began_s = time.perf_counter()
    for _ in range(1000):
        ledger.add(a_run.KILL)
    assert time.perf_counter() - began_s < 0.1


_CUT_SHORT = """
import os, sys
from pathlib import Path
from outlast.model.records import Event, Meta
from outlast.runtime.ledger.store import Ledger, read_ledger
path = Path(sys.argv[1])
index = f"{path}-shm"
ledger = Ledger.create(path, Meta("r", "n", 2, "1", 1.0, 1.0), pid=os.getpid())
for at_s in (1.0, 2.0, 3.0):
    ledger.add(Event(at_s, 1.0, "told", {"text": "a"}))
    ledger.flush()
    os.truncate(index, 0)
ledger.end_session(ended_s=5.0, state="ended", exit_code=0, reason="")
os.truncate(index, 0)
ledger.close()
(session,) = read_ledger(path).sessions
print(len(session.events), session.session.state)
"""


def test_cutting_the_index_short_does_not_end_the_writer(tmp_path: Path) -> None:
    """SQLite maps ledger.db-shm: reading behind its end is SIGBUS. A process of its own tries."""
    done = subprocess.run(
        [sys.executable, "-c", _CUT_SHORT, str(tmp_path / "ledger.db")],
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout) == (0, "3 ended\n"), done
