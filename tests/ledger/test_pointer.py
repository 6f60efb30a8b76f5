"""A ledger that lies on the disk of one machine: the pointer and the copies in the run's folder."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from outlast.errors import RunFolderError, UsageError
from outlast.model import limits
from outlast.model.records import Event
from outlast.runtime.evidence.incidents import read_incidents
from outlast.runtime.folders import mounts
from outlast.runtime.folders.run_files import ledger_changed
from outlast.runtime.folders.run_folder import RunFolder
from outlast.runtime.ledger import pointer
from outlast.runtime.ledger.copier import CHECKPOINT, LedgerCopier
from outlast.runtime.ledger.foreign import write_records
from outlast.runtime.ledger.pointer import find_ledger, read_pointer
from outlast.runtime.ledger.store import Ledger, read_ledger
from outlast.runtime.ledger.view import look
from tests.ledger.a_run import META

SAVED = Event(1.0, 2.0, CHECKPOINT, {"step": 5, "folder": "x"})


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let copies be made at once."""
    monkeypatch.setattr(limits, "LEDGER_FLUSH_S", 0.001)


def begun(tmp_path: Path) -> tuple[RunFolder, Ledger]:
    """Begin a run in the folder `run`, whose ledger lies under the folder `state`."""
    folder = RunFolder.create(
        tmp_path / "run", name="toy", version="0.1.0", options={}, state=tmp_path / "state"
    )
    ledger = Ledger.create(folder.ledger, META, pid=os.getpid())
    folder.point_to_ledger()
    return folder, ledger


@contextlib.contextmanager
def copied(folder: RunFolder) -> Iterator[tuple[LedgerCopier, list[str]]]:
    told: list[str] = []
    copier = LedgerCopier(folder.ledger, folder.path)
    copier.begin(tell=told.append)
    try:
        yield copier, told
    finally:
        copier.close(is_last=False)


def until(condition: Callable[[], object], what: str) -> None:
    end_s = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end_s, what
        time.sleep(0.005)


def elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this process run on another machine from here on."""
    monkeypatch.setattr(pointer, "this_machine", lambda: "another one")


def events(path: Path) -> list[str]:
    return [one.kind for part in look(str(path)).records.sessions for one in part.events]


def in_copy(folder: RunFolder) -> list[str]:
    sessions = read_ledger(folder.path / "ledger.db").sessions
    return [one.kind for part in sessions for one in part.events]


def test_readers_follow_the_pointer_on_the_machine_that_it_names(tmp_path: Path) -> None:
    """Other users of this machine cannot read the ledger, as they cannot read run.json."""
    folder, ledger = begun(tmp_path)
    assert not (folder.path / "ledger.db").exists()
    assert folder.ledger == tmp_path / "state" / folder.run / "ledger.db"
    assert folder.ledger.parent.stat().st_mode & 0o777 == 0o700
    place = find_ledger(folder.path)
    assert (place.path, place.note) == (folder.ledger, "")
    ledger.add(SAVED)
    before = ledger_changed(folder.path)
    ledger.flush()
    assert ledger_changed(folder.path) != before
    view = look(str(folder.path))
    assert (view.copy_of_ledger, view.is_over) == (None, False)
    assert events(folder.path) == [CHECKPOINT]
    assert folder.missing() == ""
    ledger.close()
    folder.close()


def test_other_machines_read_the_copy_and_say_how_old_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, ledger = begun(tmp_path)
    with monkeypatch.context() as away:
        elsewhere(away)
        with pytest.raises(RunFolderError, match="and there is no copy yet") as caught:
            look(str(folder.path))
        assert str(caught.value.hint).startswith("run the command on ")
    with copied(folder) as (copier, told):
        until(lambda: (folder.path / "ledger.db").exists(), "the first copy")
        ledger.add(SAVED)
        ledger.flush()
        copier.note(SAVED)
        until(lambda: in_copy(folder) == [CHECKPOINT], "a copy with the checkpoint")
    elsewhere(monkeypatch)
    assert events(folder.path) == [CHECKPOINT]
    view = look(str(folder.path))
    assert view.copied_ago_s is not None
    assert 0 <= view.copied_ago_s < 20
    assert view.note.startswith("This is a copy of the ledger, ")
    assert str(folder.ledger) in view.note
    assert not view.is_over, "its launcher holds the lock"
    assert view.now_s == view.records.sessions[-1].session.seen_s
    assert sorted(one.name for one in folder.path.iterdir() if "ledger" in one.name) == [
        "ledger.db",
        "ledger.json",
    ], "SQLite left no file beside the copy"
    (line,) = told
    assert str(folder.ledger) in line
    with pytest.raises(UsageError, match=r"/run/ledger\.db holds no verdicts"):
        read_incidents(str(folder.path))
    ledger.close()
    folder.close()


def test_at_the_end_the_folder_is_that_of_any_other_run(tmp_path: Path) -> None:
    folder, ledger = begun(tmp_path)
    with copied(folder) as (copier, told):
        ledger.add(SAVED)
        ledger.end_session(ended_s=101.0, state="ended", exit_code=0, reason="done")
        ledger.close()
        copier.close(is_last=True)
        folder.close()
        assert len(told) == 1
    assert read_pointer(folder.path) is None
    assert list((tmp_path / "state").iterdir()) == []
    view = look(str(folder.path))
    assert (view.state, view.note, events(folder.path)) == ("ended", "", [CHECKPOINT])


def test_the_last_copy_is_made_of_a_run_that_failed_before_it_began(tmp_path: Path) -> None:
    folder, ledger = begun(tmp_path)
    ledger.end_session(ended_s=101.0, state="failed", exit_code=1, reason="no room")
    ledger.close()
    LedgerCopier(folder.ledger, folder.path).close(is_last=True)
    folder.close()
    assert look(str(folder.path)).state == "failed"
    assert read_pointer(folder.path) is None


def test_a_folder_that_takes_no_copy_is_reported_once(tmp_path: Path) -> None:
    """The ledger stays, and so does the pointer. Once the folder can be written, that is said."""
    folder, ledger = begun(tmp_path)
    hindrance = folder.path / "ledger.db.part"
    hindrance.mkdir()
    with copied(folder) as (copier, told):

        def noted() -> list[str]:
            copier.note(SAVED)
            return told

        until(lambda: len(noted()) == 2, "a warning")
        assert told[1].startswith("warning: no copy of the ledger can be put into")
        assert str(folder.ledger) in told[1]
        hindrance.rmdir()
        until(lambda: len(noted()) == 3, "the end of that")
        assert told[2].endswith("again")

        def hindered() -> bool:
            try:
                hindrance.mkdir()
            except FileExistsError:
                return False  # the thread is writing one more copy
            return True

        until(hindered, "a moment without a copy")
        ledger.close()
        copier.close(is_last=True)
    assert folder.ledger.exists()
    assert read_pointer(folder.path) is not None
    folder.close()


def resumed(path: Path, state: Path | None) -> RunFolder:
    folder = RunFolder.resume(path, state=state).bring_ledger()
    folder.point_to_ledger()
    return folder


def test_a_killed_launcher_is_followed_by_one_on_its_machine(tmp_path: Path) -> None:
    """The copy in the folder is older, and is not used."""
    folder, ledger = begun(tmp_path)
    with copied(folder):
        until(lambda: (folder.path / "ledger.db").exists(), "the first copy")
    ledger.add(SAVED)
    ledger.flush()
    ledger.close()
    folder.close()
    again = resumed(folder.path, tmp_path / "state")
    assert (again.ledger, again.note) == (folder.ledger, "")
    assert events(again.path) == [CHECKPOINT]
    again.close()


def test_a_killed_launcher_is_followed_by_one_on_another_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It goes on from the copy, and says what that lacks. From then on the pointer is its own."""
    folder, ledger = begun(tmp_path)
    with copied(folder):
        until(lambda: (folder.path / "ledger.db").exists(), "the first copy")
    ledger.add(SAVED)
    ledger.flush()
    ledger.close()
    folder.close()
    elsewhere(monkeypatch)
    again = resumed(folder.path, tmp_path / "other")
    assert again.ledger == tmp_path / "other" / folder.run / "ledger.db"
    assert "without what was recorded since then" in again.note
    assert str(folder.ledger) in again.note
    place = find_ledger(folder.path)
    assert (place.path, place.note, events(folder.path)) == (again.ledger, "", [])
    again.close()


