"""Ten clients that take as much of `outlast serve` as they can, for hostile_clients.py.

    python benchmarks/_hostile.py PORT SMALL LARGE

SMALL is a run that goes on, LARGE one whose page is large. All clients are in this one process, at
the lowest priority, because they would be on other machines. They go on until standard input is
closed. Then one line of JSON says how often each of them did what.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import sys
from collections import Counter
from collections.abc import Awaitable, Callable

EACH = 2  # clients of each kind
PAUSE_S = 0.05  # before a client tries again after it was refused or cut off
HUGE_BYTES = 1 << 20
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Clients:
    """The clients of one server, and what they did."""

    def __init__(self, port: int, small: str, large: str) -> None:
        self._port = port
        self._small, self._large = f"/runs/{small}/events", f"/runs/{large}/"
        self.seen: Counter[str] = Counter()

    async def all(self) -> None:
        """Let all clients work for ever."""
        kinds = (self.read_slowly, self.half_ask, self.send_much, self.ask_on, self.never_read)
        await asyncio.gather(*(self._again(kind) for kind in kinds for _ in range(EACH)))

    async def _again(self, kind: Callable[[Streams], Awaitable[None]]) -> None:
        while True:
            try:
                streams = await self._connected(reads=kind == self.ask_on)
                try:
                    await kind(streams)
                finally:
                    streams[1].transport.abort()
            except (OSError, asyncio.IncompleteReadError):
                self.seen[f"{kind.__name__}: refused or cut off"] += 1
            await asyncio.sleep(PAUSE_S)

    async def _connected(self, *, reads: bool) -> Streams:
        made = socket.socket()
        made.setblocking(False)
        if not reads:  # the server has to wait soon
            made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        try:
            await asyncio.get_running_loop().sock_connect(made, ("127.0.0.1", self._port))
        except OSError:
            made.close()
            raise
        return await asyncio.open_connection(sock=made, limit=1 << 16 if reads else 1)

    async def read_slowly(self, streams: Streams) -> None:
        """Ask for a large page, and read a few bytes a second."""
        streams[1].write(request(self._large))
        while await streams[0].read(1):
            self.seen["read_slowly: bytes"] += 1
            await asyncio.sleep(1)

    async def half_ask(self, streams: Streams) -> None:
        """Begin a request, and send one more byte of it each second."""
        streams[1].write(b"GET / HTTP/1.1\r\nHost: localhost\r\nX: ")
        self.seen["half_ask: begun"] += 1
        while not streams[0].at_eof():
            streams[1].write(b"x")
            await streams[1].drain()
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(streams[0].read(1), 1)
        self.seen["half_ask: closed by the server"] += 1

    async def send_much(self, streams: Streams) -> None:
        """Send a header of a megabyte."""
        streams[1].write(b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * HUGE_BYTES)
        await streams[1].drain()
        if await streams[0].read(1):
            self.seen["send_much: answered"] += 1

    async def ask_on(self, streams: Streams) -> None:
        """Ask for a large page, read it whole, and ask again at once."""
        streams[1].write(request(self._large))
        while await streams[0].read(1 << 16):
            pass
        self.seen["ask_on: answered"] += 1

    async def never_read(self, streams: Streams) -> None:
        """Open a stream of events, and read nothing of it."""
        streams[1].write(request(self._small))
        self.seen["never_read: opened"] += 1
        await asyncio.sleep(3600)


def request(path: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode()


async def main(port: int, small: str, large: str) -> None:
    clients = Clients(port, small, large)
    work = asyncio.create_task(clients.all())
    await asyncio.to_thread(sys.stdin.read)
    work.cancel()
    print(json.dumps(clients.seen), flush=True)
    os._exit(0)  # some clients sleep for an hour


if __name__ == "__main__":
    os.nice(19)
    asyncio.run(main(int(sys.argv[1]), *sys.argv[2:]))
