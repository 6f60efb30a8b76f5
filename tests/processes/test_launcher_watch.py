"""Launchers that end, or live on, after their connection has closed, with real sockets."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import closing

import pytest

from outlast.model import limits
from outlast.runtime import clock
from outlast.runtime.coordinator.launcher_watch import LauncherWatch
from outlast.runtime.loop import Loop

WITHIN_S = 20.0


class Watch:
    """A watch that records what it reports."""

    def __init__(self) -> None:
        self.loop = Loop()
        self.ended: list[str] = []
        self.launchers = LauncherWatch(self.loop, ended=self.ended.append)

    def look(self, node: str, within_s: float = WITHIN_S) -> None:
        self.launchers.look(node, until_s=clock.now_s() + within_s)

    def says_nothing(self) -> bool:
        """Return True if nothing is reported in the time in which an end would have been found."""
        return not self.loop.run_until(
            lambda: bool(self.ended), within_s=4 * limits.LAUNCHER_GONE_S
        )


@pytest.fixture
def watch() -> Iterator[Watch]:
    one = Watch()
    with closing(one.loop), closing(one.launchers):
        yield one


def free_port() -> int:
    """Return a port on which nothing listens."""
    with listening() as sock:
        port: int = sock.getsockname()[1]
        return port


def listening(port: int = 0) -> socket.socket:
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.bind(("127.0.0.1", port))
    sock.listen()
    return sock


def test_a_launcher_whose_port_refuses_connections_has_ended(watch: Watch) -> None:
    watch.launchers.learn("b", f"127.0.0.1:{free_port()}", reached=True)
    began_s = clock.now_s()
    watch.look("b")
    assert watch.loop.run_until(lambda: bool(watch.ended), within_s=WITHIN_S)
    assert watch.ended == ["b"]
    assert clock.now_s() - began_s >= limits.LAUNCHER_GONE_S


def test_a_launcher_that_listens_lives_on(watch: Watch) -> None:
    with listening() as sock:
        watch.launchers.learn("b", f"127.0.0.1:{sock.getsockname()[1]}", reached=True)
        watch.look("b")
        assert watch.says_nothing()


def test_launchers_that_were_reached_are_found_when_they_end(watch: Watch) -> None:
    """Their addresses are tried when they become known. No other node has reached them yet."""
    with listening() as b, listening() as c:
        for node, sock in (("b", b), ("c", c)):
            watch.launchers.learn(node, f"127.0.0.1:{sock.getsockname()[1]}")
        assert watch.says_nothing()
        watch.look("b")
        watch.look("c")
        assert watch.says_nothing()
    assert watch.loop.run_until(lambda: len(watch.ended) == 2, within_s=WITHIN_S)
    assert sorted(watch.ended) == ["b", "c"]


def test_a_launcher_that_listens_again_has_not_ended(watch: Watch) -> None:
    """Its port refused one connection only, so the time for which it has to refuse starts over."""
    port = free_port()
    watch.launchers.learn("b", f"127.0.0.1:{port}", reached=True)
    watch.look("b")
    watch.loop.run_until(lambda: bool(watch.ended), within_s=2 * limits.LAUNCHER_LOOK_S)
    assert not watch.ended
    with listening(port):
        assert watch.says_nothing()


@pytest.mark.parametrize(
    "why", ["unknown", "nowhere", "never reached", "connected again", "its lease is void"]
)
def test_a_launcher_that_need_not_be_looked_for_is_not(watch: Watch, why: str) -> None:
    if why != "unknown":
        address = "" if why == "nowhere" else f"127.0.0.1:{free_port()}"
        watch.launchers.learn("b", address, reached=why != "never reached")
    watch.look("b", within_s=0.0 if why == "its lease is void" else WITHIN_S)
    if why == "connected again":
        watch.launchers.forget("b")
    assert watch.says_nothing()


def test_addresses_of_ipv6_are_read(watch: Watch) -> None:
    try:
        with socket.socket(socket.AF_INET6) as sock:
            sock.bind(("::1", 0))
            port = sock.getsockname()[1]
    except OSError as error:
        pytest.skip(f"this machine has no IPv6: {error}")
    watch.launchers.learn("b", f"[::1]:{port}", reached=True)
    watch.look("b")
    assert watch.loop.run_until(lambda: bool(watch.ended), within_s=WITHIN_S)
