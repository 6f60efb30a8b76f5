"""A listener or a dialler goes on by itself once a file descriptor is free again."""

from __future__ import annotations

import contextlib
import os
import resource
import socket
from collections.abc import Iterator

import pytest

from outlast.model.wire import WIRE_VERSION
from outlast.runtime.agent.dialler import Caller, Dialler
from outlast.runtime.clock import now_s
from outlast.runtime.loop import Loop
from outlast.runtime.network.acceptor import Acceptor
from outlast.runtime.network.listener import listen_at
from tests.processes.test_dialler import Ear

WITHIN_S = 10.0


@pytest.fixture
def loop() -> Iterator[Loop]:
    loop = Loop()
    yield loop
    loop.close()


@contextlib.contextmanager
def no_descriptor() -> Iterator[None]:
    """Keep this process from opening any file descriptor."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.open(os.devnull, os.O_RDONLY)
    os.close(free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, hard))
    try:
        with pytest.raises(OSError, match="Too many open files"):
            os.open(os.devnull, os.O_RDONLY)
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_connection_without_a_descriptor_waits_and_takes_no_processor(loop: Loop) -> None:
    """Method: count the turns of the loop while no connection can be accepted."""
    came: list[socket.socket] = []
    listener = listen_at("127.0.0.1", 0)
    acceptor = Acceptor(loop, listener, came.append)
    with socket.create_connection(listener.getsockname()), no_descriptor():
        turns, until_s = 0, now_s() + 0.2
        while now_s() < until_s:
            loop.turn(until_s - now_s())
            turns += 1
        assert not came
        assert turns < 10, "the loop was told of it again and again"
    assert loop.run_until(lambda: bool(came), within_s=WITHIN_S)
    came[0].close()
    acceptor.close()


def test_a_dialler_without_a_descriptor_tries_again(loop: Loop) -> None:
    with listen_at("127.0.0.1", 0) as listener:
        caller = Caller(WIRE_VERSION, "1.0", "none", "b", "digest")
        dialler = Dialler(loop, listener.getsockname(), caller, Ear(), token=None)
        with no_descriptor():
            dialler.dial()
            assert loop.run_until(lambda: bool(dialler.error), within_s=WITHIN_S)
        assert "Too many open files" in dialler.error
        assert loop.run_until(lambda: dialler.tries > 1, within_s=WITHIN_S)
        dialler.close()
