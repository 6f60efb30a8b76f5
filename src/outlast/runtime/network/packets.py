"""Packets of JSON and descriptors, which launcher and zygote exchange.

They are sent over a unix SOCK_SEQPACKET pair, and may have any length. A packet itself contains no
text. Its first descriptor is a memfd that contains the JSON, and the others are the caller's. So
neither the socket buffer nor a long environment limits a request, and one packet is one request.
"""

from __future__ import annotations

import json
import os
import socket
from typing import Any

from outlast.errors import CorruptError

_FDS_MAX_COUNT = 8


def send_packet(sock: socket.socket, value: dict[str, Any], fds: tuple[int, ...] = ()) -> None:
    """Send a request with descriptors. Raises OSError if the peer is gone.

    The caller keeps its descriptors and closes them.
    """
    memory = os.memfd_create("packet", os.MFD_CLOEXEC)
    try:
        with open(memory, "wb", closefd=False) as out:
            out.write(json.dumps(value).encode())
        socket.send_fds(sock, [b"."], [memory, *fds])
    finally:
        os.close(memory)


def receive_packet(sock: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    """Return the next request and its descriptors, or None at the end of the file.

    The descriptors are close-on-exec, and the caller closes them.

    Raises CorruptError if the packet has no descriptor, or is no JSON object.
    """
    text, fds, _, _ = socket.recv_fds(sock, 16, _FDS_MAX_COUNT, socket.MSG_CMSG_CLOEXEC)
    if not text:
        return None
    if not fds:
        raise CorruptError("a packet without descriptors")
    with open(fds[0], "rb") as memory:
        memory.seek(0)
        value = json.loads(memory.read())
    if not isinstance(value, dict):
        raise CorruptError("a packet that is not an object")
    return value, fds[1:]
