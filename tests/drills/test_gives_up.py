"""A run that gives up saves the newest state that is left, and says where."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.drills._run import Drill, drilled

pytestmark = [pytest.mark.drill, pytest.mark.timeout(240)]
STEPS = ("--steps", 14)


@pytest.mark.parametrize("script", ["ddp.py", "fsdp.py"])
def test_a_crash_loop_leaves_its_newest_state_on_the_disk(tmp_path: Path, script: str) -> None:
    """Method: rank 1 raises in step 9 each time, while a checkpoint is written every five steps.

    The state of step 8 or later is saved. `--resume` goes on from it without the fault, and ends
    with the bits of an undisturbed run.
    """
    calm, folder, again = (tmp_path / name for name in ("calm", "struck", "again"))
    for one in (calm, folder, again):
        one.mkdir()
    expected = drilled(calm, script, *STEPS, workers=2)
    strikes = [{"at": "forward", "rank": 1, "step": 9, "do": "raise", "always": True}]
    flags = ("--checkpoint-every", 5)
    with Drill(folder, script, *STEPS, workers=2, flags=flags, strikes=strikes) as drill:
        outcome = drill.finish()
    assert outcome.code == 1, str(outcome)
    told = re.search(r"the state of step (\d+) is saved in (\S+);", outcome.stderr)
    assert told is not None, str(outcome)
    assert int(told[1]) == 8, str(outcome)
    assert (Path(told[2]) / "manifest.json").exists(), str(outcome)
    with Drill(
        again, script, *STEPS, workers=2, flags=(*flags, "--resume", "--run-dir", drill.folder)
    ) as resumed:
        resumed.process.wait(90)
        said = resumed.said() + (again / "stdout").read_text()
    assert "at step 8" in said, said
    digests = {
        int(line.split()[1]): line.split()[2]
        for line in said.splitlines()
        if line.startswith("digest ")
    }
    assert digests == expected.digests, said
