"""`CopyKeeper`: receives and keeps copies of images that ranks of other nodes have sealed.

A rank connects, says which image it sends, and proves that it belongs to the run (image_server.py).
Then its connection is handed to the keeper, which runs on the loop of this node's agent. Memory is
allocated and bytes are read in small pieces, so that the agent can do its other work in between.
Once all bytes are there, the copy is sealed, and the coordinator and the rank are told.
"""

from __future__ import annotations

import socket
from collections.abc import Callable

from outlast.errors import CapacityError, CorruptError, OutlastError
from outlast.model import limits
from outlast.model.manifest import Seal, unpack_seal
from outlast.model.messages import CopyKept, ImageHead, Images, PutImage, TurnedAway
from outlast.runtime.channel import send_short
from outlast.runtime.clock import now_s
from outlast.runtime.loop import Loop, LoopTimer
from outlast.runtime.tiers.held_copies import HeldCopies, Incoming
from outlast.runtime.tiers.vault import Vault


def _nobody(_: CopyKept) -> None:
    return None


class CopyKeeper:
    """Keep copies for ranks of other nodes, in one vault.

    held      the copies
    on_kept   is called when the copies of a rank have changed, to tell the coordinator
    """

    def __init__(self, loop: Loop, vault: Vault) -> None:
        self.held = HeldCopies(vault)
        self.on_kept: Callable[[CopyKept], object] = _nobody
        self._loop = loop
        self._generations: dict[int, int] = {}  # rank -> the newest that it has sent a copy in
        self._incoming_copies: dict[int, _IncomingCopy] = {}

    def kept_images(self) -> tuple[Images, ...]:
        """Return which copies are here, for a coordinator that does not know them."""
        found = (Images(rank, self.held.steps(rank)) for rank in self.held.ranks())
        return tuple(one for one in found if one.steps)

    def take(self, sock: socket.socket, put: PutImage) -> None:
        """Receive a copy over `sock`, and close it afterwards."""
        seal = _read_seal(put.seal)
        if seal is None or put.generation < self._generations.get(put.rank, 0):
            # The sender was given up: another process holds the rank by now.
            send_short(sock, TurnedAway("the rank has gone on without the process that sends this"))
            sock.close()
            return
        self._generations[put.rank] = put.generation
        if (before := self._incoming_copies.pop(put.rank, None)) is not None:
            before.close()
        try:
            incoming = self.held.begin(put.rank, seal)
        except (CapacityError, CorruptError) as error:
            self.refuse(sock, put, error)
            return
        if incoming is None:
            self._tell(put)
            send_short(sock, ImageHead(put.seal, seal.length))
            sock.close()
            return
        self._incoming_copies[put.rank] = _IncomingCopy(self._loop, sock, put, incoming, self)

    def close(self) -> None:
        """Close all connections and files."""
        for one in tuple(self._incoming_copies.values()):
            one.close()
        self._incoming_copies.clear()
        self.held.close()

    # --- what a connection says ------------------------------------------------------------------

    def on_sealed(self, put: PutImage) -> None:
        """Tell the coordinator that a copy was sealed."""
        self._tell(put)

    def on_closed(self, rank: int, coming: _IncomingCopy) -> None:
        """Forget a connection that was closed."""
        if self._incoming_copies.get(rank) is coming:
            del self._incoming_copies[rank]

    def _tell(self, put: PutImage) -> None:
        self.on_kept(CopyKept(put.rank, put.generation, self.held.steps(put.rank)))

    def refuse(self, sock: socket.socket, put: PutImage, error: OutlastError) -> None:
        """Tell the rank why there is no copy, and forget its older copies.

        They are of steps that may be rolled back without any word to this node.
        """
        self.held.forget(put.rank)
        self._tell(put)
        send_short(sock, TurnedAway(error.message))
        sock.close()


class _IncomingCopy:
    """One copy that is being received."""

    def __init__(
        self, loop: Loop, sock: socket.socket, put: PutImage, incoming: Incoming, keeper: CopyKeeper
    ) -> None:
        self._loop = loop
        self._sock = sock
        self._put = put
        self._incoming = incoming
        self._keeper = keeper
        self._patience: LoopTimer | None = None
        self._make_room()

    def close(self) -> None:
        """Close the connection. An incomplete copy is dropped."""
        if self._sock.fileno() < 0:
            return
        if self._patience is not None:
            self._patience.cancel()
            self._loop.remove_reader(self._sock.fileno())
        self._sock.close()
        self._keeper.on_closed(self._put.rank, self)

    def _make_room(self) -> None:
        if self._sock.fileno() < 0:
            return
        try:
            ready = self._incoming.make_room(limits.COPY_ROOM_BYTES)
        except CapacityError as error:
            self._keeper.refuse(self._sock, self._put, error)
            self._keeper.on_closed(self._put.rank, self)
            return
        if not ready:
            self._loop.call_at(now_s(), self._make_room)
            return
        self._wait()
        self._loop.add_reader(self._sock.fileno(), self._read)
        send_short(self._sock, ImageHead(self._put.seal, 0))

    def _wait(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
        self._patience = self._loop.call_at(now_s() + limits.LISTENER_WAIT_S, self.close)

    def _read(self) -> None:
        """Read the next piece. The loop does other work between two pieces."""
        try:
            count = self._sock.recv_into(self._incoming.rest(limits.IMAGE_PIECE_BYTES))
        except BlockingIOError:
            return
        except OSError:
            count = 0
        if not count:
            self.close()
            return
        self._incoming.received += count
        self._wait()
        if self._incoming.received == self._incoming.seal.length:
            self._incoming.seal_it()
            self._keeper.on_sealed(self._put)
            send_short(self._sock, ImageHead(self._put.seal, self._incoming.received))
            self.close()


def _read_seal(text: str) -> Seal | None:
    try:
        return unpack_seal(bytes.fromhex(text))
    except ValueError:
        return None
