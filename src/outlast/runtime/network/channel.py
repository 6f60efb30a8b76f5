"""Messages over a stream socket: `Channel` in an event loop, `BlockingChannel` in a thread.

Both close on a corrupt frame, with the reason, after what came before it; neither raises into the
loop. A closed channel drops what is sent.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterator

from outlast.model.limits import CHANNEL_BUFFER_MAX_BYTES, CHANNEL_READ_BYTES
from outlast.model.messages import Message
from outlast.model.wire import FrameReader, encode
from outlast.runtime.loop import Loop


def send_short(sock: socket.socket, message: Message) -> bool:
    """Send a message over a socket that has no channel. Return False if its peer is gone.

    The message must be so short that the kernel takes all of it: nothing is kept to be sent later.
    """
    try:
        sock.send(encode(message))
    except OSError:
        return False
    return True


class Channel:
    """A channel that never blocks, for use inside the loop.

    `on_close(reason)` is called once, from the loop; "" means that the peer closed.
    """

    def __init__(
        self,
        loop: Loop,
        sock: socket.socket,
        *,
        on_message: Callable[[Message], None],
        on_close: Callable[[str], None],
    ) -> None:
        self._loop = loop
        self._sock = sock
        self._on_message = on_message
        self._on_close = on_close
        self._reader = FrameReader()
        self._unsent = bytearray()
        self.closed = False
        sock.setblocking(False)
        loop.add_reader(sock.fileno(), self._read_some)

    def send(self, message: Message) -> None:
        """Send at once. If a peer leaves CHANNEL_BUFFER_MAX_BYTES unread, its channel is closed."""
        if not self.closed:
            self.send_frames(encode(message))

    def send_frames(self, frames: bytes) -> None:
        """Send messages that are encoded already, several in one write. This never blocks."""
        if self.closed:
            return
        if not self._unsent:
            frames = frames[self._take(frames) :]
            if not frames or self.closed:
                return
            self._loop.add_writer(self._sock.fileno(), self._write)
        self._unsent += frames
        if len(self._unsent) > CHANNEL_BUFFER_MAX_BYTES:
            self._fail(f"the peer has left {len(self._unsent):,} bytes unread")

    @property
    def unsent_bytes(self) -> int:
        """Return how many bytes the kernel has not accepted yet."""
        return len(self._unsent)

    def drain(self) -> None:
        """Deliver what has arrived already. This is for a peer that is known to be dead."""
        while not self.closed and self._read_some():
            pass

    def close(self) -> None:
        """Close the channel without calling `on_close`."""
        if self.closed:
            return
        self.closed = True
        self._loop.remove_reader(self._sock.fileno())
        self._loop.remove_writer(self._sock.fileno())
        self._sock.close()

    def _read_some(self) -> bool:
        buffer = self._loop.buffer
        try:
            length = self._sock.recv_into(buffer)
        except BlockingIOError:
            return False
        except OSError as error:
            self._fail("" if isinstance(error, ConnectionError) else str(error))
            return False
        if not length:
            self._fail("")
            return False
        for message in self._reader.feed(buffer[:length]):  # the reader keeps nothing of the buffer
            if self.closed:
                break
            self._on_message(message)
        if self._reader.error:
            self._fail(self._reader.error)
        return not self.closed

    def _write(self) -> None:
        del self._unsent[: self._take(self._unsent)]
        if not self._unsent and not self.closed:
            self._loop.remove_writer(self._sock.fileno())

    def _take(self, frames: bytes | bytearray) -> int:
        """Write once. Return how many bytes the kernel has accepted."""
        try:
            return self._sock.send(frames)
        except BlockingIOError:
            return 0
        except OSError as error:
            self._fail("" if isinstance(error, ConnectionError) else str(error))
            return 0

    def _fail(self, reason: str) -> None:
        if not self.closed:
            self.close()
            self._loop.call_soon(lambda: self._on_close(reason))


class BlockingChannel:
    """A channel that blocks, for a worker's threads.

    Any thread may call `send`, which takes a lock. One thread iterates over the messages. The
    iteration ends with the file. `error` says why it ended early, and is "" if the peer closed. A
    send to a closed peer is dropped, and the listener learns that the peer has closed.
    """

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._lock = threading.Lock()
        self._owner = os.getpid()
        self.error = ""
        sock.setblocking(True)

    def send(self, message: Message) -> None:
        if os.getpid() != self._owner:
            # a fork that the script has made has this socket, too, and must not speak for the rank
            return
        frame = encode(message)
        with self._lock:
            try:
                self._sock.sendall(frame)
            except OSError as error:
                self.error = self.error or str(error)

    def __iter__(self) -> Iterator[Message]:
        reader = FrameReader()
        while True:
            try:
                data = self._sock.recv(CHANNEL_READ_BYTES)
            except OSError as error:
                self.error = str(error)
                return
            if not data:
                return
            yield from reader.feed(data)
            if reader.error:
                self.error = reader.error
                return

    def close(self) -> None:
        """Close the channel, and wake a thread that reads."""
        try:
            self._sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        self._sock.close()
