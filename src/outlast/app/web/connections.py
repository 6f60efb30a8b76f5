"""Limit the connections of the server, and the time until each has sent a request.

uvicorn answers "unavailable" where there are too many requests, but it keeps every connection, and
waits for ever for a request that never ends. So clients that only connect could use up all
descriptors. Here a connection beyond the limit is closed at once, and one without a whole request
after REQUEST_S is closed, too. An answer may take as long as it likes: events go on for ever.
"""

from __future__ import annotations

from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

CONNECTIONS_MOST = 128
REQUEST_S = 10.0  # from the first byte of a request, or from the connection, to the request's end


class BoundedConnection(H11Protocol):
    """One connection, with a limit on its number and on the time that a request may take."""

    _deadline: Any = None  # the timer of asyncio; None while nothing is waited for
    _refused = False

    def connection_made(self, transport: Any) -> None:
        """Take the connection, or close it if there are too many."""
        if len(self.connections) >= CONNECTIONS_MOST:
            self._refused = True
            transport.abort()
            return
        super().connection_made(transport)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self._unwatch()
        if not self._refused:
            super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Read a piece of a request."""
        if self._refused:
            return
        super().data_received(data)
        if self._answers():
            self._unwatch()
        else:
            self._watch()

    def on_response_complete(self) -> None:
        """Wait for the next request. While nothing of it has come, uvicorn counts the time."""
        super().on_response_complete()
        self._unwatch()

    def _answers(self) -> bool:
        cycle: RequestResponseCycle | None = self.cycle  # None before the first request
        return cycle is not None and not cycle.response_complete

    def _watch(self) -> None:
        if self._deadline is None:
            self._deadline = self.loop.call_later(REQUEST_S, self._too_slow)

    def _unwatch(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _too_slow(self) -> None:
        self._deadline = None
        if not self._answers():
            self.transport.abort()
