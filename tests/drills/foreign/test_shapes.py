"""Scripts of public shapes, adopted as the how-to page says: faults change no bit.

`python -m tests.drills.foreign.twenty` strikes twenty times in each of these scripts, and in
others. The folder `scripts` has the adopted form of each shape. `scripts/unchanged` has the form
for torchrun, where one was written.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.drills._run import Drill, Outcome, drilled
from tests.drills.checked.table import check
from tests.drills.foreign.changed_lines import changed_lines
from tests.drills.foreign.twenty import HERE, SCRIPTS, TIMES, UNTIL, struck

ADOPTED, UNCHANGED = HERE / "scripts", HERE / "scripts" / "unchanged"
PAIRS = sorted(path.stem for path in UNCHANGED.glob("*.py"))
SHAPES = ("rollouts", "trainer_hooks", "recipe", *PAIRS)
COMPARED = ("gpt",)  # with torchrun; and those in which a step raises once
PAGE = HERE.parents[2] / "docs" / "how-to" / "adopt-a-script.md"
# steps between two of the script's own checkpoints, for those that resume from them
RESUMES = {"sharpness": 40, "distil": 12, "reference": 16, "gpt": 20}
ARGUMENTS = {"reference": ("--amp", "--resume", "checkpoint.pth"), "gpt": ("--resume",)}
PACED, HASHED = (str(HERE / "scripts" / f"{name}.py") for name in ("paced", "hashed"))


@pytest.mark.drill
@pytest.mark.timeout(400)
@pytest.mark.parametrize("name", SHAPES)
def test_faults_in_an_adopted_shape_change_no_bit(name: str) -> None:
    row = struck(name, seed=3, faults=4)
    assert row.well, f"{row}\n{row.hit}"


@pytest.mark.drill
@pytest.mark.timeout(200)
@pytest.mark.parametrize("name", PAIRS)
def test_an_adopted_shape_passes_the_check(name: str) -> None:
    row = check(ADOPTED / f"{name}.py")
    assert row.code == 0, f"{row}\n{row.stderr}"


@pytest.mark.drill
@pytest.mark.timeout(200)
@pytest.mark.parametrize("name", PAIRS)
def test_an_unchanged_shape_comes_back_after_a_kill(tmp_path: Path, name: str) -> None:
    """The steps reported as lost are those since the script's own checkpoint, or all if it has
    none.
    """
    at = 43
    outcome = killed(tmp_path, name, at=at)
    assert outcome.code == 0, outcome
    assert outcome.report["calls_outlast"] is False, outcome
    (one,) = outcome.interruptions
    behind = at // RESUMES[name] * RESUMES[name] if name in RESUMES else 0
    # one rank may be a step ahead
    assert one["steps_lost"] in (at - behind, at - behind + 1), outcome


def killed(folder: Path, name: str, *, at: int) -> Outcome:
    """Run the form for torchrun, and kill rank 1 after its optimizer step `at`."""
    script, given = str(UNCHANGED / f"{name}.py"), ARGUMENTS.get(name, ())
    marks = [{"mark": "stepped", "rank": 1, "step": at, "do": "SIGKILL"}]
    with Drill(folder, script, *given, workers=2, marks=marks) as drill:
        return drill.finish()


@pytest.mark.drill
@pytest.mark.timeout(200)
@pytest.mark.parametrize("name", COMPARED)
def test_an_exception_in_an_adopted_shape_changes_no_bit(tmp_path: Path, name: str) -> None:
    """Rank 1 raises it once, in front of an optimizer call. The step is repeated in place."""
    env = {"PACED_S": "0", "PACED_UNTIL": str(UNTIL), "PACED_TIMES": str(TIMES.get(name, 1))}
    marks = [{"mark": "stepping", "rank": 1, "step": 14, "do": "raise"}]
    outcomes = []
    for which, faults in (("calm", []), ("hit", marks)):
        folder = tmp_path / which
        folder.mkdir()
        outcomes.append(drilled(folder, PACED, SCRIPTS[name], workers=2, env=env, marks=faults))
    calm, hit = outcomes
    assert (calm.code, hit.code) == (0, 0), hit
    assert hit.digests == calm.digests != {}, hit
    assert [(one["rung"], one["steps_lost"]) for one in hit.interruptions] == [("repeat", 0)], hit


@pytest.mark.drill
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", COMPARED)
def test_an_unchanged_shape_has_the_digest_that_it_has_under_torchrun(
    tmp_path: Path, name: str
) -> None:
    """Undisturbed, and after a kill as well, where it begins anew instead of resuming.

    After a resume the script itself draws other random numbers, because it saves none.
    """
    script = str(UNCHANGED / f"{name}.py")
    plain = under_torchrun(tmp_path / "torchrun", script)
    assert plain.code == 0, plain
    folders = [tmp_path / which for which in ("calm", "hit")]
    for folder in folders:
        folder.mkdir()
    calm = drilled(folders[0], HASHED, script, workers=2, within_s=120.0)
    assert calm.code == 0, calm
    assert calm.digests == plain.digests != {}, (calm, plain)
    if name not in RESUMES:
        marks = [{"mark": "stepped", "rank": 1, "step": 43, "do": "SIGKILL"}]
        hit = drilled(folders[1], HASHED, script, workers=2, marks=marks, within_s=120.0)
        assert len(hit.interruptions) == 1, hit
        assert hit.digests == plain.digests, (hit, plain)


def under_torchrun(folder: Path, script: str) -> Outcome:
    folder.mkdir()
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    done = subprocess.run(
        [*torchrun, "--nproc-per-node", "2", HASHED, script],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    return Outcome(done.returncode, done.stdout, done.stderr, {}, [])


@pytest.mark.parametrize("name", PAIRS)
def test_the_page_says_how_many_lines_each_shape_takes(name: str) -> None:
    added, removed = changed_lines(UNCHANGED / f"{name}.py", ADOPTED / f"{name}.py")
    row = re.search(rf"\| (\d+) \| (\d+) \| `foreign/scripts/{name}.py` \|", PAGE.read_text())
    assert row, (name, added, removed)
    assert (int(row[1]), int(row[2])) == (added, removed)


def test_the_shape_of_nanogpt_takes_twelve_added_lines_at_most() -> None:
    added, _ = changed_lines(UNCHANGED / "gpt.py", ADOPTED / "gpt.py")
    assert 0 < added <= 12
