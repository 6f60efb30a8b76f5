"""If the ledger cannot be written, only the account suffers, never the training or its exit
code.
"""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from tests.drills._run import Drill, Outcome

pytestmark = pytest.mark.timeout(150)
STEPS = 60


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Let another program hold a lock on the ledger."""
    with closing(sqlite3.connect(folder / "run" / "ledger.db", timeout=30)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield
        other.rollback()


def trained_to_the_end(outcome: Outcome, steps: int = STEPS) -> None:
    assert outcome.code == 0, str(outcome)
    assert max(step for _, step, _ in outcome.commits) == steps, str(outcome)
    assert sorted(outcome.digests) == [0, 1, 2, 3], str(outcome)
    assert "Traceback" not in outcome.stderr, str(outcome)


@pytest.mark.drill
def test_a_ledger_that_is_locked_until_the_end_is_a_warning(tmp_path: Path) -> None:
    """A rank is killed meanwhile, and its recovery does not wait for the lock."""
    with Drill(tmp_path, "ddp.py", "--steps", STEPS) as drill:
        drill.until(lambda: drill.step >= 5, "step 5")
        with locked(tmp_path):
            os.kill(drill.pid_of(1), signal.SIGKILL)
            outcome = drill.finish()
    trained_to_the_end(outcome)
    assert "warning: the ledger lacks this run's end" in outcome.stderr, str(outcome)
    assert "locked" in outcome.stderr, str(outcome)


@pytest.mark.drill
@pytest.mark.timeout(300)
def test_a_ledger_that_was_locked_for_a_while_lacks_nothing(tmp_path: Path) -> None:
    steps = 1_000
    with Drill(tmp_path, "ddp.py", "--steps", steps, within_s=240.0) as drill:
        drill.until(lambda: drill.step >= 5, "step 5")
        with locked(tmp_path):
            os.kill(drill.pid_of(1), signal.SIGKILL)
            drill.until(
                lambda: "tried again each second" in (tmp_path / "stderr").read_text(), "it is told"
            )
        outcome = drill.finish()
    trained_to_the_end(outcome, steps)
    assert outcome.stderr.count("tried again each second") == 1, str(outcome)
    assert "can be written again" in outcome.stderr, str(outcome)
    assert outcome.report["state"] == "ended", str(outcome)
    outcome.ledger_is_sound()


@pytest.mark.drill
@pytest.mark.parametrize("size", [0, 100, 5000])
def test_a_ledger_that_was_cut_short_is_a_warning(tmp_path: Path, size: int) -> None:
    with Drill(tmp_path, "ddp.py", "--steps", STEPS) as drill:
        drill.until(lambda: drill.step >= 5, "step 5")
        for name in ("ledger.db", "ledger.db-wal"):  # not ledger.db-shm, which is memory of SQLite
            os.truncate(tmp_path / "run" / name, size)
        outcome = drill.finish()
    trained_to_the_end(outcome)


@pytest.mark.drill
@pytest.mark.parametrize("what", ["removed", "moved", "ledger"])
def test_a_run_folder_that_is_gone_is_a_warning_at_once(tmp_path: Path, what: str) -> None:
    folder = tmp_path / "run"
    with Drill(tmp_path, "ddp.py", "--steps", 400) as drill:
        drill.until(lambda: drill.step >= 5, "step 5")
        if what == "ledger":
            (folder / "ledger.db").unlink()
        elif what == "moved":
            folder.rename(tmp_path / "elsewhere")
        else:
            shutil.rmtree(folder)
        drill.until(lambda: "training goes on" in (tmp_path / "stderr").read_text(), "it is told")
        os.kill(drill.pid_of(1), signal.SIGKILL)
        outcome = drill.finish()
    trained_to_the_end(outcome, 400)
    assert outcome.stderr.count("training goes on, and what is written there is lost") == 1, str(
        outcome
    )
