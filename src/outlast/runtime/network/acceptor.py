"""Accept connections in an event loop, even while no descriptor is free."""

from __future__ import annotations

import socket
from collections.abc import Callable

from outlast.model import limits
from outlast.runtime.clock import now_s
from outlast.runtime.loop import Loop


class Acceptor:
    """Pass each connection to a listening socket to `on_socket`, until `close`.

    Without a free descriptor a connection stays in the kernel's queue, and the loop would be woken
    for it at once, again and again. So the socket is then ignored for RECONNECT_S.
    """

    def __init__(
        self, loop: Loop, listener: socket.socket, on_socket: Callable[[socket.socket], object]
    ) -> None:
        listener.setblocking(False)
        self._loop = loop
        self._listener: socket.socket | None = listener
        self._on_socket = on_socket
        self._begin()

    def close(self) -> None:
        """Close the listening socket. Connections that were passed on stay open."""
        if self._listener is not None:
            self._loop.remove_reader(self._listener.fileno())
            self._listener.close()
            self._listener = None

    def _begin(self) -> None:
        if self._listener is not None:  # it may have been closed meanwhile
            self._loop.add_reader(self._listener.fileno(), self._accept)

    def _accept(self) -> None:
        assert self._listener is not None
        try:
            sock, _ = self._listener.accept()
        except (BlockingIOError, ConnectionError):
            return  # the connection was closed again
        except OSError:
            # There is no descriptor or no memory for it, so look again later.
            self._loop.remove_reader(self._listener.fileno())
            self._loop.call_at(now_s() + limits.RECONNECT_S, self._begin)
            return
        self._on_socket(sock)
