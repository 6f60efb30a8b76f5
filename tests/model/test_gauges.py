"""model/gauges.py: the values that a script reports of its training, in the same page as its
beacon.
"""

from __future__ import annotations

import math

import pytest

from outlast.model import beacon
from outlast.model.beacon import BEACON_BYTES, Beacon
from outlast.model.gauges import (
    GAUGES_AT,
    GAUGES_MAX_COUNT,
    NAME_MAX_BYTES,
    Gauges,
    pack_into,
    unpack,
)


@pytest.fixture
def page() -> memoryview:
    return memoryview(bytearray(BEACON_BYTES))


def test_what_was_written_is_read_and_the_beacon_stays(page: memoryview) -> None:
    beacon.pack_into(page, Beacon(worker=3, rank=1, step=7))
    pack_into(page, Gauges(1_000, 7, {"loss": 2.5, "learning rate": 1e-4, "Verlust ä": math.inf}))
    beacon.pack_into(page, Beacon(worker=3, rank=1, step=8))
    assert unpack(page) == Gauges(
        1_000, 7, {"loss": 2.5, "learning rate": 1e-4, "Verlust ä": math.inf}
    )
    seen = beacon.unpack(page)
    assert seen is not None
    assert (seen.worker, seen.rank, seen.step, seen.torn) == (3, 1, 8, False)


def test_a_page_without_gauges_says_nothing(page: memoryview) -> None:
    assert unpack(page) is None
    beacon.pack_into(page, Beacon(worker=3))
    assert unpack(page) is None


def test_a_write_that_was_cut_short_is_no_answer(page: memoryview) -> None:
    pack_into(page, Gauges(10, 1, {"loss": 1.0}))
    page[GAUGES_AT + 8] |= 1  # the sequence is odd while a write is under way
    assert unpack(page) is None
    pack_into(page, Gauges(10, 2, {"loss": 0.5}))
    assert unpack(page) == Gauges(10, 2, {"loss": 0.5}), "the next write mends it"


def test_too_much_is_cut_and_never_leaves_the_page(page: memoryview) -> None:
    """A target that is too large, as of an endless loop, counts as none. A long name is cut between
    two characters.
    """
    many = {f"value {number}": float(number) for number in range(100)}
    pack_into(page, Gauges(10**30, 5, many))
    said = unpack(page)
    assert said is not None
    assert (said.target, list(said.values)) == (0, list(many)[:GAUGES_MAX_COUNT])
    pack_into(page, Gauges(9, 6, {"ä" * 100: 1.0, "x" * 100: 2.0}))
    said = unpack(page)
    assert said is not None
    assert list(said.values) == ["ä" * (NAME_MAX_BYTES // 2), "x" * NAME_MAX_BYTES]
