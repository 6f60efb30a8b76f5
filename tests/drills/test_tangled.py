"""How long ranks may take on their way into a generation.

If all ranks wait for each other, none is at fault, and the run goes on by itself once the deadline
of a regroup is over. A script at work has no such deadline.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from outlast.model import limits
from tests.drills._run import drilled

pytestmark = [pytest.mark.drill, pytest.mark.timeout(150)]


@pytest.mark.parametrize("spares", [0, 1])
def test_ranks_that_wait_for_each_other_form_the_next_group(tmp_path: Path, spares: int) -> None:
    """Method: quick.py --tangle. The replacement of rank 1 boots, and then no script is at work."""
    kill = {"at": "forward", "rank": 1, "step": 8, "do": "SIGKILL"}
    outcome = drilled(
        tmp_path, "quick.py", "--tangle", workers=3, flags=("--spares", spares), strikes=[kill]
    )
    assert outcome.code == 0, str(outcome)
    assert len(set(outcome.digests.values())) == 1, str(outcome)
    outcome.ledger_is_sound()
    lost, tangled = outcome.interruptions
    assert lost["steps_lost"] == tangled["steps_lost"] == 0, str(outcome)
    assert tangled["ranks"] == [], str(outcome)
    assert "every process lives" in tangled["reason"], str(outcome)
    waited_s = tangled["resumed_s"] - lost["fault_s"]
    assert limits.REGROUP_DEADLINE_S < waited_s < 2 * limits.REGROUP_DEADLINE_S, str(outcome)


def test_a_script_may_build_its_model_for_longer_than_a_regroup(tmp_path: Path) -> None:
    """Method: quick.py --build-s, with no fault."""
    built_s = limits.REGROUP_DEADLINE_S + 5.0
    outcome = drilled(tmp_path, "quick.py", "--build-s", built_s, workers=2)
    assert outcome.code == 0, str(outcome)
    assert outcome.interruptions == [], str(outcome)
