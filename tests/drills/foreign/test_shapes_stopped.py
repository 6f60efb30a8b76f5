"""Scripts of public shapes that are ended by Ctrl-C, or lose their launcher, and are resumed."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.drills._pids import alive, below, until
from tests.drills._run import Drill, Outcome, drilled
from tests.drills.foreign.test_shapes import RESUMES, UNCHANGED
from tests.drills.foreign.twenty import HERE, PACE_S, SCRIPTS, SLOWER, TIMES, UNTIL

pytestmark = [pytest.mark.drill, pytest.mark.timeout(400)]
SHAPES = ("gan", "distil", "callbacks")
PACED = str(HERE / "scripts" / "paced.py")
ENDS = ("Ctrl-C", "SIGKILL")
SAVES = ("--checkpoint-every", 1000)  # so that only the step of a stop is saved


def environment(name: str, pace_s: float) -> dict[str, str]:
    return {
        "PACED_S": str(pace_s),
        "PACED_UNTIL": str(UNTIL),
        "PACED_TIMES": str(TIMES.get(name, 1)),
    }


def end(drill: Drill, how: str) -> int:
    """End the run from outside, and return its newest step."""
    step: int = drill.status["step"]
    if how == "Ctrl-C":
        drill.process.send_signal(signal.SIGINT)
        return step
    pids = below(drill.process.pid)
    drill.process.kill()
    drill.process.wait(10)
    until("every process of the run has ended", lambda: not alive(pids), within_s=10.0)
    return step


def said_of_resuming(outcome: Outcome) -> str:
    return next(line for line in outcome.stderr.splitlines() if "resuming" in line)


@pytest.mark.parametrize("how", ENDS)
@pytest.mark.parametrize("name", SHAPES)
def test_an_adopted_shape_that_is_resumed_ends_with_the_same_bits(
    tmp_path: Path, name: str, how: str
) -> None:
    """After Ctrl-C the script goes on after the step that was committed then."""
    (tmp_path / "calm").mkdir()
    calm = drilled(tmp_path / "calm", PACED, SCRIPTS[name], workers=2, env=environment(name, 0.0))
    slow = environment(name, SLOWER.get(name, PACE_S))
    with Drill(tmp_path, PACED, SCRIPTS[name], workers=2, env=slow, flags=SAVES) as drill:
        drill.until(lambda: drill.status.get("step", 0) >= 30, "step 30")
        step = end(drill, how)
        if how == "Ctrl-C":
            stopped = drill.finish()
            assert stopped.code == 130, stopped
            assert stopped.report["steps"] >= step, (stopped.report["steps"], step)
    quick = environment(name, 0.0)
    again = drilled(
        tmp_path,
        PACED,
        SCRIPTS[name],
        workers=2,
        env=quick,
        flags=("--resume", *SAVES),
        within_s=240.0,
    )
    assert (again.code, calm.code) == (0, 0), again
    assert again.digests == calm.digests != {}, again
    if how == "Ctrl-C":  # otherwise it goes on from the newest copy, which may be older
        at = int(said_of_resuming(again).rpartition("at step ")[2].split()[0])
        assert at >= step, (said_of_resuming(again), step)


@pytest.mark.parametrize("name", SHAPES)
def test_an_unchanged_shape_is_ended_by_ctrl_c_and_begins_again(tmp_path: Path, name: str) -> None:
    """The script begins after its own checkpoint, or with its first step if it has none."""
    script = str(UNCHANGED / f"{name}.py")
    marks = [{"mark": "stepped", "rank": 0, "step": 43, "do": "sleep"}]
    with Drill(tmp_path, script, workers=2, marks=marks) as drill:
        drill.until(lambda: drill.fired(), "step 43")
        end(drill, "Ctrl-C")
        stopped = drill.finish()
    assert stopped.code == 130, stopped
    again = drilled(tmp_path, script, workers=2, flags=("--resume",), within_s=240.0)
    assert again.code == 0, again
    behind = 43 // RESUMES[name] * RESUMES[name] if name in RESUMES else 0
    lost = again.report["steps_lost_between_sessions"]
    assert lost in (43 - behind, 43 - behind - 1, 43 - behind + 1), (lost, said_of_resuming(again))
