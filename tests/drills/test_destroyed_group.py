"""A script that destroys its group before its DDP module is gone ends.

Torch alone may hang there. The module drops the last reference to the group with the interpreter's
lock held. The group waits for its thread, and the thread for the lock.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.drills._run import drilled


@pytest.mark.drill
@pytest.mark.timeout(150)
def test_a_script_that_destroys_its_group_before_its_model_ends(tmp_path: Path) -> None:
    """Two runs: without the wait in front of the destruction, two of three hang."""
    for name in ("first", "second"):
        folder = tmp_path / name
        folder.mkdir()
        outcome = drilled(folder, "destroys.py", workers=4)
        assert outcome.code == 0, str(outcome)
        assert outcome.interruptions == [], str(outcome)
