"""A process that the script forks is no rank: whatever happens to it, it does not speak for
a rank.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.drills._run import Drill
from tests.drills._scripts import HEAD

pytestmark = [pytest.mark.drill, pytest.mark.timeout(150)]

SCRIPT = (
    HEAD
    + """
def fork(how):
    pid = os.fork()
    if pid:
        os.waitpid(pid, 0)
    elif how == "raises":
        raise RuntimeError("the child's own")
    else:
        sys.exit(int(how))

state = named()
for step in run.steps(state, until=12):
    with step:
        if run.rank == 1 and step.number in INSIDE:
            fork(INSIDE[step.number])
        update(step)
    if run.rank == 1 and step.number in BEHIND:
        fork(BEHIND[step.number])
end()
"""
)


def test_a_child_that_leaves_the_script_is_no_end_or_error_of_its_rank(
    tmp_path: Path,
) -> None:
    """Method: forks of rank 1 leave by sys.exit or an exception, during a step and after one.

    The run has no interruption, and ends with the bits of a run without forks.
    """
    digests = []
    for inside, behind in (
        ({}, {}),
        ({3: "0", 5: "7", 8: "raises"}, {4: "0", 6: "7", 9: "raises"}),
    ):
        folder = tmp_path / f"run{len(digests)}"
        folder.mkdir()
        script = folder / "forks.py"
        script.write_text(f"INSIDE, BEHIND = {inside}, {behind}\n{SCRIPT}")
        with Drill(folder, str(script), workers=2) as drill:
            outcome = drill.finish()
        assert outcome.code == 0, str(outcome)
        assert outcome.interruptions == [], str(outcome)
        assert outcome.stderr.count("RuntimeError: the child's own") == 2 * bool(inside)
        digests.append(outcome.digests)
    assert len(digests[0]) == 2
    assert digests[0] == digests[1]
