"""Fetch the transfer image, or that of a rank, from another node into the vault of this node.

One process of the node fetches, and the others wait for it and find the image there. A connection
that breaks is made again, and goes on where it broke off. The image is verified when it is read.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from outlast.errors import CorruptError
from outlast.model import limits
from outlast.model.manifest import Seal, unpack_seal
from outlast.model.messages import AskImage, ImageHead, TurnedAway
from outlast.runtime.network import trust
from outlast.runtime.tiers.vault import Vault
from outlast.runtime.worker.transfer import image_dialogue
from outlast.runtime.worker.transfer.image_dialogue import Server
from outlast.runtime.worker.transfer.image_receiver import ImageReceiver, ImageUnreached


@dataclass(frozen=True, slots=True)
class Wanted:
    """The image that is wanted. `generation` None: any generation.

    of, as_   the rank whose image it is, and the rank of which it will be an image here; -1: it is
              the transfer image
    copy      it is the copy that the other node keeps of the image of `of`
    """

    generation: int | None
    step: int
    of: int = -1
    as_: int = -1
    copy: bool = False

    def there(self, vault: Vault) -> bool:
        """Return whether the image is in `vault` already."""
        if self.of < 0:
            found = vault.sealed_transfer(self.generation, self.step)
        else:
            found = vault.sealed_image(self.as_, self.step)
        return found is not None

    def receive(self, vault: Vault, seal: Seal, fill: Callable[[memoryview], None]) -> None:
        """Put the image into `vault`; `fill` writes its bytes."""
        if self.of < 0:
            vault.receive_transfer(seal, fill)
        else:
            vault.receive_image(self.as_, seal, fill)


def fetch(vault: Vault, wanted: Wanted, server: Server, cancelled: Callable[[], bool]) -> None:
    """Bring the image into `vault`, unless it is there.

    Raises ImageUnreached, also as soon as `cancelled()` returns True, and CapacityError if there is
    no room.
    """
    with _alone(vault, cancelled):
        if not wanted.there(vault):
            _Fetch(vault, wanted, server, cancelled).run()


@contextlib.contextmanager
def _alone(vault: Vault, cancelled: Callable[[], bool]) -> Iterator[None]:
    """Let one process of this node at a time into the block."""
    fd = os.open(vault.folder / "fetch", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        while True:
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            if cancelled():
                raise ImageUnreached("the generation is over")
            time.sleep(limits.STORE_LOOK_S)
        yield
    finally:
        os.close(fd)


class _Fetch:
    """One image that is being fetched, over one connection after the other."""

    def __init__(
        self, vault: Vault, wanted: Wanted, server: Server, cancelled: Callable[[], bool]
    ) -> None:
        self._vault = vault
        self._wanted = wanted
        self._receiver = ImageReceiver(server, cancelled)
        self._received = 0
        self._seal: Seal | None = None

    def run(self) -> None:
        while True:
            try:
                with self._receiver.connected() as sock:
                    self._take(sock)
                return
            except (OSError, EOFError, CorruptError) as error:
                if self._wanted.copy and isinstance(error, CorruptError):
                    raise  # it is not there, and will not be, so another source is tried
                self._receiver.pause(error, "image")

    def _take(self, sock: socket.socket) -> None:
        """Ask for the image, or for the rest of it, and write it into the vault."""
        head = self._ask(sock)
        seal = unpack_seal(bytes.fromhex(head.seal))
        if seal is None:
            raise CorruptError("a seal that cannot be read")
        self._received = head.offset if self._seal == seal else 0
        self._seal = seal
        self._wanted.receive(self._vault, seal, lambda slot: self._fill(sock, slot))

    def _ask(self, sock: socket.socket) -> ImageHead:
        nonce, wanted = trust.nonce(), self._wanted
        known = self._seal.pack().hex() if self._seal is not None else ""
        asked = AskImage(
            nonce, wanted.generation, wanted.step, self._received, known, wanted.of, wanted.copy
        )
        answer = image_dialogue.ask(
            sock,
            asked,
            key=self._receiver.server.key,
            receive=lambda target: self._receiver.some(sock, target),
        )
        if isinstance(answer, TurnedAway):
            raise CorruptError(answer.reason)
        return answer

    def _fill(self, sock: socket.socket, slot: memoryview) -> None:
        while self._received < len(slot):
            self._received += self._receiver.some(sock, slot[self._received :])
            self._receiver.moved()
