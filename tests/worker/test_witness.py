"""What a worker leaves behind: its stacks and a copy of the flight recorder, also while it holds
the interpreter lock.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from outlast.model import limits
from outlast.runtime.worker.process.witness import Witness
from tests.drills._pids import until

HOLDS_THE_LOCK = """
import ctypes, sys, torch
from pathlib import Path
from outlast.runtime.worker.process.witness import Witness
Witness(Path(sys.argv[1]), Path(sys.argv[1], "recorder"), 3).begin()
def in_a_call_that_never_returns():
    print("there", flush=True)
    mutex = ctypes.create_string_buffer(64)
    for _ in range(2):  # no signal ends this, as it would end a sleep
        ctypes.PyDLL(None).pthread_mutex_lock(mutex)
in_a_call_that_never_returns()
"""


def test_the_main_stack_comes_first_and_own_threads_are_left_out(
    tmp_path: Path,
) -> None:
    witness = Witness(tmp_path, tmp_path / "recorder", 3)
    witness.begin()
    gone = threading.Event()
    own = threading.Thread(target=gone.wait, name="outlast-listener")
    other = threading.Thread(target=gone.wait, name="loader")
    own.start(), other.start()
    try:
        witness.testify()
        until(
            "the stacks are there",
            lambda: (tmp_path / "stacks-3.txt").stat().st_size,
            within_s=10.0,
        )
    finally:
        gone.set()
        own.join(), other.join()
    text = (tmp_path / "stacks-3.txt").read_text()
    assert text.startswith(
        f"Thread 0x{threading.main_thread().ident:016x} [MainThread] (most recent call first):\n"
    )
    assert "[loader]" in text
    assert "outlast-listener" not in text


def test_without_a_thread_nothing_is_written_and_nothing_is_raised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The caller is the thread that listens to the agent, and an error would end it."""

    def no_thread(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    witness = Witness(tmp_path, tmp_path / "recorder", 3)
    witness.begin()
    monkeypatch.setattr(threading.Thread, "start", no_thread)
    witness.testify()
    assert (tmp_path / "stacks-3.txt").read_bytes() == b""


def test_asked_twice_a_witness_keeps_the_newest_stacks_only(tmp_path: Path) -> None:
    witness = Witness(tmp_path, tmp_path / "recorder", 3)
    witness.begin()
    witness._testify()
    witness._testify()
    assert (tmp_path / "stacks-3.txt").read_text().count("[MainThread]") == 1


def test_the_recorder_is_copied_where_there_is_something_in_it(tmp_path: Path) -> None:
    """A group of one process records its collectives too."""
    witness = Witness(tmp_path, tmp_path / "recorder", 3)
    witness._copy_recorder()
    before = (tmp_path / "recorder").exists()
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        dist.all_reduce(torch.ones(1))
        witness._copy_recorder()
    finally:
        dist.destroy_process_group()
    assert b"all_reduce" in (tmp_path / "recorder").read_bytes()
    assert not before or b'"entries"' in (tmp_path / "recorder").read_bytes()


def test_a_process_that_holds_the_interpreter_lock_writes_its_stack(
    tmp_path: Path,
) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDS_THE_LOCK, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "there\n"
        until(
            "it sleeps in the call",
            lambda: Path(f"/proc/{process.pid}/wchan").read_text() not in ("0", ""),
            within_s=10.0,
        )
        os.kill(process.pid, limits.STACKS_SIGNAL)
        until(
            "the stack is there",
            lambda: "in_a_call_that_never_returns" in (tmp_path / "stacks-3.txt").read_text(),
            within_s=10.0,
        )
        assert process.poll() is None
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def test_a_folder_that_cannot_be_written_costs_nothing_but_the_evidence(tmp_path: Path) -> None:
    witness = Witness(tmp_path / "missing", tmp_path / "missing" / "recorder", 3)
    witness.begin()
    witness._testify()
    assert not (tmp_path / "missing").exists()
