"""What a host suffered for a while, and the job went on after."""

from __future__ import annotations

from pathlib import Path

import pytest

from outlast.model.verdict import Verdict
from tests.diagnose._written import verdict_of

STALL = {
    "nfs": "kernel: nfs: server fs01 not responding, still trying",
    "lustre": "kernel: LustreError: 11-0: OST0012: operation ost_read to node failed: rc = -107",
    "link": "kernel: mlx5_core 0000:5e:00.0 mlx5_0: link down",
    "memory": "kernel: EDAC MC0: 1 CE memory read error on CPU_SrcID#0_MC#0_Chan#1_DIMM#0",
    "task": "kernel: INFO: task python:4411 blocked for more than 120 seconds.",
}
FAILED = (
    "[rank0]: Traceback (most recent call last):\n"
    '[rank0]:   File "/app/train.py", line 61, in evaluate\n'
    "[rank0]:     best = metrics['f1']\n"
    "[rank0]: KeyError: 'f1'\n"
)


def job(last_minute: int) -> str:
    """Return a log with a step each minute from 02:00 on."""
    return "".join(
        f"2026-11-02 {2 + at // 60:02d}:{at % 60:02d}:00 step {at} loss 1.2\n"
        for at in range(last_minute + 1)
    )


def diagnosed(folder: Path, *lines: str, minutes: int, end: str = FAILED) -> Verdict:
    host = "".join(f"2026-11-02T{line}\n" for line in lines)
    return verdict_of(folder, {"w3/kern.log": host, "train.log": job(minutes) + end})


@pytest.mark.parametrize("stall", STALL)
def test_a_state_after_which_the_job_went_on_did_not_end_it(tmp_path: Path, stall: str) -> None:
    got = diagnosed(tmp_path, f"02:04:10+00:00 w3 {STALL[stall]}", minutes=49)
    assert (got.failure_class.value, [one.rank for one in got.ranks]) == ("user_code", [0])
    assert "passed" in got.reason


@pytest.mark.parametrize("stall", STALL)
def test_a_state_that_comes_again_at_the_end_counts(tmp_path: Path, stall: str) -> None:
    lines = (f"02:04:10+00:00 w3 {STALL[stall]}", f"02:49:10+00:00 w3 {STALL[stall]}")
    got = diagnosed(tmp_path, *lines, minutes=49, end="")
    alone = diagnosed(tmp_path / "alone", lines[1], minutes=49, end="")
    assert got.failure_class is alone.failure_class
    assert got.confidence == alone.confidence


def test_two_clocks_in_two_zones_show_no_order(tmp_path: Path) -> None:
    """The host's clock is an hour behind. Only the words that the mount is back are then proof."""
    stall, back = STALL["nfs"], "kernel: nfs: server fs01 OK"
    got = diagnosed(tmp_path / "apart", f"02:00:10 w3 {stall}", minutes=60, end="")
    assert got.failure_class.value == "storage"
    lines = (f"02:00:10 w3 {stall}", f"02:00:41 w3 {back}")
    got = diagnosed(tmp_path / "back", *lines, minutes=60)
    assert got.failure_class.value == "user_code"
