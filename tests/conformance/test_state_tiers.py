"""What `--keep` promises of every place that it can name, held against each of them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from outlast.errors import CorruptError
from outlast.model.keep import PLACES, read_keep
from tests.conformance.state_tiers import STATE_TIERS, StateTier


@pytest.fixture(params=STATE_TIERS)
def tier(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[StateTier]:
    one = STATE_TIERS[request.param](tmp_path, monkeypatch)
    yield one
    one.close()


def test_all_places_that_keep_can_name_are_here() -> None:
    named = {name.partition("=")[0] for name in STATE_TIERS}
    assert {*PLACES} <= named
    assert named - {*PLACES} == {"file", "s3"}, "and what a URL names"
    assert all(read_keep(name) for name in STATE_TIERS if name not in ("file", "s3"))


def test_an_empty_place_has_nothing(tier: StateTier) -> None:
    assert tier.steps() == ()
    with pytest.raises(CorruptError):
        tier.read(7)


@pytest.mark.parametrize("size", [0, 1, 7, 65_536, 400_001])
def test_state_is_read_as_it_was_saved(tier: StateTier, size: int) -> None:
    data = os.urandom(size)
    tier.save(7, data)
    assert tier.steps() == (7,)
    assert tier.read(7) == data
    assert tier.read(7) == data, "reading changes nothing"


def test_the_newest_two_steps_are_there_newest_first(tier: StateTier) -> None:
    saved = {step: os.urandom(1_000 + step) for step in (7, 8, 9, 10)}
    for step, data in saved.items():
        tier.save(step, data)
        assert tier.steps()[0] == step
    assert tier.steps()[:2] == (10, 9)
    assert (tier.read(10), tier.read(9)) == (saved[10], saved[9])


def test_a_save_that_is_cut_short_is_never_offered(tier: StateTier) -> None:
    """The step before stays, and the same step can be saved again, with other bytes."""
    before, cut, after = os.urandom(50_000), os.urandom(60_000), os.urandom(70_000)
    tier.save(7, before)
    tier.save_cut_short(8, cut)
    assert tier.steps() == (7,)
    assert tier.read(7) == before
    with pytest.raises(CorruptError):
        tier.read(8)
    tier.save(8, after)
    assert tier.steps()[:2] == (8, 7)
    assert (tier.read(8), tier.read(7)) == (after, before)


def test_the_first_save_may_be_cut_short(tier: StateTier) -> None:
    tier.save_cut_short(7, os.urandom(10_000))
    assert tier.steps() == ()
    data = os.urandom(9_000)
    tier.save(7, data)
    assert tier.read(7) == data


@pytest.mark.parametrize("size", [1, 400_001])
def test_a_flipped_bit_is_found_and_costs_no_other_step(tier: StateTier, size: int) -> None:
    data = os.urandom(size)
    tier.save(7, data)
    tier.save(8, os.urandom(size))
    tier.damage(8)
    with pytest.raises(CorruptError):
        tier.read(8)
    assert tier.read(7) == data


def test_steps_that_were_rolled_back_are_gone(tier: StateTier) -> None:
    """The step is saved again, with other bytes. None of the older ones may be returned for it."""
    before, void, after = os.urandom(30_000), os.urandom(30_000), os.urandom(30_000)
    tier.save(7, before)
    tier.save(8, void)
    tier.go_back(7)
    assert tier.steps() == (7,)
    with pytest.raises(CorruptError):
        tier.read(8)
    tier.save(8, after)
    assert (tier.read(8), tier.read(7)) == (after, before)
