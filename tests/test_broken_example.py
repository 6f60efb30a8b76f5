"""examples/broken.py, as docs/reference/diagnosis.md has it.

A real torchrun job breaks, and the verdict names the rank.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.app.command import outlast

BROKEN = Path(__file__).parents[1] / "examples" / "broken.py"
TRUTH = {  # kind -> mechanism, class, guilty rank
    "sleep": ("hang", "user_code", 2),
    "shape": ("hang", "software_bug", 1),
    "kill": ("signal", "unknown", 3),
    "disk": ("exception", "storage", 0),
    "index": ("exception", "user_code", 1),
}


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("how", sorted(TRUTH))
def test_a_broken_job_is_diagnosed_as_the_page_says(how: str, tmp_path: Path) -> None:
    """Method: a job that hangs is read once the stack of a rank that stands in its step has been
    written, and then ended; the others end by themselves.
    """
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "4",
        "--log-dir",
        "incident/logs",
        "--redirects",
        "3",
    ]
    with (tmp_path / "torchrun.log").open("wb") as log:
        job = subprocess.Popen(
            [*command, str(BROKEN), how, "incident"],
            cwd=tmp_path,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        until_s = time.monotonic() + 200
        while job.poll() is None and time.monotonic() < until_s:
            stacks = list(tmp_path.glob("incident/stack_rank_*.txt"))
            if len(stacks) == 4 and all(path.stat().st_size for path in stacks):
                break
            time.sleep(0.2)
        (tmp_path / "incident" / "torchrun.log").write_bytes(
            (tmp_path / "torchrun.log").read_bytes()
        )
        facts = json.loads(outlast("diagnose", tmp_path / "incident", "--json").stdout)
    finally:
        os.killpg(job.pid, signal.SIGTERM) if job.poll() is None else None
        job.wait(60)
    assert (facts["mechanism"], facts["class"], [one["rank"] for one in facts["ranks"]]) == (
        TRUTH[how][0],
        TRUTH[how][1],
        [TRUTH[how][2]],
    )
