"""What may be resumed, and which steps are lost by it; without a process."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from outlast.app.launch import resuming
from outlast.app.launch.resuming import Beginning
from outlast.engine.coordinator.restore_sources import Restart
from outlast.errors import UsageError
from outlast.model.records import RESUMED, Records
from outlast.runtime.ledger.store import read_ledger
from outlast.runtime.tiers.vault import Vault
from tests.ledger import a_run
from tests.tiers.divided import A, replicated, sharded


def records_of(folder: Path) -> Records:
    return read_ledger(folder / "ledger.db")


def plain(records: Records) -> Records:
    """Return the records of a script that makes no outlast call."""
    return replace(
        records,
        sessions=tuple(
            replace(part, events=tuple(one for one in part.events if one.kind != "script"))
            for part in records.sessions
        ),
    )


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


def test_another_world_size_needs_a_checkpoint_to_divide(tmp_path: Path) -> None:
    """A training that begins again has nothing to divide, and neither has a plain script."""
    records = records_of(a_run.ended_run(tmp_path, state="failed"))
    with pytest.raises(UsageError, match="has had 2 ranks, this command asks for 4") as caught:
        resuming.check(records, root=tmp_path, workers=4, from_scratch=False)
    assert "resume with 2 ranks" in caught.value.hint
    resuming.check(records, root=tmp_path, workers=4, from_scratch=True)
    resuming.check(plain(records), root=tmp_path, workers=4, from_scratch=False)


@pytest.mark.parametrize("before", [2, 4], ids=["the session before it", "an earlier session"])
def test_the_newest_checkpoint_decides_what_can_be_divided(tmp_path: Path, before: int) -> None:
    """Also where the newest session had as many ranks as this one, and has saved nothing."""
    records = records_of(a_run.ended_run(tmp_path, state="failed"))
    sessions = (
        replace(part, session=replace(part.session, world_size=before)) for part in records.sessions
    )
    records = replace(records, sessions=tuple(sessions))
    root = tmp_path / "checkpoints"
    replicated(root, 10, run=records.meta.run)
    resuming.check(records, root=root, workers=4, from_scratch=False)
    sharded(root, 20, {0: {"model.a": A}, 1: {"model.b": A}}, run=records.meta.run)
    with pytest.raises(UsageError, match="cannot be divided among 4: ranks hold parts") as caught:
        resuming.check(records, root=root, workers=4, from_scratch=False)
    assert (caught.value.exit_code, "resume with 2 ranks" in caught.value.hint) == (2, True)
    resuming.check(records, root=root, workers=2, from_scratch=False)


def test_shared_memory_of_other_ranks_is_passed_over(tmp_path: Path) -> None:
    """By the ledger, and by what lies there if a launcher was killed before it used it."""
    records = records_of(a_run.ended_run(tmp_path, state="failed"))
    first = records.sessions[0]
    for size, there, passed in ((2, (0, 1), ""), (3, (0, 1), "is of 2"), (2, (0, 1, 2), "is of 3")):
        second = replace(first, session=replace(first.session, session=2, world_size=size))
        both = replace(records, sessions=(first, second))
        vault = cast(Vault, SimpleNamespace(ranks=lambda there=there: there))
        said = resuming.passes_over_vault(both, vault)
        assert passed in said if passed else not said, (size, there, said)


def test_a_divided_state_says_what_is_the_same_and_what_is_not(tmp_path: Path) -> None:
    start = Restart(7, "checkpoint", "checkpoint", "here")
    fewer, more, same = (Beginning(start, ranks=ranks) for ranks in ((3, 4), (4, 3), (4, 4)))
    assert "the state of 4 ranks is divided among 3" in fewer.describe(tmp_path)
    assert "new ranks" not in fewer.describe(tmp_path)
    assert "new ranks begin with buffers and objects of rank 0" in more.describe(tmp_path)
    assert "is divided among" not in same.describe(tmp_path)


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


def test_a_killed_launcher_need_not_have_noted_any_step_of_a_plain_script(tmp_path: Path) -> None:
    """Its workers told of 35 steps, and sealed no image, as those that call outlast do."""
    records = plain(records_of(a_run.ended_run(tmp_path, state="failed")))
    parts = tuple(replace(part, steps=()) for part in records.sessions)
    records, root = replace(records, sessions=parts), tmp_path / "none"
    vault = Vault.create(tmp_path / "vault", records.meta.run)
    try:
        for own in (True, False):
            found = resuming.find_beginning(
                root, records, vault=vault, seen_step=35, from_scratch=False
            )
            assert (found.own, found.committed) == (own, 35)
            vault.reserve(0, 4096, 0)
    finally:
        vault.remove()
