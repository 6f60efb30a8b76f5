"""The process that writes the images of a node's ranks to the disk, while they train.

The node's launcher starts it with the lowest priority. It does not import torch. A rank captures
its image in memory that it shares with this process, and trains on. From then on this process holds
the memory. So an image that was captured is written even if its rank dies.

It reports to the launcher on stdout, in lines of JSON. The field `what` is one of these:

    listens               orders are accepted from now on
    begun, moved, ended   an order is being carried out; some of it was written; it is over
    orphan                an order was carried out, and its worker did not take the answer
    alive                 the answer to each line on stdin

On stdin the launcher also says which steps were rolled back (write_orders.py). An image of such a
step that a dead rank has left gets no file name any more, because the rank's successor writes a
file of the same name.

The process ends when the launcher ends, or closes its stdin.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from outlast.engine.durable import Rollbacks
from outlast.errors import OutlastError, whole_message_of
from outlast.model.limits import WRITER_MOVED_S, WRITERS_COUNT
from outlast.runtime import clock, linux
from outlast.runtime.image_writer.direct_disk import DirectDisk, in_blocks
from outlast.runtime.image_writer.write_orders import (
    ASK,
    MOVED,
    PACKET_BYTES,
    WriteAnswer,
    WriteOrder,
    decode_order,
    decode_rollback,
)
from outlast.runtime.tiers import local
from outlast.runtime.tiers.lease_page import LeasePage
from outlast.runtime.tiers.local import Disk

Say = Callable[[dict[str, Any]], None]


class ImageWriter:
    """Carry out orders: at most WRITERS_COUNT at once, and one at a time for each file.

    path      where workers connect
    say       called with each report to the launcher
    disk      makes the disk of one order, from a function that says why its file is late, or ""
    may_act   returns False once the lease of this node is over
    """

    def __init__(
        self,
        path: Path,
        say: Say,
        *,
        disk: Callable[[Callable[[], str]], Disk] = DirectDisk,
        may_act: Callable[[], bool] = lambda: True,
    ) -> None:
        self.rollbacks = Rollbacks()
        self._path = path
        self._say = say
        self._disk = disk
        self._may_act = may_act
        self._changed = threading.Condition()
        self._writing: set[str] = set()  # the files that are being written now
        self._clients: set[socket.socket] = set()
        self._moved_s = 0.0

    def listen(self) -> None:
        """Accept orders until the process ends. Raises OSError if no socket can be made there."""
        self._path.unlink(missing_ok=True)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        listener.bind(str(self._path))
        listener.listen(socket.SOMAXCONN)
        self._say({"what": "listens"})
        while True:
            client, _ = listener.accept()
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        """Carry out the order that one worker sends."""
        with client, contextlib.suppress(OSError):  # the worker died
            try:
                order, memory = _receive(client)
            except ValueError as error:
                client.send(WriteAnswer(f"the order was refused: {error}").encode())
                return
            self._say({"what": "begun"})
            with self._changed:
                self._clients.add(client)
            try:
                answer = WriteAnswer(self._write(order, memory))
            finally:
                with self._changed:
                    self._clients.discard(client)
                self._say({"what": "ended"})
            taken = b""
            with contextlib.suppress(OSError):
                client.send(answer.encode())
                taken = client.recv(PACKET_BYTES)
            if not taken:
                self._say({"what": "orphan", "order": asdict(order), "error": answer.error})

    def _write(self, order: WriteOrder, memory: memoryview) -> str:
        """Write one file. Return why it is not durable, or ""."""
        folder, disk = Path(order.folder), self._disk(lambda: self._why_late(order))
        with self._turn(str(folder / order.name)):
            if why := self._why_late(order):
                return why
            try:
                blocks = in_blocks(memory[: order.length], self._moved)
                entry = local.write_file(folder, order.name, blocks, disk=disk)
            except (OutlastError, OSError, MemoryError) as error:
                return whole_message_of(error) or "the process that writes it gets no more memory"
        if (entry.length, entry.checksum) != (order.length, order.checksum):
            return "the captured bytes have changed since they were captured"
        return ""

    def _why_late(self, order: WriteOrder) -> str:
        """Return why an image must not become a file any more, or ""."""
        if not self._may_act():
            return "the lease of this node is over"
        return self.rollbacks.why_not(generation=order.generation, step=order.step)

    @contextlib.contextmanager
    def _turn(self, path: str) -> Iterator[None]:
        """Wait until no other order writes this file, and fewer than WRITERS_COUNT write any."""
        with self._changed:
            self._changed.wait_for(
                lambda: len(self._writing) < WRITERS_COUNT and path not in self._writing
            )
            self._writing.add(path)
        try:
            yield
        finally:
            with self._changed:
                self._writing.discard(path)
                self._changed.notify_all()

    def _moved(self) -> None:
        """Tell workers and launcher that bytes are being written, once in WRITER_MOVED_S."""
        with self._changed:
            now_s = clock.now_s()
            if now_s - self._moved_s < WRITER_MOVED_S:
                return
            self._moved_s = now_s
            for client in self._clients:
                with contextlib.suppress(OSError):
                    client.send(MOVED, socket.MSG_DONTWAIT)
        self._say({"what": "moved"})


def _receive(client: socket.socket) -> tuple[WriteOrder, memoryview]:
    """Return an order, and the memory that came with it. Raises OSError or ValueError."""
    packet, descriptors, _, _ = socket.recv_fds(client, PACKET_BYTES, 1)
    try:
        order = decode_order(packet)
        if not descriptors or os.fstat(descriptors[0]).st_size < order.length:
            raise ValueError("the order came without its memory")
        return order, memoryview(mmap.mmap(descriptors[0], 0, prot=mmap.PROT_READ))
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


def _to_launcher(report: dict[str, Any]) -> None:
    line = json.dumps(report).encode() + b"\n"
    with contextlib.suppress(OSError):  # the launcher is gone, and this process ends soon
        os.write(1, line)


def main(argv: list[str]) -> int:
    """Serve until stdin is closed. The arguments: the path of the socket, the launcher's pid."""
    path, launcher = argv
    try:
        linux.stop_with(int(launcher))
    except ProcessLookupError:
        return 0
    linux.set_name("outlast-writer")
    lease = _lease(Path(path).parent)
    writer = ImageWriter(Path(path), _to_launcher, disk=DirectDisk, may_act=lease)
    threading.Thread(target=_until_closed, args=(writer.rollbacks,), daemon=True).start()
    try:
        writer.listen()
    except OSError as error:
        print(f"error: {error.strerror}", file=sys.stderr)
    return 1


def _lease(vault: Path) -> Callable[[], bool]:
    """Return a function that says whether this node may still write.

    If the run has one node only, there is no lease, and it always may.
    """
    if not (vault / "lease").exists():
        return lambda: True
    lease = LeasePage(vault)
    return lambda: clock.now_s() < lease.until_s


def _until_closed(rollbacks: Rollbacks) -> None:
    with open(0, "rb", buffering=0, closefd=False) as stdin:
        while line := stdin.readline(PACKET_BYTES):
            if line != ASK:
                generation, step = decode_rollback(line)
                rollbacks.note(generation=generation, step=step)
            _to_launcher({"what": "alive"})
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
