"""Which nodes do not answer, before a group is connected.

A port whose queue of connections is full stands for a cut link: the kernel drops what comes next.
tests/drills/test_hosts_cut_links.py shows a link that is cut.
"""

from __future__ import annotations

import contextlib
import errno
import socket
import time
from collections.abc import Iterator

from outlast.model.limits import LINK_PROBE_S
from outlast.runtime.worker.communication.peer_probe import is_silence, lowest_ranks, silent


@contextlib.contextmanager
def a_silent_port() -> Iterator[str]:
    """Listen at a port that answers no further connection, and give its address."""
    with contextlib.ExitStack() as held, socket.create_server(("127.0.0.1", 0), backlog=0) as full:
        host, port = full.getsockname()
        for _ in range(4):
            sock = held.enter_context(socket.socket())
            sock.setblocking(False)
            sock.connect_ex((host, port))
        yield f"{host}:{port}"


def refused() -> str:
    """Return an address at which nothing listens."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return f"127.0.0.1:{listener.getsockname()[1]}"


def test_a_node_that_does_not_answer_is_named_and_others_are_not() -> None:
    """Rank 1 is behind a silent port. That of rank 2 refuses, and that of rank 4 answers."""
    with a_silent_port() as silent_at, socket.create_server(("127.0.0.1", 0)) as listener:
        well = f"127.0.0.1:{listener.getsockname()[1]}"
        began_s = time.monotonic()
        assert silent({silent_at: 1, refused(): 2, well: 4, "no address": 5}, lambda: False) == (1,)
        assert time.monotonic() - began_s >= LINK_PROBE_S


def test_a_rank_that_reaches_all_nodes_does_not_wait() -> None:
    began_s = time.monotonic()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        well = f"127.0.0.1:{listener.getsockname()[1]}"
        assert silent({refused(): 1, well: 2}, lambda: False) == ()
    assert time.monotonic() - began_s < LINK_PROBE_S


def test_nothing_is_asked_any_more_once_the_generation_is_over() -> None:
    began_s = time.monotonic()
    with a_silent_port() as silent_at:
        assert silent({silent_at: 1}, lambda: True) == ()
    assert silent({}, lambda: True) == ()
    assert time.monotonic() - began_s < LINK_PROBE_S


def test_the_lowest_rank_stands_for_its_node() -> None:
    assert lowest_ranks(["a:1", "b:1", "a:1", "", "b:1", "c:1"]) == {"a:1": 0, "b:1": 1, "c:1": 5}


def test_a_refusal_is_an_answer() -> None:
    assert is_silence(TimeoutError())
    assert is_silence(OSError(errno.EHOSTUNREACH, "no route to host"))
    assert not is_silence(ConnectionRefusedError(errno.ECONNREFUSED, "refused"))
    assert not is_silence(RuntimeError("timed out"))
