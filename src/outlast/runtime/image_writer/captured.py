"""A worker captures its image in memory that it can share, and hands it to the node's writer.

The writer is a process of its own (writer_program.py). Once it has received an order, it holds the
memory as well. So the image is written even if the worker dies.
"""

from __future__ import annotations

import mmap
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import IO

from outlast.errors import CapacityError
from outlast.model.limits import VAULT_SPARE_BYTES
from outlast.runtime.cgroups import memory_hierarchies
from outlast.runtime.image_writer.write_orders import (
    MOVED,
    PACKET_BYTES,
    TAKEN,
    WriteAnswer,
    WriteOrder,
    decode_answer,
)
from outlast.runtime.tiers.room import memory_left


class CapturedImage:
    """Memory for one image, without a name in any file system.

        memory = CapturedImage()
        memory.reserve(1 << 30)
        memory.view[:5] = b"image"
        hand_over(order, memory, path, moved=..., done=...)

    The kernel frees the memory when neither this process nor the writer holds its descriptor.
    """

    def __init__(self) -> None:
        self.view = memoryview(b"")
        self._file: IO[bytes] | None = None  # closed by `close`, or with this object

    def reserve(self, size: int) -> None:
        """Allocate memory for `size` bytes, unless there is so much already.

        What smaller memory contained is lost. Raises CapacityError if the machine or its control
        group has too little memory left.
        """
        if len(self.view) >= size:
            return
        room = memory_left(memory_hierarchies())
        missing = size - len(self.view)
        if missing + VAULT_SPARE_BYTES > room.free:
            raise CapacityError(
                f"no memory for a copy of {size:,} bytes, which a checkpoint needs: {room.free:,}"
                f" are available ({room.of})",
                hint=f"{room.hint}, or start fewer workers per node",
            )
        self.close()
        try:
            fd = os.memfd_create("outlast-image", os.MFD_CLOEXEC)
            self._file = open(fd, "r+b", buffering=0)  # noqa: SIM115 - `close` closes it
            os.posix_fallocate(fd, 0, size)
            flags = mmap.MAP_SHARED | mmap.MAP_POPULATE
            self.view = memoryview(mmap.mmap(fd, size, flags=flags))
        except (OSError, ValueError) as error:
            self.close()
            raise CapacityError(
                f"no memory for a copy of {size:,} bytes, which a checkpoint needs: {error}",
                hint="start fewer workers per node",
            ) from None

    def send(self, sock: socket.socket, order: WriteOrder) -> None:
        """Send an order, together with the descriptor of this memory."""
        assert self._file is not None, "an image was captured"
        socket.send_fds(sock, [order.encode()], [self._file.fileno()])

    def close(self) -> None:
        """Release the memory. A writer that holds it keeps it until its order is carried out."""
        self.view = memoryview(b"")
        if self._file is not None:
            self._file.close()
            self._file = None


def hand_over(
    order: WriteOrder,
    memory: CapturedImage,
    path: Path,
    *,
    moved: Callable[[], None],
    done: Callable[[WriteAnswer], None],
) -> None:
    """Let the writer that listens at `path` write an image, and wait for its answer.

    `moved` is called from time to time while bytes are written, and `done` once with the answer.

    Raises OSError if the writer cannot be reached, or ends before it hears that its answer was
    taken; `done` may have been called by then. Raises ValueError if the answer cannot be read.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
        sock.connect(str(path))
        memory.send(sock, order)
        while (packet := sock.recv(PACKET_BYTES)) == MOVED:
            moved()
        if not packet:
            raise ConnectionResetError("the process that writes images has ended")
        done(decode_answer(packet))
        sock.send(TAKEN)
