"""How a node reaches the one that leads, and what it reports while there is no answer."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from outlast.app.launch import arrival
from outlast.errors import OutlastError, UsageError
from outlast.model import limits
from outlast.model.messages import Admitted
from outlast.model.wire import WIRE_VERSION
from outlast.runtime.agent.dialler import Caller
from outlast.runtime.loop import Loop
from outlast.runtime.network.listener import listen_at, listen_unless_taken
from outlast.runtime.software import difference, installed

CALLER = Caller(WIRE_VERSION, "1.0", "none", "b", "digest")
FACTS = Admitted(
    "run-1", "/runs/1", "/runs/1/checkpoints", 0.5, 2, 8, "/a/train.py", "d1", "Python 3.12.3"
)


def reach(address: tuple[str, int], *, wait_s: float, told: list[str]) -> None:
    destination = arrival.Destination(
        address, f"head ({address[0]}) port {address[1]}", wait_s, here=True
    )
    loop = Loop()
    try:
        arrival.reach(loop, destination, CALLER, token=None, tell=told.append)
    finally:
        loop.close()


def a_free_address() -> tuple[str, int]:
    with listen_at("127.0.0.1", 0) as free:
        host, port = free.getsockname()
    return host, port


@contextmanager
def a_web_server() -> Iterator[tuple[str, int]]:
    """Yield the address of a program that answers everything as a web server does."""
    with listen_at("127.0.0.1", 0) as listener:

        def serve() -> None:
            while True:
                try:
                    caller, _ = listener.accept()
                except OSError:
                    return
                with caller:
                    caller.recv(1000)
                    caller.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield listener.getsockname()
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()


def test_another_program_at_the_endpoint_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not dialled for ten minutes: after three answers that do not come from outlast, the
    node gives up.
    """
    with a_web_server() as address, pytest.raises(UsageError) as caught:
        reach(address, wait_s=60.0, told=[])
    text = str(caught.value)
    assert f"at head (127.0.0.1) port {address[1]} another program listens" in text
    assert "give another port on all nodes" in text


def test_the_address_dialled_how_often_and_until_when_are_reported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "TRIES_TOLD_FIRST_S", 0.2)
    address, told = a_free_address(), list[str]()
    with pytest.raises(OutlastError, match=r"was not reached in 1 s, with [0-9]+ tries") as caught:
        reach(address, wait_s=1.0, told=told)
    assert "does another program have that port" in str(caught.value)
    (said,) = told
    assert f"no `outlast run` answers at head (127.0.0.1) port {address[1]} so far" in said
    assert "tries (Connection refused): this node goes on trying until" in said
    assert "(--join-timeout 1)" in said


def test_an_address_that_cannot_be_bound_is_not_a_taken_port(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """This machine cannot have the address of another machine, and nothing would answer there."""
    with pytest.raises(UsageError, match=r"--rdzv-endpoint 192\.0\.2\.1:29400: this node cannot"):
        listen_unless_taken("192.0.2.1", 29400)
    with listen_at("127.0.0.1", 0) as taken:
        assert listen_unless_taken("127.0.0.1", taken.getsockname()[1]) is None


def test_a_node_with_another_number_of_ranks_is_refused() -> None:
    """Such a node would give its workers another WORLD_SIZE than the others have."""
    arrival.check_size(FACTS, nodes=2, workers=8)
    with pytest.raises(UsageError, match="--nnodes 2 --nproc-per-node 4, and the node that leads"):
        arrival.check_size(FACTS, nodes=2, workers=4)


def test_another_script_and_other_releases_are_named() -> None:
    def warnings(digest: str, software: str) -> list[str]:
        return arrival.warnings(FACTS, script="b/train.py", digest=digest, software=software)

    assert warnings("d1", "Python 3.12.3") == []
    assert warnings("", "Python 3.12.3") == [], "a module has no digest"
    script, releases = warnings("d2", "Python 3.10.1")
    assert script.startswith(
        "warning: b/train.py of this node is not the same script as /a/train.py"
    )
    assert releases.startswith(
        "warning: the node that leads has Python 3.12.3, and this node has Python 3.10.1"
    )


def test_releases_are_compared_one_by_one() -> None:
    ours = "Python 3.12.3, outlast 1, torch 2.8.0"
    assert difference("node b", ours, ours) == ""
    assert difference("node b", "", ours) == "", "it did not tell"
    said = difference("node b", "Python 3.12.3, outlast 1, torch 2.9.0", ours)
    assert "node b has torch 2.9.0, and this node has torch 2.8.0:" in said
    assert installed().startswith("Python 3.")
    assert ", outlast " in installed()
