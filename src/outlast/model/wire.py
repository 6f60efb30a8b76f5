"""The wire form of messages: a length, then a JSON array.

The length has 4 bytes, big-endian. The array `[NAME, value, ...]` has at most MESSAGE_MAX_BYTES.

Fields are identified by their order, because names would be more than half of all bytes. Both ends
have the same version. Decoding is strict (model/codec.py): an unknown name, a missing or an extra
field, or a value of the wrong type raises CorruptError. Nothing is ever unpickled. This module is
pure.
"""

from __future__ import annotations

import typing

from outlast.errors import CorruptError
from outlast.model.codec import Codec
from outlast.model.limits import MESSAGE_MAX_BYTES
from outlast.model.messages import Message
from outlast.model.shorten import shortened

WIRE_VERSION = 8  # the version of the form of all messages, the same at both ends

_CODEC = Codec(typing.get_args(Message))


def encode(message: Message) -> bytes:
    """Write one frame: length and JSON. If it would be too long, texts are cut (shorten.py).

    Raises CorruptError if it is still too long.
    """
    body = _CODEC.encode(message)
    if len(body) > MESSAGE_MAX_BYTES:
        fits = shortened(message, size_bytes=len(body), most_bytes=MESSAGE_MAX_BYTES)
        body = _CODEC.encode(fits)
    if len(body) > MESSAGE_MAX_BYTES:
        raise CorruptError(
            f"a {type(message).__name__} of {len(body):,} bytes is over the limit of"
            f" {MESSAGE_MAX_BYTES:,}"
        )
    return len(body).to_bytes(4, "big") + body


def decode(body: bytes | bytearray | memoryview) -> Message:
    """Read one frame's JSON (without its length). Raises CorruptError."""
    return typing.cast(Message, _CODEC.decode(body))


class FrameReader:
    """Cut a byte stream into messages.

    It stops at the first frame that is not a message, or is over the limit. Then `error` says why,
    and no more messages are returned.
    """

    def __init__(self) -> None:
        self._rest = bytearray()  # the bytes of an incomplete frame
        self.error = ""

    def feed(self, data: bytes | bytearray | memoryview) -> list[Message]:
        """Add received bytes, and return the messages that they complete."""
        rest, out, at = self._rest, [], 0
        if rest:
            rest += data
            data = rest
        end = len(data)
        while end - at >= 4 and not self.error:
            length = int.from_bytes(data[at : at + 4], "big")
            if length > MESSAGE_MAX_BYTES:
                self.error = (
                    f"a frame of {length:,} bytes is over the limit of {MESSAGE_MAX_BYTES:,}"
                )
                break
            if end - at < 4 + length:
                break
            try:
                out.append(decode(data[at + 4 : at + 4 + length]))
            except CorruptError as error:
                self.error = str(error)
            at += 4 + length
        if data is rest:
            del rest[:at]
        elif at < end:
            rest += data[at:]
        return out
