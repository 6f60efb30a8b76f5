"""Shorten messages that would be too long for the wire, by cutting texts for people.

An agent that enrols with a new coordinator sends all messages of its workers in one message. That
may be a traceback from each worker. The length of each text is limited, but their number is not. So
the longest ones are cut to one length, so that the whole message fits. Short ones stay as they are.

Only fields of type `Text` or `Some` are cut (model/messages/). This module is pure.
"""

from __future__ import annotations

import bisect
import dataclasses
import json
import typing
from collections.abc import Callable, Iterator
from typing import Annotated, Any

KEEP_END, KEEP_BEGINNING = "keep its end", "keep its beginning"
Text = Annotated[str, KEEP_END]  # a text for people; the end of a traceback says most
Some = Annotated[tuple[int, ...], KEEP_BEGINNING]  # some of many; one is enough to decide

_JSON = json.JSONEncoder(separators=(",", ":")).encode
_LEFT_OUT = "...\n"  # takes the place of the beginning of a text


def shortened(message: Any, *, size_bytes: int, most_bytes: int) -> Any:
    """Return `message`, whose JSON has `size_bytes`, with its longest texts cut so that it fits.

    It is still too long if the parts that may not be cut are longer than `most_bytes`.
    """
    sizes = [len(_JSON(part)) for part in _parts(message)]
    cap_bytes = _cap(sizes, most_bytes - (size_bytes - sum(sizes)))
    return _each(message, lambda part: _fitted(part, cap_bytes))


def end_of(text: str, most_bytes: int) -> str:
    """Return `text`, or the part of its end whose JSON with quotes has at most `most_bytes`."""
    if len(text) * 12 + 2 <= most_bytes or len(_JSON(text)) <= most_bytes:  # 12: as two \\uXXXX
        return text
    room_bytes = most_bytes - (len(_JSON(_LEFT_OUT)) - 2)
    rest = text[-most_bytes:] if most_bytes > 0 else ""
    starts = range(len(rest) + 1)
    start = bisect.bisect_left(starts, True, key=lambda at: len(_JSON(rest[at:])) <= room_bytes)
    return _LEFT_OUT + rest[start:] if start < len(rest) else ""


def _fitted(part: Any, most_bytes: int) -> Any:
    if isinstance(part, str):
        return end_of(part, most_bytes)
    counts = range(len(part) + 1)
    fits = bisect.bisect_right(counts, most_bytes, key=lambda count: len(_JSON(part[:count])))
    return part[: max(0, fits - 1)]


def _cap(sizes: list[int], room: int) -> int:
    """Return the largest length to which all `sizes` may be cut so that they fit into `room`."""
    longest_last, cap = sorted(sizes), 0
    for number, size in enumerate(longest_last):
        share = room // (len(sizes) - number)
        if size > share:
            return max(0, share)
        room, cap = room - size, size
    return cap


def _parts(message: Any) -> Iterator[Any]:
    """Yield the parts that may be cut, in the order of `_each`."""
    for name, may_be_cut in _fields(message):
        value = getattr(message, name)
        if may_be_cut:
            yield value
        else:
            for inner in _inner(value):
                yield from _parts(inner)


def _each(message: Any, act: Callable[[Any], Any]) -> Any:
    """Return `message` with `act` applied to each part that may be cut."""
    changes: dict[str, Any] = {}
    for name, may_be_cut in _fields(message):
        value = getattr(message, name)
        if may_be_cut:
            changes[name] = act(value)
        elif isinstance(value, tuple) and any(map(dataclasses.is_dataclass, value)):
            changes[name] = tuple(_each(one, act) for one in value)
        elif dataclasses.is_dataclass(value):
            changes[name] = _each(value, act)
    return dataclasses.replace(message, **changes)


def _inner(value: Any) -> Iterator[Any]:
    for one in value if isinstance(value, tuple) else (value,):
        if dataclasses.is_dataclass(one):
            yield one


def _fields(message: object) -> tuple[tuple[str, bool], ...]:
    """Return the name of each field, and whether it may be cut."""
    kind = type(message)
    if kind not in _KNOWN:
        hints = typing.get_type_hints(kind, include_extras=True)
        marks = {name: getattr(hint, "__metadata__", ()) for name, hint in hints.items()}
        _KNOWN[kind] = tuple(
            (name, KEEP_END in mark or KEEP_BEGINNING in mark) for name, mark in marks.items()
        )
    return _KNOWN[kind]


_KNOWN: dict[type, tuple[tuple[str, bool], ...]] = {}
