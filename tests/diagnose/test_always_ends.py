"""A diagnosis ends, whatever lies in the folder."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from outlast.diagnose.pipeline import conclude
from outlast.errors import UsageError
from outlast.runtime.evidence import reading
from outlast.runtime.evidence.deadline import TimeBudget, TimeOver
from outlast.runtime.evidence.reading import diagnose
from outlast.runtime.evidence.scratch import PREFIX, remove_abandoned, scratch_folder
from tests.diagnose._gloo_dump import all_reduce, dump_of

SECONDS = 10.0
FRAMES = [
    "backward (torch/autograd/__init__.py:354)",
    "_engine_run_backward (torch/autograd/graph.py:824)",
    "step (torch/optim/sgd.py:91)",
    "all_reduce (torch/distributed/distributed_c10d.py:2501)",
    "barrier (torch/distributed/distributed_c10d.py:4100)",
    "read (train.py:3)",
    "crunch (train.py:7)",
    "_try_get_data (torch/utils/data/dataloader.py:1291)",
    "wait (threading.py:331)",
    "main (train.py:99)",
]
LINES = [
    "[rank1]: Traceback (most recent call last):",
    '[rank1]:   File "train.py", line 3, in main',
    "[rank1]: ValueError: no",
    "  exitcode  : -9 (pid: 77)",
    "Root Cause (first observed failure):",
    "Out of memory: Killed process 77 (python)",
    "NVRM: Xid (PCI:0000:3b:00): 79, pid=1, name=python, GPU has fallen off the bus.",
    "2026-11-22 21:00:00 step 4 loss 1.0",
    "Thread 0x00007f163cfc5b80 (most recent call first):",
    '  File "train.py", line 4 in crunch',
    'raise ValueError(f"no {x}")',
    "[rank0]: RuntimeError: Connection closed by peer [127.0.0.1]:1",
]


def spy(rank: int, frames: list[str]) -> str:
    body = "".join(f"    {frame}\n" for frame in frames)
    return (
        f'Process {100 + rank}: python train.py\nThread {100 + rank} (idle): "MainThread"\n{body}'
    )


def dump(ops: list[tuple[int, int, bool]]) -> bytes:
    return dump_of(
        all_reduce(
            seq,
            done=done,
            at_ns=1_795_246_423_000_000_000 + number,
            number=number,
            group=(group, "default_pg" if group == 0 else "mesh_dp"),
            timeout_ms=1,
        )
        for number, (group, seq, done) in enumerate(ops)
    ).encode()


RANKS = st.integers(0, 5)
STACKS = st.dictionaries(
    RANKS, st.lists(st.sampled_from(FRAMES), min_size=1, max_size=4), max_size=6
)
DUMPS = st.dictionaries(
    RANKS,
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 4), st.booleans()), max_size=6),
    max_size=6,
)
LOGS = st.lists(st.lists(st.sampled_from(LINES), max_size=8), max_size=3)


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(STACKS, DUMPS, LOGS, st.integers(0, 3))
def test_a_drawn_folder_of_stacks_dumps_and_logs_is_judged_within_seconds(
    stacks: dict[int, list[str]],
    dumps: dict[int, list[tuple[int, int, bool]]],
    logs: list[list[str]],
    cut: int,
) -> None:
    """Method: ranks stand anywhere, dumps show anything, files are cut at any place."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        for rank, frames in stacks.items():
            (root / f"stack_rank_{rank}.txt").write_text(spy(rank, frames))
        for rank, ops in dumps.items():
            raw = dump(ops)
            (root / f"fr_rank_{rank}").write_bytes(raw[: len(raw) // cut] if cut else raw)
        for number, lines in enumerate(logs):
            (root / f"log{number}.txt").write_text("\n".join(lines))
        began_s = time.monotonic()
        try:
            diagnose([folder])
        except UsageError:
            assert not any(path.stat().st_size for path in root.iterdir()) or not dumps
        assert time.monotonic() - began_s < SECONDS


@pytest.mark.parametrize("count", [1, 2, 3, 8])
@pytest.mark.parametrize("frame", FRAMES)
def test_ranks_that_all_stand_at_one_line_are_judged(
    tmp_path: Path, count: int, frame: str
) -> None:
    """Three or more stacks at a line that waits for nobody once made the diagnosis run for ever.

    This is the most common picture of a hang.
    """
    for rank in range(count):
        (tmp_path / f"stack_rank_{rank}.txt").write_text(spy(rank, [frame, FRAMES[-1]]))
    began_s = time.monotonic()
    diagnose([str(tmp_path)])
    assert time.monotonic() - began_s < SECONDS


def test_reading_stops_at_its_share_of_the_limit(tmp_path: Path) -> None:
    """Method: a clock that is far past the limit at its second look; the files are named unread."""
    for number in range(3):
        (tmp_path / f"rank_{number}.log").write_text("ValueError: no\n")
    times = iter([0.0, 0.0, 0.0, 0.0, 0.0, *[91.0] * 1000])
    budget = TimeBudget(120.0, now_s=lambda: next(times))
    with mock.patch.object(reading, "TimeBudget", return_value=budget):
        got = diagnose([str(tmp_path)])
    assert any("stopped by the time limit of 120 s" in note for note in got.notes)


@pytest.mark.parametrize("looks", [4, 6])
def test_the_end_of_a_log_is_read_though_time_was_over(tmp_path: Path, looks: int) -> None:
    """Method: a clock that passes reading's share before a log, or within it, and then stands."""
    steps = "".join(f"step {step} loss 2.5\n" for step in range(4_000))
    (tmp_path / "rank_3.log").write_text(f"{steps}torch.OutOfMemoryError: CUDA out of memory.\n")
    times = iter([*[0.0] * looks, *[91.0] * 1000])
    budget = TimeBudget(120.0, now_s=lambda: next(times))
    with mock.patch.object(reading, "TimeBudget", return_value=budget):
        got = diagnose([str(tmp_path)])
    assert budget.stopped_reading
    assert got.verdict.failure_class.value == "gpu_oom"
    assert [one.rank for one in got.verdict.ranks] == [3]


def test_reasoning_that_does_not_end_is_interrupted(tmp_path: Path) -> None:
    """Method: a reasoning that turns round for ever unless it is given the logs alone."""
    (tmp_path / "stack_rank_0.txt").write_text(spy(0, FRAMES[:1]))
    (tmp_path / "rank_1.log").write_text("ModuleNotFoundError: No module named 'x'\n")

    def endless(material: reading.Material) -> reading.Conclusion:
        while any(one.rule.startswith("stack.") for one in material.findings):
            pass
        return conclude(material)

    with mock.patch.object(reading, "conclude", endless):
        got = diagnose([str(tmp_path)], limit_s=1.0)
    assert got.verdict.failure_class.value == "dependency"
    assert any("from the logs alone" in note for note in got.notes)


def test_a_timer_of_the_caller_is_put_back() -> None:
    signal.signal(signal.SIGALRM, signal.SIG_IGN)
    signal.setitimer(signal.ITIMER_REAL, 50.0)
    try:
        with TimeBudget(30.0).interrupts():
            pass
        assert 40.0 < signal.setitimer(signal.ITIMER_REAL, 0)[0] <= 50.0
    finally:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)


def test_outside_the_main_thread_nothing_is_interrupted() -> None:
    raised: list[BaseException] = []

    def work() -> None:
        try:
            with TimeBudget(0.01).interrupts():
                time.sleep(0.05)
        except TimeOver as error:
            raised.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert not raised


STOPPED = """
import sys, time
from outlast.runtime.evidence.scratch import scratch_folder
with scratch_folder() as folder:
    open(folder + "/1", "w").close()
    print(folder, flush=True)
    time.sleep(60)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGKILL])
def test_a_stopped_diagnosis_leaves_nothing_in_the_temporary_folder(
    tmp_path: Path, number: signal.Signals
) -> None:
    """After SIGKILL the next diagnosis removes it; one that still runs is left alone."""
    env = {**os.environ, "TMPDIR": str(tmp_path)}
    process = subprocess.Popen(
        [sys.executable, "-c", STOPPED], env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    assert process.stdout is not None
    folder = Path(process.stdout.readline().decode().strip())
    remove_abandoned(str(tmp_path))
    assert (folder / "1").exists()
    process.send_signal(number)
    process.wait(30)
    process.stdout.close()
    if number is signal.SIGKILL:
        remove_abandoned(str(tmp_path))
    assert not list(tmp_path.glob(f"{PREFIX}*"))


def test_the_folder_of_a_diagnosis_in_this_process_is_gone_after_it() -> None:
    with scratch_folder() as folder:
        assert Path(folder).is_dir()
    assert not Path(folder).exists()
