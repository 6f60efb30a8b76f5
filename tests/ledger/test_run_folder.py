"""runtime/folders/run_folder.py: where a run lies, who holds it, and which one is meant."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from outlast.errors import CapacityError, RunFolderError
from outlast.runtime.folders import run_folder
from outlast.runtime.folders.run_folder import RunFolder

HOLDER = """
import sys, time
from pathlib import Path
from outlast.runtime.folders.run_folder import RunFolder
folder = RunFolder.create(Path(sys.argv[1]), name="held", version="0.1.0", options={})
print("held", flush=True)
time.sleep(60)
"""


def make(path: Path | None, root: Path | None = None, name: str = "toy") -> RunFolder:
    return RunFolder.create(
        path, name=name, version="0.1.0", options={"steps": 3}, root=root or Path("runs")
    )


@contextlib.contextmanager
def held_by_another(path: Path) -> Iterator[subprocess.Popen[str]]:
    other = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(path)], stdout=subprocess.PIPE, text=True
    )
    assert other.stdout is not None
    try:
        assert other.stdout.readline() == "held\n"
        yield other
    finally:
        other.kill()
        other.wait(10)
        other.stdout.close()


def test_a_new_run_has_its_parts_and_its_card(tmp_path: Path) -> None:
    with contextlib.closing(make(None, tmp_path, name="examples/train gpt.py")) as folder:
        assert folder.path.parent == tmp_path
        assert folder.path.name.endswith("Z-examples_train_gpt.py")
        assert all(part.is_dir() for part in (folder.logs, folder.evidence, folder.checkpoints))
        card = json.loads((folder.path / "run.json").read_text())
        assert (card["run"], card["version"], card["pid"], card["options"]) == (
            folder.run,
            "0.1.0",
            os.getpid(),
            {"steps": 3},
        )
        assert folder.run.startswith(folder.path.name)
        # it holds the script's arguments
        assert (folder.path / "run.json").stat().st_mode & 0o777 == 0o600


def test_two_runs_of_the_same_second_get_two_folders_and_two_ids(tmp_path: Path) -> None:
    folders = [make(None, tmp_path) for _ in range(5)]
    assert len({folder.path for folder in folders}) == len({folder.run for folder in folders}) == 5
    for folder in folders:
        folder.close()


def test_a_folder_in_use_names_its_holder(tmp_path: Path) -> None:
    with held_by_another(tmp_path / "run") as other:
        assert run_folder.holder(tmp_path / "run") == other.pid
        for attempt in (
            lambda: make(tmp_path / "run"),
            lambda: RunFolder.resume(tmp_path / "run"),
        ):
            with pytest.raises(RunFolderError, match=f"in use by process {other.pid}"):
                attempt()


def test_the_lock_goes_with_its_holder(tmp_path: Path) -> None:
    """Method: SIGKILL to the holder; the folder is free at once and can be resumed."""
    with held_by_another(tmp_path / "run") as other:
        other.send_signal(signal.SIGKILL)
        other.wait(10)
        assert run_folder.holder(tmp_path / "run") is None
        with contextlib.closing(RunFolder.resume(tmp_path / "run")) as folder:
            assert folder.name == "held"
            assert run_folder.holder(folder.path) == os.getpid()


def test_programs_that_the_launcher_starts_do_not_hold_the_lock(tmp_path: Path) -> None:
    """Method: a child that inherits all it can.

    The kernel closes the descriptor a moment after the program has begun.
    """
    folder = make(tmp_path / "run")
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], close_fds=False)
    try:
        folder.close()
        until_s = time.monotonic() + 5
        while run_folder.holder(folder.path) is not None and time.monotonic() < until_s:
            time.sleep(0.01)
        assert run_folder.holder(folder.path) is None
        assert child.poll() is None
    finally:
        child.kill()
        child.wait(10)


def test_a_reader_that_looks_does_not_keep_a_launcher_out(tmp_path: Path) -> None:
    """Method: a shared lock, as a look takes it, is held while a launcher comes; let go soon after,
    the launcher gets in.
    """
    make(tmp_path / "run").close()
    looker = subprocess.Popen(
        [
            sys.executable,
            "-c",
            (
                "import fcntl, sys, time; f = open(sys.argv[1]); fcntl.flock(f, fcntl.LOCK_SH);"
                " print('looks', flush=True); time.sleep(0.05)"
            ),
            str(tmp_path / "run" / "lock"),
        ],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert looker.stdout is not None
    assert looker.stdout.readline() == "looks\n"
    RunFolder.resume(tmp_path / "run").close()
    looker.wait(10)
    looker.stdout.close()


def test_resume_keeps_the_run_and_says_who_holds_it_now(tmp_path: Path) -> None:
    first = make(tmp_path / "run")
    first.close()
    with contextlib.closing(RunFolder.resume(first.path)) as again:
        assert run_folder.read_card(again.path)["version"] == "0.1.0", "nothing is written yet"
        again.write_card("0.1.1", {"resume": True})
        assert (again.run, again.name) == (first.run, first.name)
        assert run_folder.read_card(again.path)["version"] == "0.1.1"


def test_a_folder_that_holds_a_run_is_not_made_anew(tmp_path: Path) -> None:
    make(tmp_path / "run").close()
    with pytest.raises(RunFolderError, match="holds a run already") as caught:
        make(tmp_path / "run")
    assert "--resume" in caught.value.hint


@pytest.mark.parametrize(
    ("card", "words"),
    [
        ('{"run": "r", "name": "r", "format": 99, "version": "9.0"}', "written by outlast 9.0"),
        ('{"run": "r"}', "not what outlast writes"),
        ("[]", "not what outlast writes"),
        ("{", "cannot be read"),
    ],
)
def test_a_folder_of_another_version_or_a_damaged_one_is_refused(
    tmp_path: Path, card: str, words: str
) -> None:
    (tmp_path / "run.json").write_text(card)
    for attempt in (
        lambda: RunFolder.resume(tmp_path),
        lambda: run_folder.find(str(tmp_path)),
    ):
        with pytest.raises(RunFolderError, match=words) as caught:
            attempt()
        assert caught.value.hint


def test_a_folder_that_cannot_be_made_is_a_capacity_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CapacityError, match="cannot be written") as caught:
        make(tmp_path / "file" / "run")
    assert caught.value.hint == "name another folder with --run-dir", "no space would help here"
    with pytest.raises(RunFolderError, match="is a file"):
        make(tmp_path / "file")


# --- which one is meant ---------------------------------------------------------------------------


def test_a_run_is_found_by_path_by_name_by_id_and_as_the_newest(tmp_path: Path) -> None:
    first, second = make(tmp_path / "b-first"), make(tmp_path / "a-second")
    first.close()
    second.close()
    (tmp_path / "no run").mkdir()
    assert run_folder.find(None, root=tmp_path) == second.path
    for name in (str(first.path), "b-first", first.run):
        assert run_folder.find(name, root=tmp_path) == first.path
    with contextlib.closing(RunFolder.resume(first.path)) as again:
        again.write_card("0.1.0", {})
    assert run_folder.newest(tmp_path) == first.path, "the one that was resumed last"


def test_a_name_that_is_not_there_gets_the_nearest_one(tmp_path: Path) -> None:
    make(tmp_path / "train_gpt").close()
    with pytest.raises(RunFolderError, match="no run trian_gpt") as caught:
        run_folder.find("trian_gpt", root=tmp_path)
    assert "train_gpt" in caught.value.hint
    with pytest.raises(RunFolderError, match="there is no run under"):
        run_folder.find(None, root=tmp_path / "elsewhere")


@pytest.mark.parametrize("given", ["", "runs"])
def test_a_folder_that_holds_runs_is_answered_with_one_of_them(tmp_path: Path, given: str) -> None:
    """Who stands in the wrong folder names the one above."""
    (tmp_path / "runs" / "other").mkdir(parents=True)
    made = make(tmp_path / "runs" / "train")
    made.close()
    with pytest.raises(RunFolderError, match="it has no run") as caught:
        run_folder.find(str(tmp_path / given))
    assert (
        caught.value.hint
        == f"{tmp_path / 'runs'} holds runs: name one of them, such as {made.path}"
    )
    with pytest.raises(RunFolderError) as caught:
        run_folder.find(str(tmp_path / "runs" / "other"))
    assert caught.value.hint == "name a folder that `outlast run` made"


def test_a_folder_says_what_of_it_is_missing(tmp_path: Path) -> None:
    path, elsewhere = tmp_path / "run", tmp_path / "moved"
    with contextlib.closing(make(path, tmp_path)) as folder:
        folder.ledger.touch()
        assert folder.missing() == ""
        folder.ledger.unlink()
        assert folder.missing() == f"the ledger {folder.ledger} was removed"
        path.rename(elsewhere)
        assert folder.missing() == f"the run's folder {path} was moved or removed"
        path.mkdir()
        assert folder.missing() == f"the lock of {path} was removed"
        (path / "lock").touch()
        assert folder.missing() == f"another folder has taken the place of {path}"
        (path / "lock").unlink()
        path.rmdir()
        elsewhere.rename(path)
        folder.ledger.touch()
        assert folder.missing() == ""
