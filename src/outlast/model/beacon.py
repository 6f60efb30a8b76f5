"""The beacon: a page of shared memory in which a worker publishes its state without system calls.

The worker writes it at every change of phase. The agent reads it at every tick, and once more after
the worker's death. Numbers are little-endian. Times are CLOCK_MONOTONIC nanoseconds of the node.

A sequence lock guards against torn reads: its counter is odd during a write. A worker that dies in
the middle of a write leaves an odd counter. Then `unpack` still returns the fields, each of them
old or new, with `torn=True`. A worker that lost its processor during a write looks the same.

This module is pure: it packs and unpacks bytes.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from itertools import islice

from outlast.model.terms import CAUSES, PHASES, TIERS, Cause, Phase, Tier

BEACON_BYTES = 4096
BEACON_MAGIC = 0x5453_4C54  # "TLST"
BEACON_VERSION = 3
_HEAD = struct.Struct("<IIQ")  # magic, version, sequence
_SEQUENCE_AT = 8
_PLACE = "qqqqqqqqqqIIqq"
_BODY = struct.Struct(f"<{_PLACE}{len(CAUSES)}d{len(PHASES)}d{len(TIERS)}d")
_PLACE_ONLY = struct.Struct(f"<{_PLACE}")


@dataclass(slots=True)
class Beacon:
    """The state that a worker publishes.

    step       the newest committed step
    beats      grows by one at each write
    seconds    settled seconds by cause from `opened_ns` to `since_ns`. Since then, the time runs as
               `cause`
    typical_s  how long each phase lasts if it ends well: a maximum that slowly forgets
    stalls     seconds of stall for saves to each tier. They are a part of `seconds`, unless a fault
               has moved them to another cause
    """

    worker: int = 0
    pid: int = 0
    rank: int = -1
    generation: int = 0
    step: int = 0
    prepared: int = 0
    sealed: int = 0
    attempt: int = 0
    beats: int = 0
    at_ns: int = 0
    phase: Phase = Phase.BOOT
    cause: Cause = Cause.STARTUP
    opened_ns: int = 0
    since_ns: int = 0
    seconds: dict[Cause, float] = field(default_factory=lambda: dict.fromkeys(CAUSES, 0.0))
    typical_s: dict[Phase, float] = field(default_factory=lambda: dict.fromkeys(PHASES, 0.0))
    stalls: dict[Tier, float] = field(default_factory=lambda: dict.fromkeys(TIERS, 0.0))
    torn: bool = False


def pack_into(page: memoryview, beacon: Beacon, *, seconds: bool = True) -> None:
    """Write `beacon` into `page` (at least BEACON_BYTES bytes) under the sequence lock.

    With `seconds=False`, the tables of seconds are not written. They seldom change.
    """
    sequence = _HEAD.unpack_from(page, 0)[2] | 1
    place = (
        beacon.worker,
        beacon.pid,
        beacon.rank,
        beacon.generation,
        beacon.step,
        beacon.prepared,
        beacon.sealed,
        beacon.attempt,
        beacon.beats,
        beacon.at_ns,
        PHASES.index(beacon.phase),
        CAUSES.index(beacon.cause),
        beacon.opened_ns,
        beacon.since_ns,
    )
    if seconds:
        body = _BODY.pack(
            *place,
            *(beacon.seconds[cause] for cause in CAUSES),
            *(beacon.typical_s[phase] for phase in PHASES),
            *(beacon.stalls[tier] for tier in TIERS),
        )
    else:
        body = _PLACE_ONLY.pack(*place)
    # Do not pack in place: struct's pack_into first fills with zeros, and a reader would see them.
    page[_SEQUENCE_AT : _HEAD.size] = sequence.to_bytes(8, "little")
    page[_HEAD.size : _HEAD.size + len(body)] = body
    page[: _HEAD.size] = _HEAD.pack(BEACON_MAGIC, BEACON_VERSION, sequence + 1)


def unpack(page: memoryview) -> Beacon | None:
    """Read a beacon. Return None if the worker has not written one yet.

    After a torn read it tries a few more times, and then returns the fields with `torn=True`.
    """
    for _ in range(8):
        magic, version, before = _HEAD.unpack_from(page, 0)
        if magic != BEACON_MAGIC or version != BEACON_VERSION:
            return None
        fields = _BODY.unpack_from(page, _HEAD.size)
        after = _HEAD.unpack_from(page, 0)[2]
        if before == after and before % 2 == 0:
            return _beacon(fields, torn=False)
    return _beacon(_BODY.unpack_from(page, _HEAD.size), torn=True)


def _beacon(fields: tuple[float, ...], *, torn: bool) -> Beacon:
    (
        worker,
        pid,
        rank,
        generation,
        step,
        prepared,
        sealed,
        attempt,
        beats,
        at_ns,
        phase,
        cause,
        opened_ns,
        since_ns,
    ) = (int(value) for value in fields[:14])
    tables = iter(fields[14:])
    seconds = dict(zip(CAUSES, islice(tables, len(CAUSES)), strict=True))
    typical_s = dict(zip(PHASES, islice(tables, len(PHASES)), strict=True))
    stalls = dict(zip(TIERS, tables, strict=True))
    place, spent_on = PHASES[phase % len(PHASES)], CAUSES[cause % len(CAUSES)]
    return Beacon(
        worker,
        pid,
        rank,
        generation,
        step,
        prepared,
        sealed,
        attempt,
        beats,
        at_ns,
        place,
        spent_on,
        opened_ns,
        since_ns,
        seconds,
        typical_s,
        stalls,
        torn,
    )
