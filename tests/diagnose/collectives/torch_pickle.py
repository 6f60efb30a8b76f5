"""Pickles byte for byte as torch writes flight recorder dumps: containers without a place in the
memo, each string once, then by its place.

`pickle.dumps` of the same gives other bytes: it memoizes containers too, and knows a string again
by its identity only.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable


def torch_pickle(top: dict[str, object]) -> bytes:
    writer = _Writer()
    writer.write(top)
    return b"".join((b"\x80\x02", *writer.out, _place(b"q", b"r", len(writer.memo)), b"."))


class _Writer:
    def __init__(self) -> None:
        self.out: list[bytes] = []
        self.memo: dict[str, int] = {}

    def write(self, value: object) -> None:
        kind = type(value)
        if kind is str:
            self._string(value)
        elif kind is int:
            self.out.append(_number(value))
        elif value is None or kind is bool:
            self.out.append({None: b"N", True: b"\x88", False: b"\x89"}[value])
        elif kind is float:
            self.out.append(b"G" + struct.pack(">d", value))
        elif kind is tuple and len(value) == 2:
            self._all(b"", value, b"\x86")
        elif kind is list:
            self._all(b"](", value, b"e")
        elif kind is dict:
            self._all(b"}(", (one for item in value.items() for one in item), b"u")
        else:
            raise TypeError(kind)

    def _all(self, begin: bytes, values: Iterable[object], end: bytes) -> None:
        self.out.append(begin)
        for value in values:
            self.write(value)
        self.out.append(end)

    def _string(self, value: str) -> None:
        if (place := self.memo.get(value)) is not None:
            self.out.append(_place(b"h", b"j", place))
            return
        raw, place = value.encode(), self.memo.setdefault(value, len(self.memo))
        self.out += [b"X", struct.pack("<I", len(raw)), raw, _place(b"q", b"r", place)]


def _number(value: int) -> bytes:
    if 0 <= value < 1 << 8:
        return b"K" + struct.pack("<B", value)
    if 0 <= value < 1 << 16:
        return b"M" + struct.pack("<H", value)
    if -(1 << 31) <= value < 1 << 31:
        return b"J" + struct.pack("<i", value)
    return b"\x8a\x08" + struct.pack("<q", value)


def _place(short: bytes, long: bytes, place: int) -> bytes:
    return short + struct.pack("<B", place) if place < 256 else long + struct.pack("<I", place)
