"""A script that destroys its group before its DDP module is gone must end.

With torch alone it may hang. The module drops the last reference to the group while it holds the
interpreter's lock. The group waits for its thread, and the thread for the lock.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.drills._run import drilled


@pytest.mark.drill
@pytest.mark.timeout(150)
def test_a_script_that_destroys_its_group_before_its_model_ends(tmp_path: Path) -> None:
    """Method: two runs. Without the wait before the destruction, two of three runs hang."""
    for name in ("first", "second"):
        folder = tmp_path / name
        folder.mkdir()
        outcome = drilled(folder, "destroys.py", workers=4)
        assert outcome.code == 0, str(outcome)
        assert outcome.interruptions == [], str(outcome)
