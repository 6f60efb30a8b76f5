"""A launcher stands still while a rank dies, and all times are counted from the fault."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from tests.drills._run import Drill

pytestmark = [pytest.mark.drill, pytest.mark.timeout(120)]
HELD_UP_S = 4.0


def test_time_that_a_stopped_launcher_missed_is_booked_as_detection(tmp_path: Path) -> None:
    """Method: SIGSTOP to the launcher, SIGKILL to rank 1, and SIGCONT to the launcher 4 s later.

    The other rank waits in the vote all that time. Of its seconds, only the step counts as
    repeated.
    """
    steps = ("--steps", 40, "--pause", 0.05)
    with Drill(tmp_path, "ddp.py", *steps, workers=2, flags=("--spares", 1)) as drill:
        drill.until(lambda: drill.step >= 8, "step 8")
        launcher = drill.process.pid
        os.kill(launcher, signal.SIGSTOP)
        try:
            os.kill(drill.pid_of(1), signal.SIGKILL)
            time.sleep(HELD_UP_S)  # this is the length of the fault itself
        finally:
            os.kill(launcher, signal.SIGCONT)
        outcome = drill.finish()
    assert outcome.code == 0, str(outcome)
    outcome.ledger_is_sound()
    (one,) = outcome.interruptions
    assert one["detected_s"] - one["fault_s"] > HELD_UP_S - 1.0, str(outcome)
    assert one["mttr_s"] > HELD_UP_S - 1.0, str(outcome)
    seconds = outcome.report["rank_seconds"]
    assert seconds["detection"] > HELD_UP_S - 1.0, seconds
    assert seconds["repeated"] < 1.0, seconds
