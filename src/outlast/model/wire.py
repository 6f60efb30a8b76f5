"""The wire form of messages: 4 bytes big-endian length, then a JSON object `{"type": NAME, field: value, ...}` of at most MESSAGE_MAX_BYTES.

Decoding is strict: an unknown type, a missing or an extra field, or a value of the wrong shape raises CorruptError. Nothing is ever unpickled.

This module is pure.
"""

from __future__ import annotations

import dataclasses
import json
import types
import typing

from outlast.errors import CorruptError
from outlast.model.limits import MESSAGE_MAX_BYTES
from outlast.model.messages import Message

_TYPES: dict[str, type] = {member.__name__: member for member in typing.get_args(Message)}
_FIELDS: dict[type, dict[str, typing.Any]] = {member: typing.get_type_hints(member) for member in _TYPES.values()}


def encode(message: Message) -> bytes:
    """One frame: length and JSON."""
    body = json.dumps(_plain(message), separators=(",", ":")).encode()
    if len(body) > MESSAGE_MAX_BYTES:
        raise CorruptError(f"a {type(message).__name__} of {len(body):,} bytes is over the limit of {MESSAGE_MAX_BYTES:,}")
    return len(body).to_bytes(4, "big") + body


def decode(body: bytes | memoryview) -> Message:
    """One frame's JSON (without its length)."""
    try:
        return _message(json.loads(bytes(body)))
    except ValueError as error:
        raise CorruptError(f"a message that is not JSON: {error}") from None
    except (RecursionError, OverflowError) as error:  # nested too deep; a whole number that no float can hold
        raise CorruptError(f"a message out of bounds: {error}") from None


def _plain(message: typing.Any) -> dict[str, typing.Any]:
    out: dict[str, typing.Any] = {"type": type(message).__name__}
    for name in _FIELDS[type(message)]:
        value = getattr(message, name)
        out[name] = (
            [_plain(one) for one in value]
            if isinstance(value, tuple) and value and dataclasses.is_dataclass(value[0])
            else (_plain(value) if dataclasses.is_dataclass(value) else value)
        )
    return out


def _message(value: object) -> Message:
    name = value.get("type") if isinstance(value, dict) else None
    if not isinstance(value, dict) or not isinstance(name, str) or name not in _TYPES:
        raise CorruptError(f"not a message: {str(value)[:80]}")
    kind = _TYPES[name]
    hints = _FIELDS[kind]
    if set(value) - {"type"} != set(hints):
        raise CorruptError(f"{kind.__name__} has the wrong fields: {sorted(set(value) ^ set(hints) ^ {'type'})}")
    return typing.cast(Message, kind(**{name: _value(hint, value[name], f"{kind.__name__}.{name}") for name, hint in hints.items()}))


def _value(hint: typing.Any, value: object, where: str) -> object:
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is tuple:
        if isinstance(value, list):
            return tuple(_value(args[0], item, where) for item in value)
    elif dataclasses.is_dataclass(hint):
        inner = _message(value)
        if type(inner) is hint:
            return inner
    elif origin in (typing.Union, types.UnionType):
        if value is None and type(None) in args:
            return None
        if any(dataclasses.is_dataclass(arg) for arg in args):
            inner = _message(value)
            if isinstance(inner, args):
                return inner
        else:
            return _value(next(arg for arg in args if arg is not type(None)), value, where)
    elif hint is float and type(value) in (int, float):
        return float(typing.cast(float, value))
    elif type(value) is hint:
        return value
    raise CorruptError(f"{where} cannot be {str(value)[:80]!r}")


class FrameReader:
    """Cuts a byte stream into messages, up to the first frame that is none or over the limit: `error` then says why, and nothing follows."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self.error = ""

    def feed(self, data: bytes) -> list[Message]:
        """Those that are whole by now."""
        self._buffer += data
        out: list[Message] = []
        while len(self._buffer) >= 4 and not self.error:
            length = int.from_bytes(self._buffer[:4], "big")
            if length > MESSAGE_MAX_BYTES:
                self.error = f"a frame of {length:,} bytes is over the limit of {MESSAGE_MAX_BYTES:,}"
                break
            if len(self._buffer) < 4 + length:
                break
            try:
                out.append(decode(bytes(self._buffer[4 : 4 + length])))
            except CorruptError as error:
                self.error = str(error)
            del self._buffer[: 4 + length]
        return out
