"""A training under another launcher is followed by the lines it prints, is struck, and leaves no
trace.

Method: a launcher of two lines with one rank, which starts the rank again whenever it ends badly.
Both are real processes, and a step takes 20 ms.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from outlast.model.drills.drill_faults import KINDS
from outlast.model.drills.drill_sides import SeenStep, steps_again
from outlast.runtime.drill import peer_runs
from outlast.runtime.drill.drill_runs import DrillFolder, DrillView
from outlast.runtime.drill.peer_runs import PeerRun, run_peer
from outlast.sim.drill_calendar import Scheduled

LAUNCHER = """
import subprocess, sys
while subprocess.run([sys.executable, *sys.argv[1:]]).returncode:
    pass
"""
RANK = """
import os, pathlib, sys, time
from outlast.runtime import linux

linux.set_name("outlast-rank0")
linux.die_with(os.getppid())
saved, until = pathlib.Path(sys.argv[1], "saved"), int(sys.argv[2])
done = int(saved.read_text()) if saved.exists() else 0
for step in range(done + 1, 61):
    if step == until:
        time.sleep(600)
    time.sleep(0.02)
    print(f"[rank0]: step {step} of 60", flush=True)
    if step == 20:
        saved.write_text(str(step))
print("stalled 0.25 s to save", flush=True)
print("digest abc", flush=True)
"""


def peer(
    tmp_path: Path, *, until: int = 0, faults: Sequence[Scheduled] = (), patience_s: float = 60.0
) -> tuple[PeerRun, list[DrillView]]:
    for name, text in (("launcher.py", LAUNCHER), ("rank.py", RANK)):
        (tmp_path / name).write_text(text)
    command = [sys.executable, str(tmp_path / "launcher.py"), str(tmp_path / "rank.py")]
    seen: list[DrillView] = []
    folder = DrillFolder.make(str(tmp_path / "drill"), name="x")
    run = run_peer(
        folder,
        "peer",
        [*command, "{run}", str(until)],
        seen.append,
        ranks=1,
        faults=faults,
        patience_s=patience_s,
    )
    return run, seen


def kill(at_step: int) -> Scheduled:
    return Scheduled("1", KINDS["kill"], KINDS["kill"].stands_for, 0, None, at_step)


def test_steps_digest_and_saves_are_read_from_the_lines_of_a_run(tmp_path: Path) -> None:
    run, seen = peer(tmp_path)
    assert run.code == 0
    assert [one.step for one in run.seen] == list(range(1, 61))
    assert (run.digest, run.stall_s, run.step) == ("abc", 0.25, 60)
    assert run.began_s < run.seen[0].at_s < run.seen[-1].at_s <= run.ended_s
    assert seen


def test_a_rank_of_the_run_is_struck_and_repeated_steps_are_seen(tmp_path: Path) -> None:
    run, _ = peer(tmp_path, faults=[kill(25)])
    assert run.code == 0
    (fired,) = run.fired
    assert 24 <= fired.step < 60, "it strikes once step 24 was seen"
    assert steps_again(run.seen) >= 4, "it goes on from step 20"
    assert run.step == 60
    assert '"kill"' in (tmp_path / "drill" / "peer.jsonl").read_text()


def test_a_run_that_stands_still_is_given_up_and_leaves_nothing(tmp_path: Path) -> None:
    run, _ = peer(tmp_path, until=20, patience_s=5.0)
    assert run.code != 0
    assert run.stood_still_s > 5.0
    assert run.step == 19
    mine = str(tmp_path / "rank.py").encode()
    until_s = time.monotonic() + 10
    while (left := [pid for pid in os.listdir("/proc") if mine in words_of(pid)]) and (
        time.monotonic() < until_s
    ):
        pass
    assert not left


def words_of(pid: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


@pytest.mark.parametrize(
    ("line", "seen"),
    [
        (b"step 12", (12, 1.0)),
        (b"Step: 12/400 loss 3.1", (12, 1.0)),
        (b"[default0]:step=12", (12, 1.0)),
        (b"step 12 members 3", (12, 0.75)),
        (b"[replica_0/0 - step 12] a warning", None),
        (b"steps 12", None),
        (b"at optimizer.step 12", None),
    ],
)
def test_only_a_line_that_begins_with_a_step_counts_as_a_step(
    tmp_path: Path, line: bytes, seen: tuple[int, float] | None
) -> None:
    out = PeerRun(0.0)
    (tmp_path / "log").write_bytes(line + b"\nstep 13 is not whole")
    peer_runs._Lines(tmp_path / "log", out, 4).follow(5.0)
    assert out.seen == ([] if seen is None else [SeenStep(5.0, *seen)])
