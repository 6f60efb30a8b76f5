"""Gauges: the last step of a script's loop, and the values that the script has logged.

A worker writes them behind its beacon, in the same page of shared memory. The launcher reads them
once a second, to show them and to export them as metrics. No decision depends on them. Numbers are
little-endian.

A sequence lock guards against torn reads, as in the beacon. If a page stays torn, the reader keeps
the values that it read before.

On several nodes, the agent of rank 0 sends them to the coordinator (`to_message`, `of_message`).

Limits     Only the first GAUGES_MAX_COUNT values are kept. Their names have up to NAME_MAX_BYTES
           bytes, and longer names are cut.

This module is pure: it packs and unpacks bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field

from outlast.model.beacon import BEACON_BYTES
from outlast.model.messages import Logged

GAUGES_AT = 2048  # offset in the page of the beacon
GAUGES_MAX_COUNT = 27
NAME_MAX_BYTES = 40
_MAGIC = 0x474C_544F  # "OTLG"
_VERSION = 1
_HEAD = struct.Struct("<IIQ")  # magic, version, sequence
_BODY = struct.Struct("<qqI")  # last step, step of the values, count
_ENTRY = struct.Struct(f"<{NAME_MAX_BYTES}sd")
_SEQUENCE_AT = 8
_MOST = 2**63 - 1

assert GAUGES_AT + _HEAD.size + _BODY.size + GAUGES_MAX_COUNT * _ENTRY.size <= BEACON_BYTES


@dataclass(slots=True)
class Gauges:
    """The values that one worker publishes of its training.

    target   the number of the last step of the loop; 0 if it is not known
    step     the step in which `values` were logged; 0 if there are none
    values   the logged values by name
    """

    target: int = 0
    step: int = 0
    values: Mapping[str, float] = field(default_factory=dict)


def pack_into(page: memoryview, gauges: Gauges) -> None:
    """Write `gauges` into the page of a beacon, under their own sequence lock."""
    sequence = _HEAD.unpack_from(page, GAUGES_AT)[2] | 1
    entries = [
        _ENTRY.pack(_cut(name), value)
        for name, value in list(gauges.values.items())[:GAUGES_MAX_COUNT]
    ]
    target = gauges.target if gauges.target <= _MOST else 0  # a loop without an end has no target
    body = _BODY.pack(target, min(gauges.step, _MOST), len(entries)) + b"".join(entries)
    at = GAUGES_AT + _HEAD.size
    page[GAUGES_AT + _SEQUENCE_AT : at] = sequence.to_bytes(8, "little")
    page[at : at + len(body)] = body
    page[GAUGES_AT:at] = _HEAD.pack(_MAGIC, _VERSION, sequence + 1)


def unpack(page: memoryview) -> Gauges | None:
    """Read the gauges. Return None if the worker has written none, or if the page stays torn."""
    for _ in range(8):
        magic, version, before = _HEAD.unpack_from(page, GAUGES_AT)
        if magic != _MAGIC or version != _VERSION:
            return None
        at = GAUGES_AT + _HEAD.size
        body = bytes(page[at:BEACON_BYTES])
        if before == _HEAD.unpack_from(page, GAUGES_AT)[2] and before % 2 == 0:
            return _gauges(body)
    return None


def to_message(gauges: Gauges) -> Logged:
    """Return the message about `gauges`, which `unpack` has read."""
    return Logged(
        gauges.target, gauges.step, tuple(gauges.values), tuple(map(float, gauges.values.values()))
    )


def of_message(message: Logged) -> Gauges:
    """Return the gauges that `message` is about, within the same limits as those of a page."""
    pairs = list(zip(message.names, message.values, strict=False))[:GAUGES_MAX_COUNT]
    values = {_cut(name).decode(): value for name, value in pairs}
    return Gauges(min(max(message.target, 0), _MOST), min(max(message.step, 0), _MOST), values)


def _cut(name: str) -> bytes:
    """Return the bytes of a name. A long name is cut between two characters."""
    return name.encode("utf-8", "replace")[:NAME_MAX_BYTES].decode("utf-8", "ignore").encode()


def _gauges(body: bytes) -> Gauges:
    target, step, count = _BODY.unpack_from(body)
    values = {}
    for index in range(min(count, GAUGES_MAX_COUNT)):
        name, value = _ENTRY.unpack_from(body, _BODY.size + index * _ENTRY.size)
        values[name.rstrip(b"\0").decode("utf-8", "replace")] = value
    return Gauges(target, step, values)
