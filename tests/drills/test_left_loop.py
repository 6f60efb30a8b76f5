"""A rank leaves its loop by `break` while the others go on: the run says so, and ends."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.drills._run import Outcome, drilled

pytestmark = [pytest.mark.drill, pytest.mark.timeout(180)]

SCRIPT = """
import os, sys
import torch
import outlast

run = outlast.join()
torch.manual_seed(0)
model = run.replicate(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), 0.01)
state = run.state(model=model, optimizer=optimizer)

def raise_once():
    if not os.path.exists("once"):
        open("once", "x").close()
        raise ValueError("once")

for step in run.steps(state, until=12):
    with step:
        model(torch.randn(2, 4)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    if step.number == 5 and run.rank == 1:
        {leaves}
    {phase}
print("digest", run.rank, outlast.digest(state), flush=True)
"""
PHASE = """for attempt in run.phase("evaluate"):
        with attempt:
            pass"""


def ran(folder: Path, leaves: str, phase: str = "pass") -> tuple[Outcome, int]:
    """Run the script, and return the line at which rank 1 leaves its loop as well."""
    script = folder / "train.py"
    text = SCRIPT.format(leaves=leaves, phase=phase)
    script.write_text(text)
    line = next(n for n, one in enumerate(text.splitlines(), 1) if one.strip() == leaves)
    return drilled(folder, str(script), workers=2), line


@pytest.mark.parametrize(("leaves", "phase"), [("break", "pass"), ("break", PHASE)])
def test_a_rank_that_leaves_its_loop_alone_is_named_with_its_line(
    tmp_path: Path, leaves: str, phase: str
) -> None:
    """Starting all ranks again would lead them to the same place, so nothing is repeated."""
    outcome, line = ran(tmp_path, leaves, phase)
    assert outcome.code == 1, outcome
    assert "after step 5, rank" in outcome.stderr, outcome
    assert f"rank 1 has left its loop at {tmp_path}/train.py:{line}" in outcome.stderr, outcome
    assert outcome.stderr.count("have gone different ways") == 1, outcome
    assert "hint: " in outcome.stderr, outcome
    assert outcome.interruptions == [], outcome


def test_an_error_after_the_block_does_not_count_as_leaving_the_loop(tmp_path: Path) -> None:
    """Method: rank 1 raises there once. Its rank is replaced, and the run goes on."""
    outcome, _ = ran(tmp_path, "raise_once()")
    assert outcome.code == 0, outcome
    assert [one["mechanism"] for one in outcome.interruptions] == ["exception"], outcome
    assert len(set(outcome.digests.values())) == 1, outcome
