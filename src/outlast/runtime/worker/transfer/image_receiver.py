"""Receive an image from another node, over one connection after the other, with patience.

    receiver = ImageReceiver(server, cancelled)
    while True:
        try:
            with receiver.connected() as sock:
                ...  # ask, then take bytes with `receiver.some`, and call `receiver.moved` for each
            return
        except (OSError, EOFError) as error:
            receiver.pause(error, "image")

A node may be silent for IMAGE_QUIET_S. The end of the generation ends the wait earlier.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable

from outlast.model import limits
from outlast.runtime import clock
from outlast.runtime.worker.transfer import image_dialogue
from outlast.runtime.worker.transfer.image_dialogue import Server


class ImageUnreached(RuntimeError):
    """The node that holds the image cannot be reached, or the generation is over."""


class ImageReceiver:
    """Connect to one node, and receive from it. It knows when the node has been silent too long.

    server      the node, and the key that both ends prove to know
    cancelled   whether the generation is over, for which the bytes are wanted
    """

    def __init__(self, server: Server, cancelled: Callable[[], bool]) -> None:
        self.server = server
        self._cancelled = cancelled
        self._moved_s = clock.now_s()  # when a byte that was wanted last arrived

    def connected(self) -> socket.socket:
        """Return a new connection. Raises OSError."""
        sock = image_dialogue.connect(self.server)
        sock.settimeout(limits.IMAGE_LOOK_S)
        return sock

    def some(self, sock: socket.socket, target: memoryview) -> int:
        """Receive some bytes. Raises EOFError at the end, and OSError after IMAGE_QUIET_S."""
        while True:
            try:
                count = sock.recv_into(target[: limits.IMAGE_PIECE_BYTES])
            except TimeoutError:
                self.look()
                if self._is_quiet():
                    raise
                continue
            if not count:
                raise EOFError("the connection was closed")
            return count

    def moved(self) -> None:
        """Note that wanted bytes have arrived. An answer without any does not count."""
        self._moved_s = clock.now_s()

    def look(self) -> None:
        """Raise ImageUnreached if the generation is over."""
        if self._cancelled():
            raise ImageUnreached("the generation is over")

    def pause(self, error: Exception, what: str) -> None:
        """Wait a moment before the next connection. Raises ImageUnreached if there will be none."""
        if self._is_quiet():
            raise ImageUnreached(f"no {what} from {self.server.address}: {error}") from error
        self.look()
        time.sleep(limits.STORE_LOOK_S)

    def _is_quiet(self) -> bool:
        return clock.now_s() - self._moved_s > limits.IMAGE_QUIET_S
