"""How long a process was ready to run and had no processor, as the kernel reports it for real
processes.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from outlast.runtime import clock
from outlast.runtime.agent.starving import Starving

BURN = "while True: pass"
WAIT_S = 30.0


@contextmanager
def child(program: str, *, idle: bool = False) -> Iterator[int]:
    """Yield the pid of a program that runs on the first processor this process may use.

    `idle`: it runs only when no other process wants that processor.
    """
    cpu = min(os.sched_getaffinity(0))
    process = subprocess.Popen([sys.executable, "-c", program])
    try:
        os.sched_setaffinity(process.pid, {cpu})
        if idle:
            os.sched_setscheduler(process.pid, os.SCHED_IDLE, os.sched_param(0))
        yield process.pid
    finally:
        process.kill()
        process.wait()


def starved_s(starving: Starving, *, at_least_s: float) -> tuple[float, float]:
    """Look until the time is at least this long or the wait is over. Return the time found, and how
    long that took.
    """
    began_s = clock.now_s()
    while (
        found_s := starving.look(now_s=clock.now_s())
    ) < at_least_s and clock.now_s() - began_s < WAIT_S:
        pass
    return found_s, clock.now_s() - began_s


@pytest.mark.skipif(
    not os.path.exists("/proc/self/schedstat"),
    reason="this kernel does not count how long a thread waits for a processor",
)
def test_a_process_without_a_processor_is_seen_to_wait_for_it() -> None:
    with child(BURN), child(BURN, idle=True) as pid:
        found_s, took_s = starved_s(Starving(pid), at_least_s=1.0)
    assert found_s >= 1.0
    assert took_s < 3.0 * found_s


def test_a_process_that_sleeps_waits_for_no_processor() -> None:
    with child("import time; print('up'); time.sleep(600)") as pid:
        starving = Starving(pid)
        starving.look(now_s=clock.now_s())
        before_s = starving.look(now_s=clock.now_s())
        began_s = clock.now_s()
        while clock.now_s() - began_s < 1.0:
            found_s = starving.look(now_s=clock.now_s())
    assert found_s - before_s < 0.5


def test_nothing_is_reported_about_a_process_that_is_gone() -> None:
    assert Starving(2**22 + 1).look(now_s=1.0) == 0.0
