"""Communicate with the image server of another node: connect, ask, prove, and read its answers.

    ask            AskImage or PutImage -> [Challenge, Proof ->] ImageHead or TurnedAway
    read_answer    what it says later on the same connection

Both ends prove that they know the run's key for images, if it has one. The caller receives or sends
the bytes of an image.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import dataclass

from outlast.errors import CorruptError
from outlast.model import limits
from outlast.model.messages import (
    AskImage,
    Challenge,
    ImageHead,
    Message,
    PutImage,
    TurnedAway,
)
from outlast.model.wire import decode, encode
from outlast.runtime.network import trust
from outlast.runtime.network.address import split_address

# Receives some bytes into the given memory, and returns how many. Raises EOFError at the end.
Receive = Callable[[memoryview], int]


@dataclass(frozen=True, slots=True)
class Server:
    """The node that serves images, as HOST:PORT, and the run's key for images (b"" if none)."""

    address: str
    key: bytes


def connect(server: Server) -> socket.socket:
    """Connect to a node within CONNECT_TRY_S. Raises OSError."""
    return socket.create_connection(split_address(server.address), limits.CONNECT_TRY_S)


def receive_from(sock: socket.socket) -> Receive:
    """Return a function that waits for bytes as long as the time-out of `sock` says."""

    def receive(target: memoryview) -> int:
        count = sock.recv_into(target)
        if not count:
            raise EOFError("the connection was closed")
        return count

    return receive


def ask(
    sock: socket.socket, asked: AskImage | PutImage, *, key: bytes, receive: Receive
) -> ImageHead | TurnedAway:
    """Send `asked`, prove that this process is of the run, and return the answer.

    Raises CorruptError if the other end does not know the run's key, or sends something else.
    """
    sock.sendall(encode(asked))
    if key:
        question = _read_message(receive)
        if not isinstance(question, Challenge) or not trust.is_served(
            question.digest, asked.nonce, question.nonce, key=key
        ):
            raise CorruptError("the program that serves there does not know the run's key")
        sock.sendall(encode(trust.prove(question, node="", token=key)))
    return read_answer(receive)


def read_answer(receive: Receive) -> ImageHead | TurnedAway:
    """Return the next answer. Raises CorruptError if the message is not an answer."""
    answer = _read_message(receive)
    if not isinstance(answer, ImageHead | TurnedAway):
        raise CorruptError(f"it answers {type(answer).__name__}")
    return answer


def _read_message(receive: Receive) -> Message:
    length = int.from_bytes(_read_bytes(receive, 4), "big")
    if length > limits.MESSAGE_MAX_BYTES:
        raise CorruptError(f"a frame of {length:,} bytes")
    return decode(_read_bytes(receive, length))


def _read_bytes(receive: Receive, count: int) -> bytearray:
    data = bytearray(count)
    left = memoryview(data)
    while left:
        left = left[receive(left) :]
    return data
