"""`CopyKeeper`: keeps copies or parity of images that ranks of other nodes have sealed.

A rank connects, says which image it sends, and proves that it belongs to the run (image_server.py).
Then its connection is handed to the keeper, which runs on the loop of this node's agent. Memory is
allocated and bytes are read in small pieces, so that the agent can do its other work in between.
Once all bytes are there, the copy is sealed, and the coordinator and the rank are told. A part that
is sent for parity is added to the row of its stripe. The rank is told once its part is in the row,
and the coordinator once the row has the parts of all its ranks.

In another generation other nodes may keep what this one has kept. Its memory is given back as soon
as a rank sends a second step: all ranks have voted by then, so everything of the first one has
arrived where it belongs (`_drop_stale`).
"""

from __future__ import annotations

import socket
from collections.abc import Callable

from outlast.errors import CapacityError, CorruptError, OutlastError
from outlast.model import limits
from outlast.model.manifest import Seal, unpack_seal
from outlast.model.messages import (
    CopyKept,
    ImageHead,
    Images,
    ParityKept,
    PutImage,
    TurnedAway,
)
from outlast.runtime.clock import now_s
from outlast.runtime.loop import Loop, LoopTimer
from outlast.runtime.network.channel import send_short
from outlast.runtime.tiers.held_copies import HeldCopies, Incoming
from outlast.runtime.tiers.held_parity import HeldParity, IncomingPart
from outlast.runtime.tiers.parity import part_of
from outlast.runtime.tiers.vault import Vault


def _nobody(_: CopyKept | ParityKept) -> None:
    return None


class CopyKeeper:
    """Keep copies and parity for ranks of other nodes, in one vault.

    held      the copies
    parity    the rows of parity
    on_kept   is called when the copies of a rank or the rows of a stripe have changed, to tell the
              coordinator
    """

    def __init__(self, loop: Loop, vault: Vault) -> None:
        self.held = HeldCopies(vault)
        self.parity = HeldParity(vault)
        self.on_kept: Callable[[CopyKept | ParityKept], object] = _nobody
        self._loop = loop
        # rank -> the newest generation in which it has sent a copy, and the first step of that
        self._generations: dict[int, tuple[int, int]] = {}
        self._dropped = 0  # the generation in which stale copies were looked for last
        # The key is a rank and the stripe of a part. The stripe -1 stands for a whole copy.
        self._incoming_copies: dict[tuple[int, int], _IncomingCopy] = {}

    def kept_images(self) -> tuple[Images, ...]:
        """Return which copies are here, for a coordinator that does not know them."""
        found = (Images(rank, self.held.steps(rank)) for rank in self.held.ranks())
        return tuple(one for one in found if one.steps)

    def take(self, sock: socket.socket, put: PutImage) -> None:
        """Receive a copy over `sock`, and close it afterwards."""
        seal = _read_seal(put.seal)
        known, first = self._generations.get(put.rank, (0, 0))
        if seal is None or put.generation < known:
            # The sender was given up: another process holds the rank by now.
            send_short(sock, TurnedAway("the rank has gone on without the process that sends this"))
            sock.close()
            return
        if put.generation > known:
            self._generations[put.rank] = put.generation, seal.step
        elif seal.step > first and put.generation > self._dropped:
            self._dropped = put.generation
            self._drop_stale(put.generation, seal.step)
        if (before := self._incoming_copies.pop(_key(put), None)) is not None:
            before.close()
        if put.share is not None and self.parity.is_older(put.share.stripe, put.generation):
            # Another rank of the stripe is in the next generation already. This one will be, too.
            sock.close()
            return
        incoming: Incoming | IncomingPart | None
        try:
            if put.share is None:
                incoming, whole = self.held.begin(put.rank, seal), seal.length
            else:
                incoming = self.parity.begin(put.share, put.generation, seal)
                begin, end = part_of(seal.length, data=len(put.share.ranks), place=put.share.place)
                whole = end - begin
        except (CapacityError, CorruptError) as error:
            self.refuse(sock, put, error)
            return
        if incoming is None:
            self._tell(put)
            send_short(sock, ImageHead(put.seal, whole))
            sock.close()
            return
        self._incoming_copies[_key(put)] = _IncomingCopy(self._loop, sock, put, incoming, self)

    def close(self) -> None:
        """Close all connections and files."""
        for one in tuple(self._incoming_copies.values()):
            one.close()
        self._incoming_copies.clear()
        self.held.close()
        self.parity.close()

    # --- what a connection reports ---------------------------------------------------------------

    def on_sealed(self, put: PutImage) -> None:
        """Tell the coordinator that a copy was sealed, or that a row is complete."""
        self._tell(put)

    def on_closed(self, put: PutImage, coming: _IncomingCopy) -> None:
        """Forget a connection that was closed."""
        if self._incoming_copies.get(_key(put)) is coming:
            del self._incoming_copies[_key(put)]

    def _drop_stale(self, generation: int, step: int) -> None:
        """Give back the memory of what no rank has sent here in this generation."""
        for one in tuple(self._incoming_copies.values()):
            if one.put.generation < generation:
                one.close()  # its sender was given up
        for rank in self.held.ranks():
            known, _ = self._generations.get(rank, (0, 0))
            if known < generation and max(self.held.steps(rank), default=-1) < step:
                self.held.drop(rank)
                self.on_kept(CopyKept(rank, known, ()))
        for stripe in self.parity.stripes():
            if self.parity.is_stale(stripe, generation=generation, step=step):
                self.parity.drop(stripe)
                self.on_kept(ParityKept(stripe, ()))

    def _tell(self, put: PutImage) -> None:
        if put.share is not None:
            self.on_kept(self.parity.rows(put.share.stripe))
            return
        self.on_kept(CopyKept(put.rank, put.generation, self.held.steps(put.rank)))

    def refuse(self, sock: socket.socket, put: PutImage, error: OutlastError) -> None:
        """Tell the rank why there is no copy, and forget its older ones, or the rows of its stripe.

        These are of steps that may be rolled back without a message to this node.
        """
        if put.share is None:
            self.held.forget(put.rank)
        else:
            self.parity.forget(put.share.stripe)
        self._tell(put)
        send_short(sock, TurnedAway(error.message))
        sock.close()


