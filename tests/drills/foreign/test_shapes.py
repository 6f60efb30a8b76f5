"""Scripts of public shapes, adopted as the how-to page says: faults change no bit.

`python -m tests.drills.foreign.twenty` strikes twenty times in each of these scripts, and in
others. The folder `scripts` has the adopted form of each shape. `scripts/unchanged` has the form
for torchrun, where one was written.
"""

from __future__ import annotations

import difflib
import re
from pathlib import Path

import pytest

from tests.drills._run import Drill, Outcome
from tests.drills.checked.table import check
from tests.drills.foreign.twenty import HERE, struck

ADOPTED, UNCHANGED = HERE / "scripts", HERE / "scripts" / "unchanged"
PAIRS = sorted(path.stem for path in UNCHANGED.glob("*.py"))
SHAPES = ("rollouts", "trainer_hooks", "recipe", *PAIRS)
PAGE = HERE.parents[2] / "docs" / "how-to" / "adopt-a-script.md"
# steps between two of the script's own checkpoints, for those that resume from them
RESUMES = {"sharpness": 40, "distil": 12, "reference": 16}
ARGUMENTS = {"reference": ("--amp", "--resume", "checkpoint.pth")}


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


@pytest.mark.parametrize("name", PAIRS)
def test_the_page_says_how_many_lines_each_shape_takes(name: str) -> None:
    """Lines that only changed their indentation, and empty ones, are not counted."""
    old, new = (
        [line.strip() for line in (folder / f"{name}.py").read_text().splitlines() if line.strip()]
        for folder in (UNCHANGED, ADOPTED)
    )
    changes = difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes()
    added = sum(j2 - j1 for tag, _, _, j1, j2 in changes if tag != "equal")
    removed = sum(i2 - i1 for tag, i1, i2, _, _ in changes if tag != "equal")
    row = re.search(rf"\| (\d+) \| (\d+) \| `foreign/scripts/{name}.py` \|", PAGE.read_text())
    assert row, (name, added, removed)
    assert (int(row[1]), int(row[2])) == (added, removed)
