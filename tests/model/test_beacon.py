"""model/beacon.py: the agent reads the fields that the worker writes, or the beacon is marked as
torn.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
import typing
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlast.model.beacon import (
    BEACON_BYTES,
    BEACON_MAGIC,
    BEACON_VERSION,
    Beacon,
    pack_into,
    unpack,
)
from outlast.model.terms import CAUSES, PHASES, Cause

whole = st.integers(-(2**63), 2**63 - 1)
beacons = st.builds(
    Beacon,
    *[whole] * 10,
    st.sampled_from(PHASES),
    st.sampled_from(CAUSES),
    whole,
    whole,
    st.fixed_dictionaries({cause: st.floats(allow_nan=False) for cause in CAUSES}),
)


def page_of(content: bytes = b"") -> memoryview:
    return memoryview(bytearray(content.ljust(BEACON_BYTES, b"\0")))


@given(beacon=beacons, again=beacons)
def test_a_beacon_comes_back_as_it_was_written(beacon: Beacon, again: Beacon) -> None:
    page = page_of()
    for written in (beacon, again):
        pack_into(page, written)
        assert unpack(page) == written


@given(beacon=beacons, again=beacons)
def test_a_write_without_seconds_leaves_their_tables_and_moves_all_else(
    beacon: Beacon, again: Beacon
) -> None:
    page = page_of()
    pack_into(page, beacon)
    pack_into(page, again, seconds=False)
    assert unpack(page) == replace(again, seconds=beacon.seconds, typical_s=beacon.typical_s)


def test_an_empty_page_is_no_beacon() -> None:
    assert unpack(page_of()) is None


@given(content=st.binary(max_size=BEACON_BYTES))
def test_any_bytes_can_be_read(content: bytes) -> None:
    """Other code may have overwritten the page. Reading raises no exception, with the right magic
    number in front or without it.
    """
    unpack(page_of(content))
    head = BEACON_MAGIC.to_bytes(4, "little") + BEACON_VERSION.to_bytes(4, "little")
    found = unpack(page_of((head + content)[:BEACON_BYTES]))
    assert found is not None
    assert found.cause in CAUSES


def test_a_worker_that_died_while_writing_leaves_a_torn_beacon() -> None:
    """The counter is odd and stays odd. The fields are returned with the mark. The next whole write
    removes the mark.
    """
    page = page_of()
    pack_into(page, Beacon(worker=3, step=41))
    page[8] |= 1
    found = unpack(page)
    assert found is not None
    assert (found.torn, found.worker, found.step) == (True, 3, 41)
    pack_into(page, Beacon(worker=3, step=42))
    found = unpack(page)
    assert found is not None
    assert (found.torn, found.step) == (False, 42)


class PutOff(bytearray):
    """Memory whose writer is interrupted after a given number of writes, as on a busy machine."""

    def __init__(self, content: bytes, writes: int) -> None:
        super().__init__(content)
        self.left = writes

    def __setitem__(self, place: typing.Any, value: typing.Any) -> None:
        if self.left == 0:
            raise TimeoutError
        self.left -= 1
        super().__setitem__(place, value)


@pytest.mark.parametrize("seconds", [True, False])
def test_a_writer_that_is_put_off_anywhere_leaves_each_field_old_or_new(seconds: bool) -> None:
    """A drill on a busy machine found this: fields were zero for a moment, and a rank that trained
    was taken for one that had never begun.
    """
    page = page_of()
    pack_into(page, Beacon(*[5] * 10, opened_ns=5, since_ns=5, seconds=dict.fromkeys(CAUSES, 5.0)))
    for writes in range(10):
        memory = PutOff(bytes(page), writes)
        with contextlib.suppress(TimeoutError):
            pack_into(
                typing.cast(memoryview, memory),
                Beacon(*[6] * 10, opened_ns=6, since_ns=6, seconds=dict.fromkeys(CAUSES, 6.0)),
                seconds=seconds,
            )
        found = unpack(memoryview(memory))
        assert found is not None
        assert {
            found.worker,
            found.rank,
            found.step,
            found.beats,
            found.at_ns,
            *found.seconds.values(),
        } <= {5, 6}
        assert found.torn == (0 < writes < 3), "three writes: the counter, the fields, the counter"
    assert memory.left > 0, "the writer came to its end"


def test_a_reader_never_takes_a_torn_beacon_for_a_whole_one() -> None:
    """Method: a thread writes beacons whose fields all hold the same number. In every read without
    the mark, all fields must be equal.
    """
    page, over = page_of(), threading.Event()

    def write() -> None:
        number = 0
        while not over.is_set():
            number += 1
            pack_into(
                page,
                Beacon(
                    *[number] * 10,
                    opened_ns=number,
                    since_ns=number,
                    seconds=dict.fromkeys(CAUSES, float(number)),
                ),
            )

    writer = threading.Thread(target=write)
    writer.start()
    try:
        reads, until_s = 0, time.monotonic() + 0.5
        while time.monotonic() < until_s:
            found = unpack(page)
            if found is not None and not found.torn:
                reads += 1
                assert {found.worker, found.beats, found.since_ns, *found.seconds.values()} == {
                    found.step
                }
    finally:
        over.set()
        writer.join(5)
    assert reads > 0


def test_seconds_may_hold_anything() -> None:
    page = page_of()
    pack_into(page, Beacon(seconds={**dict.fromkeys(CAUSES, math.inf), Cause.OTHER: math.nan}))
    found = unpack(page)
    assert found is not None
    assert math.isnan(found.seconds[Cause.OTHER])
