"""Scripts of common shapes that use the calls for real loops: a function that draws batches, and a
resume from the script's own file.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.drills._run import Drill, Outcome
from tests.drills._scripts import go

DRAWS = str(Path(__file__).with_name("scripts") / "draws.py")


def struck(folder: Path, *arguments: str, at: tuple[int, ...], flags: tuple[str, ...]) -> Outcome:
    """Run draws.py on two ranks, and kill rank 1 at each of these steps."""
    folder.mkdir(exist_ok=True)
    with Drill(folder, DRAWS, *arguments, workers=2, flags=flags) as drill:
        for number, step in enumerate(at):
            drill.until(lambda step=step: drill.status.get("step", 0) >= step, f"step {step}")
            (pid,) = [one["pid"] for one in drill.status["workers"] if one["rank"] == 1]
            os.kill(pid, signal.SIGKILL)
            over = number + 1
            drill.until(lambda over=over: resumed(drill) == over, f"recovery {over}")
        outcome = drill.finish()
    assert outcome.code == 0, outcome
    assert all(one["steps_lost"] == 0 for one in outcome.interruptions), outcome
    assert len(outcome.interruptions) == len(at), outcome
    return outcome


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """Return an undisturbed run that draws each batch when its step begins."""
    return struck(tmp_path_factory.mktemp("calm"), "--no-prefetch", at=(), flags=())


@pytest.mark.drill
@pytest.mark.parametrize("spares", [0, 1])
def test_drawn_batches_are_the_same_after_kills(tmp_path: Path, calm: Outcome, spares: int) -> None:
    """Rank 1 is killed twice, and draws what its predecessor would have drawn. Neither kills nor
    prefetch change a bit, and no value is reported as carried.
    """
    slowly = ("--pause", "0.1")  # reading the status takes a while
    hit = struck(tmp_path, *slowly, at=(5, 16), flags=("--spares", str(spares)))
    assert hit.digests == calm.digests != {}, hit
    assert "not bit-exact" not in hit.stderr, hit
    assert "carried" not in hit.stderr, hit


@pytest.mark.drill
def test_a_script_resumes_from_its_own_file_by_first(tmp_path: Path) -> None:
    """Method: a run of 10 steps leaves a file. A second run begins from it, loses rank 1, then all
    ranks at once, and goes back to the file that it has written itself. The weights are those of a
    run without a stop, and only the steps since that file are lost.
    """
    own = tmp_path / "own"
    own.mkdir()
    calm = struck(tmp_path / "calm", "--own", str(tmp_path), at=(), flags=())
    (tmp_path / "own.pt").unlink()
    struck(tmp_path / "first", "--own", str(own), "--until", "10", at=(), flags=())
    (tmp_path / "second").mkdir()
    slowly = ("--own", str(own), "--pause", "0.2")  # reading the status takes a while
    with Drill(tmp_path / "second", DRAWS, *slowly, workers=2) as drill:
        drill.until(lambda: drill.status.get("step", 0) >= 12, "step 12")
        kill(drill, 1)
        drill.until(lambda: resumed(drill) == 1, "recovery of rank 1")
        drill.until(lambda: drill.status.get("step", 0) >= 18, "step 18")
        kill(drill, 0, 1)
        outcome = drill.finish()
    assert outcome.code == 0, outcome
    assert outcome.digests == calm.digests != {}, outcome
    assert "begins behind 10" in outcome.stdout, outcome
    behind = int(outcome.stdout.rpartition("begins behind ")[2].split()[0])
    assert behind in (15, 20), outcome
    alone, both = (one["steps_lost"] for one in outcome.interruptions)
    assert alone == 0, outcome
    assert both <= 30 - behind, outcome
    assert outcome.report["steps"] == 30, outcome


def test_ranks_that_begin_with_different_steps_are_refused(tmp_path: Path) -> None:
    ran = go(tmp_path, "for step in run.steps(named(), first=1 + run.rank, until=9): pass")
    assert ran.code == 2, ran.outcome
    assert "run.steps(first=...) differs between ranks: 1, 2" in ran.err, ran.outcome
    ran.ended_clean()


@pytest.mark.drill
def test_ticks_report_the_steps_of_a_loop_without_torch(tmp_path: Path) -> None:
    """Method: a rank is killed, and all start again from the script's own file. The report knows
    how many iterations were executed, and how many of them were lost.
    """
    script = str(Path(DRAWS).with_name("ticks.py"))
    with Drill(tmp_path, script, str(tmp_path / "own"), workers=2) as drill:
        drill.until(lambda: drill.status.get("step", 0) >= 15, "step 15")
        kill(drill, 1)
        outcome = drill.finish()
    assert outcome.code == 0, outcome
    assert outcome.report["steps"] == 60, outcome
    (one,) = outcome.interruptions
    assert 0 <= one["steps_lost"] <= 11, outcome
    assert one["resumed_s"] is not None, outcome


def kill(drill: Drill, *ranks: int) -> None:
    for pid in [one["pid"] for one in drill.status["workers"] if one["rank"] in ranks]:
        os.kill(pid, signal.SIGKILL)


def resumed(drill: Drill) -> int:
    """Return how many interruptions are over."""
    some = drill.status.get("interruptions", ())
    return sum(one["resumed_s"] is not None for one in some)