def test_a_run_that_is_resumed_on_a_disk_takes_its_ledger_back(tmp_path: Path) -> None:
    folder, ledger = begun(tmp_path)
    ledger.add(SAVED)
    ledger.flush()
    ledger.close()
    folder.close()
    again = resumed(folder.path, None)
    assert (again.ledger, again.note) == (folder.path / "ledger.db", "")
    assert read_pointer(folder.path) is None
    assert events(folder.path) == [CHECKPOINT]
    again.close()


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"node": 1, "machine": "a", "ledger": "/x", "copied_wall_s": 0}',
     '{"node": "a", "machine": "a", "ledger": "x", "copied_wall_s": 0}', "{" * 100_000],
)  # fmt: skip  # one text a line would fill a page
def test_a_damaged_pointer_is_refused(tmp_path: Path, text: str) -> None:
    folder, ledger = begun(tmp_path)
    (folder.path / "ledger.json").write_text(text)
    with pytest.raises(RunFolderError, match=r"ledger\.json cannot be read") as caught:
        look(str(folder.path))
    assert "remove it" in str(caught.value.hint)
    assert len(ledger_changed(folder.path)) == 9
    ledger.close()
    folder.close()


def test_nothing_changes_where_the_ledger_lies_in_the_folder(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "run", name="toy", version="0.1.0", options={})
    ledger = Ledger.create(folder.ledger, META, pid=os.getpid())
    folder.point_to_ledger()
    with copied(folder) as (copier, told):
        copier.note(SAVED)
        copier.close(is_last=True)
        assert told == []
    assert look(str(folder.path)).path == folder.path
    assert not (folder.path / "ledger.json").exists()
    ledger.close()
    folder.close()


def test_imported_records_are_written_on_a_disk_of_this_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Method: a table of mounts in which the folder of runs is on NFS."""
    folder, ledger = begun(tmp_path / "first")
    ledger.add(SAVED)
    ledger.end_session(ended_s=101.0, state="ended", exit_code=0, reason="done")
    records = ledger.read()
    ledger.close()
    folder.close()
    table = tmp_path / "mountinfo"
    table.write_text(f"1 1 0:1 / / rw - ext4 x rw\n2 1 0:2 / {tmp_path}/far rw - nfs x rw\n")
    monkeypatch.setattr(mounts, "TABLE", table)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "near"))
    made: list[str] = []
    connect = sqlite3.connect

    def noted(path: str, **options: object) -> sqlite3.Connection:
        made.append(str(path))
        return connect(path, **options)  # type: ignore[call-overload, no-any-return]

    monkeypatch.setattr(sqlite3, "connect", noted)
    path = write_records(tmp_path / "far" / "run", records, options={})
    assert made
    assert not any("/far/" in one for one in made), "SQLite has opened a file on NFS"
    assert events(path) == [CHECKPOINT]
    assert "immutable=1" in made[-1], "it is only read there"
    assert read_pointer(path) is None
    assert list((tmp_path / "near" / "outlast").iterdir()) == []
