"""A process that may start no more threads waits until it can, and reports that once."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from outlast.errors import CapacityError
from outlast.runtime.worker.process import threads


class Limited:
    """A `threading.Thread.start` that fails this many times, as it does at a limit of threads."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, failures: int) -> None:
        self.left, self.start = failures, threading.Thread.start
        monkeypatch.setattr(threading.Thread, "start", lambda thread: self.starts(thread))

    def starts(self, thread: threading.Thread) -> Any:
        if self.left:
            self.left -= 1
            raise RuntimeError("can't start new thread")
        return self.start(thread)


def test_a_process_waits_until_threads_can_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[bool] = []
    Limited(monkeypatch, 3)
    threads.wait_for_threads(lambda: False, lambda: said.append(True))
    assert said == [True]


def test_without_a_limit_of_threads_nothing_is_reported() -> None:
    before = threading.active_count()
    threads.wait_for_threads(lambda: False, lambda: pytest.fail("nothing is waited for"))
    assert threading.active_count() == before


def test_the_wait_for_threads_ends_with_the_generation(monkeypatch: pytest.MonkeyPatch) -> None:
    Limited(monkeypatch, 1_000_000)
    over = iter((False, False, True))
    threads.wait_for_threads(lambda: next(over), lambda: None)


def test_the_limit_that_was_reached_is_named_once_the_time_is_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    Limited(monkeypatch, 1_000_000)
    with pytest.raises(CapacityError, match=r"can't start new thread, .* a limit of") as caught:
        threads.wait_for_threads(lambda: False, lambda: None, within_s=0.0)
    assert "ulimit -u" in caught.value.hint
    with pytest.raises(CapacityError):
        threads.start(lambda: None, "one", within_s=0.0)


def test_a_thread_is_started_as_soon_as_it_can_be(monkeypatch: pytest.MonkeyPatch) -> None:
    Limited(monkeypatch, 2)
    ran = threading.Event()
    threads.start(ran.set, "one", within_s=60.0)
    assert ran.wait(30.0)
