"""The connections of `outlast serve`: clients that ask nothing take nothing from those that do."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

pytest.importorskip("uvicorn")

from uvicorn import Config
from uvicorn.server import ServerState

from outlast.app.web.connections import CONNECTIONS_MOST, REQUEST_S, BoundedConnection

HALF = b"GET / HTTP/1.1\r\nHost: localhost\r\n"


class Transport(asyncio.Transport):
    """One end of a connection, which notes whether it was closed."""

    def __init__(self) -> None:
        super().__init__()
        self.closed = False
        self.sent = b""

    def abort(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    def write(self, data: Any) -> None:
        self.sent += bytes(data)


class Server:
    """A server that opens connections in a loop whose clock is set by hand."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.config = Config(self.app, interface="asgi3", lifespan="off", log_config=None)
        self.config.load()
        self.state = ServerState()

    async def app(self, scope: Any, receive: Any, send: Any) -> None:
        await asyncio.Event().wait()  # an answer that takes for ever, as events do

    def connect(self) -> tuple[BoundedConnection, Transport]:
        one = BoundedConnection(self.config, self.state, {}, self.loop)
        transport = Transport()
        one.connection_made(transport)
        return one, transport


class LateLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock the test puts forward."""

    ahead_s = 0.0

    def time(self) -> float:
        return super().time() + self.ahead_s


def passes(loop: LateLoop, seconds: float) -> None:
    """Let so many seconds pass, without waiting for them."""
    loop.ahead_s += seconds
    loop.run_until_complete(asyncio.sleep(0))
    loop.run_until_complete(asyncio.sleep(0))


@pytest.fixture
def loop() -> Any:
    made = LateLoop()
    yield made
    for task in asyncio.all_tasks(made):
        task.cancel()
    made.run_until_complete(asyncio.sleep(0))
    made.close()


def test_a_connection_too_many_is_closed_and_takes_no_place(loop: LateLoop) -> None:
    server = Server(loop)
    kept = [server.connect() for _ in range(CONNECTIONS_MOST)]
    more, transport = server.connect()
    assert transport.closed
    assert not any(one.closed for _, one in kept)
    more.data_received(HALF)  # what was on its way
    more.connection_lost(None)
    first, _ = kept[0]
    first.connection_lost(None)
    assert not server.connect()[1].closed, "there is room again"


@pytest.mark.parametrize("said", [(), (HALF,), (HALF, b"A: b\r\n", b"C: d\r\n")])
def test_a_request_that_does_not_end_is_given_up(loop: LateLoop, said: tuple[bytes, ...]) -> None:
    """Bytes that trickle in give it no more time."""
    one, transport = Server(loop).connect()
    for piece in said:
        one.data_received(piece)
        passes(loop, REQUEST_S / 4)
    assert not transport.closed
    passes(loop, REQUEST_S)
    assert transport.closed


def test_an_answer_may_take_as_long_as_it_likes(loop: LateLoop) -> None:
    one, transport = Server(loop).connect()
    one.data_received(HALF + b"\r\n")
    passes(loop, 100 * REQUEST_S)
    assert not transport.closed
