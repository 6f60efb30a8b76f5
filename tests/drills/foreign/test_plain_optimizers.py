"""Scripts that know nothing of outlast, and have several optimizers: their steps are counted."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.drills.foreign.test_plain_scripts import begun_behind, struck

pytestmark = [pytest.mark.drill, pytest.mark.timeout(200)]
PHASES = Path(__file__).parent / "scripts" / "phases.py"


@pytest.mark.parametrize("how", ["first-head", "kept", "gan"])
@pytest.mark.parametrize("at", [23, 45])
def test_the_file_shows_the_step_whichever_optimizer_did_it(
    tmp_path: Path, how: str, at: int
) -> None:
    """A second optimizer takes over after 25 steps, and its own count begins with one. Or two take
    turns. The rank is killed while the first one trains, or the second.
    """
    outcome = struck(tmp_path, 60, how, at=at, number=signal.SIGKILL, script=PHASES)
    assert outcome.code == 0, outcome
    first, behind = begun_behind(outcome)
    # on busy cores the kill may come a checkpoint later
    assert (first, behind % 10) == (0, 0), outcome
    assert behind >= at - at % 10, outcome
    (one,) = outcome.interruptions
    assert one["step"] >= at - 1, outcome
    lost = one["step"] - behind
    assert lost <= one["steps_lost"] == one["steps_repeated"] <= lost + 2, one
    assert outcome.report["steps"] == 60, outcome
    assert 0 < outcome.report["ettr"] < 1, outcome.report


def test_no_loss_is_stated_if_the_count_of_another_optimizer_is_loaded(
    tmp_path: Path,
) -> None:
    """The optimizer that is loaded counts from the 26th step of the run."""
    outcome = struck(tmp_path, 60, "memory", at=45, number=signal.SIGKILL, script=PHASES)
    assert outcome.code == 0, outcome
    first, behind = begun_behind(outcome)
    assert first == 0, outcome
    assert behind >= 40, outcome
    (one,) = outcome.interruptions
    assert (one["steps_lost"], one["steps_repeated"]) == (None, None), one
    assert outcome.report["ettr"] is None, outcome.report
