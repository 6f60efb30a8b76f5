"""The examples over meshes: kills lose no step, and change no bit on any rank."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.drills._run import drilled

EXAMPLES = Path(__file__).parents[2] / "examples"
KILLS = (
    {"mark": "prepared", "rank": 1, "step": 6, "signal": "KILL"},
    {"mark": "sealed", "rank": 2, "step": 12, "signal": "KILL"},
)


@pytest.mark.drill
@pytest.mark.timeout(150)
@pytest.mark.parametrize("example", ["train_pipeline.py", "train_moe.py"])
def test_kills_in_an_example_over_a_mesh_cost_no_step_and_no_bit(
    tmp_path: Path, example: str
) -> None:
    """Method: two ranks are killed, one after the other. Survivors enter main's function again, and
    print the losses of an undisturbed run.
    """
    runs = []
    for name, marks in (("calm", ()), ("hit", KILLS)):
        (tmp_path / name).mkdir()
        script = str(EXAMPLES / example)
        runs.append(
            drilled(tmp_path / name, script, "--steps", 20, workers=4, marks=marks, within_s=60)
        )
    calm, hit = runs
    assert calm.code == hit.code == 0, hit
    assert len(hit.interruptions) == len(KILLS), hit
    assert hit.digests == calm.digests, hit
    assert len(hit.digests) == 4, hit
    assert len(set(hit.digests.values())) == 2, hit
    assert [one["steps_lost"] for one in hit.interruptions] == [0, 0], hit
    losses = [
        {line for line in one.stdout.splitlines() if line.startswith("step ")} for one in runs
    ]
    assert losses[0] == losses[1] != set(), hit
