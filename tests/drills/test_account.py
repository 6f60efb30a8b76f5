"""The account of a run and the times of its interruptions agree, with real processes."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from outlast.model.goodput import account_session
from outlast.model.terms import Cause
from outlast.runtime.ledger.store import read_ledger
from tests.drills._run import Drill

pytestmark = pytest.mark.timeout(150)
SLACK_S = 0.1


@pytest.mark.drill
@pytest.mark.parametrize("flags", [(), ("--spares", 1)], ids=["fork", "spare"])
def test_a_kill_costs_each_rank_what_its_times_say(tmp_path: Path, flags: tuple[object]) -> None:
    """Method: one of two ranks with 216 MB of state is killed.

    From detection until the state is in place, the replaced rank books only regroup and restore. So
    does the survivor from the moment at which it stands still, also while it waits for the other
    rank to load its state.
    """
    with Drill(tmp_path, "heavy.py", "--steps", 12, workers=2, flags=flags) as drill:
        drill.until(lambda: drill.step >= 4, "step 4")
        os.kill(drill.pid_of(1), signal.SIGKILL)
        outcome = drill.finish()
    assert outcome.code == 0, str(outcome)
    outcome.ledger_is_sound()
    records = read_ledger(drill.folder / "ledger.db")
    part = records.sessions[0]
    books = account_session(
        world_size=2,
        started_s=part.session.started_s,
        over_s=part.session.over_s,
        now_s=part.session.over_s,
        alive=False,
        lives=part.lives,
        interruptions=part.interruptions,
    )
    (one,) = part.interruptions
    assert one.fault_s is not None
    assert one.left_s is not None
    assert one.restored_s is not None
    survivor, replaced = (rank[Cause.REGROUP] + rank[Cause.RESTORE] for rank in books.by_rank)
    assert replaced == pytest.approx(one.restored_s - one.detected_s, abs=SLACK_S), str(outcome)
    assert survivor <= one.restored_s - one.detected_s + SLACK_S, str(outcome)
    assert survivor >= one.restored_s - one.left_s - SLACK_S, str(outcome)
    detection_s = one.detected_s - one.fault_s
    assert books.rank_seconds[Cause.DETECTION] <= 2 * detection_s + SLACK_S, str(outcome)
    assert books.rank_seconds[Cause.RESTORE] > 0, str(outcome)


@pytest.mark.drill
def test_an_interruption_lasts_until_a_step_with_the_lost_rank(
    tmp_path: Path,
) -> None:
    """Rank 1 is killed while it votes, so its peer finishes the step in flight at once and alone.

    That step does not end the interruption: its times say when the rank was back.
    """
    kill = {"mark": "voting", "rank": 1, "step": 4, "do": "SIGKILL"}
    with Drill(tmp_path, "heavy.py", "--steps", 8, workers=2, marks=[kill]) as drill:
        outcome = drill.finish()
        assert drill.fired()
    assert outcome.code == 0, str(outcome)
    (one,) = outcome.interruptions
    assert "had sealed step 4 as prepared" in one["reason"], str(outcome)
    assert one["detected_s"] < one["left_s"] <= one["regrouped_s"], one
    assert one["regrouped_s"] <= one["restored_s"] <= one["resumed_s"], one
    started_s = one["restored_s"] - one["detected_s"]  # a process, its imports, and 216 MB
    assert one["mttr_s"] >= started_s > 0.02, one
    outcome.ledger_is_sound()
