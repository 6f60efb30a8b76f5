"""What may be resumed, and which steps are lost by it; without a process."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from outlast.app import resuming
from outlast.app.resuming import Beginning
from outlast.engine.coordinator.restore_sources import Restart
from outlast.errors import UsageError
from outlast.model.records import RESUMED, Records
from outlast.runtime.ledger.store import read_ledger
from tests.ledger import a_run


def records_of(folder: Path) -> Records:
    return read_ledger(folder / "ledger.db")


def plain(records: Records) -> Records:
    """Return the records of a script that makes no outlast call."""
    return replace(records, sessions=tuple(
        replace(part, events=tuple(one for one in part.events if one.kind != "script"))
        for part in records.sessions
    ))  # fmt: skip


def test_a_run_that_ended_well_needs_a_checkpoint_or_a_wish_to_start_over(tmp_path: Path) -> None:
    records, root = records_of(a_run.ended_run(tmp_path)), tmp_path / "none"
    with pytest.raises(UsageError, match="ended well at step 200, and has no checkpoint") as caught:
        resuming.check(records, root=root, workers=2, from_scratch=False)
    assert "--from-scratch" in caught.value.hint
    resuming.check(records, root=root, workers=2, from_scratch=True)


def test_a_plain_script_that_ended_well_is_not_told_of_checkpoints(tmp_path: Path) -> None:
    """--checkpoint-every would keep nothing of it: what it loads by itself decides."""
    records = plain(records_of(a_run.ended_run(tmp_path)))
    with pytest.raises(UsageError, match="makes no outlast call") as caught:
        resuming.check(records, root=tmp_path / "none", workers=2, from_scratch=False)
    assert "--from-scratch" in caught.value.hint
    assert "--checkpoint-every" not in caught.value.hint


@pytest.mark.parametrize("state", ["failed", "stopped"])
def test_a_run_that_did_not_end_well_may_begin_at_step_0(tmp_path: Path, state: str) -> None:
    records = records_of(a_run.ended_run(tmp_path, state=state))
    resuming.check(records, root=tmp_path / "none", workers=2, from_scratch=False)


def test_another_world_size_is_refused(tmp_path: Path) -> None:
    records = records_of(a_run.ended_run(tmp_path, state="failed"))
    with pytest.raises(UsageError, match="this run has 2 ranks") as caught:
        resuming.check(records, root=tmp_path, workers=4, from_scratch=True)
    assert "--nproc-per-node 2" in caught.value.hint


def test_steps_after_the_beginning_are_lost(tmp_path: Path) -> None:
    """Of what the ledger knows, or of what the workers told of if that is newer."""
    records = records_of(a_run.ended_run(tmp_path, state="failed"))
    for seen_step, lost in ((0, 200), (203, 203)):
        found = resuming.find_beginning(
            tmp_path / "none", records, vault=None, seen_step=seen_step, from_scratch=False
        )
        assert (found.start.step, found.steps_lost, found.highest) == (0, lost, lost)
        assert f"{lost} committed steps after it will be trained again" in found.describe(tmp_path)
    one = replace(Beginning(committed=9), start=Restart(7, "checkpoint", "checkpoint", "here"))
    assert one.steps_lost == 2
    assert (one.event().kind, one.event().data["steps_lost"]) == (RESUMED, 2)
    assert "at step 7 from here; 2 committed steps" in one.describe(tmp_path)


def test_a_script_without_outlast_calls_is_not_said_to_begin_at_step_0(tmp_path: Path) -> None:
    """Its own checkpoint decides, and the launcher does not know it."""
    records = records_of(a_run.ended_run(tmp_path, state="failed"))
    found = [
        resuming.find_beginning(tmp_path / "none", one, vault=None, seen_step=0, from_scratch=False)
        for one in (plain(records), records)
    ]
    assert [one.event().data.get("own") for one in found] == [True, None]
    said = found[0].describe(tmp_path)
    assert "its own checkpoint decides where it goes on; 200 steps had been done" in said
    assert "at step 0" not in said