class _IncomingCopy:
    """One copy, or one part for parity, that is being received."""

    def __init__(
        self,
        loop: Loop,
        sock: socket.socket,
        put: PutImage,
        incoming: Incoming | IncomingPart,
        keeper: CopyKeeper,
    ) -> None:
        self._loop = loop
        self.put = put
        self._sock = sock
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
        self._keeper.on_closed(self.put, self)

    def _make_room(self) -> None:
        if self._sock.fileno() < 0:
            return
        try:
            ready = self._incoming.make_room(limits.COPY_ROOM_BYTES)
        except CapacityError as error:
            self._keeper.refuse(self._sock, self.put, error)
            self._keeper.on_closed(self.put, self)
            return
        if not ready:
            self._loop.call_at(now_s(), self._make_room)
            return
        self._wait()
        self._loop.add_reader(self._sock.fileno(), self._read)
        if self._incoming.received == self._incoming.length:
            self._finish()  # the image is empty
            return
        send_short(self._sock, ImageHead(self.put.seal, self._incoming.received))

    def _wait(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
        self._patience = self._loop.call_at(now_s() + limits.LISTENER_WAIT_S, self.close)

    def _read(self) -> None:
        """Read the next piece. The loop does other work between two pieces."""
        if self._incoming.is_over:
            self.close()
            return
        try:
            count = self._sock.recv_into(self._incoming.rest(limits.IMAGE_PIECE_BYTES))
        except BlockingIOError:
            return
        except OSError:
            count = 0
        if not count:
            self.close()
            return
        self._incoming.took(count)
        self._wait()
        if self._incoming.received == self._incoming.length:
            self._finish()

    def _finish(self) -> None:
        if self._incoming.finish():
            self._keeper.on_sealed(self.put)
        send_short(self._sock, ImageHead(self.put.seal, self._incoming.received))
        self.close()


def _key(put: PutImage) -> tuple[int, int]:
    return put.rank, -1 if put.share is None else put.share.stripe


def _read_seal(text: str) -> Seal | None:
    try:
        return unpack_seal(bytes.fromhex(text))
    except ValueError:
        return None
