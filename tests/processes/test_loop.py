"""The event loop: order, timers, signals, and descriptors that go away."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterator

import pytest

from outlast.model.limits import LOOP_CROWD_COUNT
from outlast.runtime.clock import now_s
from outlast.runtime.loop import Loop


@pytest.fixture
def loop() -> Iterator[Loop]:
    loop = Loop()
    yield loop
    loop.close()


def test_timers_run_in_the_order_of_their_time_and_then_of_their_making(loop: Loop) -> None:
    """Method: all timers are due at once, and two of them at the same time."""
    came: list[str] = []
    begin_s = now_s()
    for name, when_s in (("c", begin_s), ("a", begin_s - 2), ("b", begin_s - 1), ("d", begin_s)):
        loop.call_at(when_s, lambda name=name: came.append(name))  # type: ignore[misc]
    assert loop.run_until(lambda: len(came) == 4, within_s=1)
    assert came == ["a", "b", "c", "d"]


def test_a_cancelled_timer_never_runs_and_does_not_delay_the_end(loop: Loop) -> None:
    loop.call_at(now_s() + 0.01, lambda: pytest.fail("cancelled")).cancel()
    done: list[bool] = []
    loop.call_at(now_s() + 0.02, lambda: done.append(True))
    assert loop.run_until(lambda: bool(done), within_s=1)


def test_descriptors_are_served_in_the_order_of_registration(loop: Loop) -> None:
    """Method: both descriptors are readable before the turn, and the one registered later has the
    lower number.
    """
    came: list[str] = []
    early, late = socket.socketpair(), socket.socketpair()
    loop.add_reader(late[0].fileno(), lambda: came.append("first registered"))
    loop.add_reader(early[0].fileno(), lambda: came.append("second registered"))
    late[1].send(b".")
    early[1].send(b".")
    loop.turn(1)
    assert came == ["first registered", "second registered"]
    for sock in (*early, *late):
        sock.close()


def test_every_ready_descriptor_is_served_before_the_next_timer(loop: Loop) -> None:
    """Method: more descriptors are ready than are served in their own order.

    A timer that checks who has been silent relies on this. The one that became ready first is not
    served last.
    """
    pairs = [socket.socketpair() for _ in range(LOOP_CROWD_COUNT + 50)]
    came: list[int] = []
    for number, (ours, _) in enumerate(pairs):
        loop.add_reader(ours.fileno(), lambda number=number: came.append(number))  # type: ignore[misc]
    for _, theirs in reversed(pairs):
        theirs.send(b".")
    loop.call_soon(lambda: loop.call_at(now_s(), lambda: came.append(-1)))
    loop.turn(1)
    loop.turn(1)
    assert sorted(came[: len(pairs)]) == list(range(len(pairs)))
    assert came[len(pairs)] == -1
    assert came.index(len(pairs) - 1) < LOOP_CROWD_COUNT
    for pair in pairs:
        for sock in pair:
            sock.close()


def test_a_reader_removed_by_an_earlier_callback_of_the_turn_is_not_called(loop: Loop) -> None:
    first, second = socket.socketpair(), socket.socketpair()
    loop.add_reader(first[0].fileno(), lambda: loop.remove_reader(second[0].fileno()))
    loop.add_reader(second[0].fileno(), lambda: pytest.fail("was removed"))
    first[1].send(b".")
    second[1].send(b".")
    loop.turn(1)
    for sock in (*first, *second):
        sock.close()


def test_a_signal_wakes_the_loop_and_runs_its_callback_there(loop: Loop) -> None:
    """The callback may do anything, because it does not run inside the signal handler.

    Afterwards the disposition of the signal is as it was.
    """
    before = signal.getsignal(signal.SIGUSR1)
    came: list[int] = []
    loop.add_signal(signal.SIGUSR1, lambda: came.append(1))
    loop.call_soon(lambda: os.kill(os.getpid(), signal.SIGUSR1))
    assert loop.run_until(lambda: bool(came), within_s=1)
    loop.close()
    assert signal.getsignal(signal.SIGUSR1) is before


def test_stop_ends_run_after_the_turn(loop: Loop) -> None:
    came: list[str] = []
    loop.call_soon(loop.stop)
    loop.call_soon(lambda: came.append("same turn"))
    loop.run()
    assert came == ["same turn"]
