"""Serve the images of a node to processes on other nodes: the transfer image, and those of ranks.

Copies that other nodes send here are received by copy_keeper.py, once the sender is authenticated.

The kernel copies the bytes from shared memory to the socket (sendfile), as much at a time as the
socket takes. An image that is overwritten meanwhile arrives damaged, and the seal's checksum shows
that to its reader. Nothing is encrypted. Everything runs on one thread, the loop's.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

from outlast.model import limits
from outlast.model.manifest import Seal
from outlast.model.messages import (
    AskImage,
    Challenge,
    ImageHead,
    Message,
    Proof,
    PutImage,
    TurnedAway,
)
from outlast.model.wire import FrameReader
from outlast.runtime.agent.copy_keeper import CopyKeeper
from outlast.runtime.clock import now_s
from outlast.runtime.loop import Loop, LoopTimer
from outlast.runtime.network import trust
from outlast.runtime.network.acceptor import Acceptor
from outlast.runtime.network.channel import send_short
from outlast.runtime.network.listener import listen_in
from outlast.runtime.tiers.vault import Vault


class ImageServer:
    """Serve the images of one vault. `listen`, then let the loop run, then `close`.

    `key` is the run's key for images (`trust.image_key`). If it is None, anyone who can reach the
    address may ask.

    keeper   keeps copies for ranks of other nodes
    """

    def __init__(self, loop: Loop, vault: Vault, *, key: bytes | None) -> None:
        self._loop = loop
        self._vault = vault
        self._key = key
        self.keeper = CopyKeeper(loop, vault)
        self._acceptor: Acceptor | None = None
        self._senders: set[_Sender] = set()

    def listen(self, host: str, ports: tuple[int, int] | None = None) -> str:
        """Listen at `host`, and return the address as HOST:PORT. Raises OSError."""
        listener = listen_in(host, ports)
        address = listener.getsockname()
        self._acceptor = Acceptor(self._loop, listener, self._on_socket)
        return f"[{address[0]}]:{address[1]}" if ":" in address[0] else f"{address[0]}:{address[1]}"

    def close(self) -> None:
        """Close all connections."""
        if self._acceptor is not None:
            self._acceptor.close()
        for sender in tuple(self._senders):
            sender.close()
        self.keeper.close()

    def _on_socket(self, sock: socket.socket) -> None:
        if len(self._senders) >= limits.IMAGE_READERS_COUNT:
            sock.close()  # the other end tries again
            return
        self._senders.add(_Sender(self._loop, sock, self, self._key, self._senders.discard))

    def find(self, asked: AskImage) -> tuple[Path, Seal] | None:
        """Return the image that is asked for, and the file that contains it.

        Return None if it is not here.
        """
        if asked.stripe >= 0:
            return self.keeper.parity.find(asked.stripe, asked.row, asked.step)
        if asked.rank < 0:
            return self._vault.sealed_transfer(asked.generation, asked.step)
        if asked.copy:
            return self.keeper.held.find(asked.rank, asked.step)
        return self._vault.sealed_image(asked.rank, asked.step)


class _Sender:
    """One connection. It is asked once, and sends one image, or hands one over to the keeper."""

    def __init__(
        self,
        loop: Loop,
        sock: socket.socket,
        server: ImageServer,
        key: bytes | None,
        gone: Callable[[_Sender], object],
    ) -> None:
        self._loop = loop
        self._sock = sock
        self._server = server
        self._key = key
        self._gone = gone
        self._reader = FrameReader()
        self._asked: AskImage | PutImage | None = None
        self._question: Challenge | None = None
        # file, offset and end of what remains to be sent
        self._left: tuple[int, int, int] | None = None
        self._patience: LoopTimer = loop.call_at(now_s() + limits.LISTENER_WAIT_S, self.close)
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        loop.add_reader(sock.fileno(), self._read)

    def close(self) -> None:
        """Close the connection."""
        if self._sock.fileno() < 0:
            return
        self._patience.cancel()
        self._loop.remove_reader(self._sock.fileno())
        self._loop.remove_writer(self._sock.fileno())
        self._sock.close()
        if self._left is not None:
            os.close(self._left[0])
            self._left = None
        self._gone(self)

    def _read(self) -> None:
        try:
            data = self._sock.recv(limits.CHANNEL_READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.close()
            return
        for message in self._reader.feed(data):
            self._on_message(message)
        if self._reader.error:
            self.close()

    def _on_message(self, message: Message) -> None:
        if self._asked is None and isinstance(message, AskImage | PutImage):
            self._asked = message
            if self._key is None:
                self._begin(message)
                return
            nonce = trust.nonce()
            self._question = Challenge(nonce, trust.serves(message.nonce, nonce, key=self._key))
            self._say(self._question)
        elif (
            self._question is not None
            and self._asked is not None
            and self._left is None
            and isinstance(message, Proof)
            and trust.proves(message, self._question, token=self._key or b"")
        ):
            self._begin(self._asked)
        else:
            self.close()

    def _begin(self, asked: AskImage | PutImage) -> None:
        if isinstance(asked, PutImage):
            self._hand_over(asked)
            return
        found = self._server.find(asked)
        if found is None:
            what = "transfer image" if asked.rank < 0 else f"image of rank {asked.rank}"
            what = what if asked.stripe < 0 else f"row {asked.row} of parity"
            self._say(TurnedAway(f"no {what} of step {asked.step} is sealed here"))
            self.close()
            return
        path, seal = found
        text = seal.pack().hex()
        # A peer that names another image, or a negative offset, has received nothing of this one.
        offset = max(0, asked.offset) if asked.seal == text else 0
        try:
            file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self.close()
            return
        self._left = file, min(offset, seal.length), seal.length
        self._say(ImageHead(text, self._left[1]))
        self._loop.add_writer(self._sock.fileno(), self._write)

    def _hand_over(self, put: PutImage) -> None:
        self._patience.cancel()
        self._loop.remove_reader(self._sock.fileno())
        self._gone(self)
        self._server.keeper.take(self._sock, put)

    def _say(self, message: Message) -> None:
        if not send_short(self._sock, message):
            self._loop.call_soon(self.close)

    def _write(self) -> None:
        """Send the next piece. Other connections get their turn between two pieces."""
        if self._left is None:
            return
        file, offset, end = self._left
        count = min(end - offset, limits.IMAGE_PIECE_BYTES)
        try:
            sent = os.sendfile(self._sock.fileno(), file, offset, count) if count else 0
        except BlockingIOError:
            return
        except OSError:
            self.close()
            return
        self._left = file, offset + sent, end
        self._patience.cancel()
        if offset + sent >= end or not sent:
            self.close()
            return
        self._patience = self._loop.call_at(now_s() + limits.LISTENER_WAIT_S, self.close)
