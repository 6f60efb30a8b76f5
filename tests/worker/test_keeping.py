"""When copies of the state are made: rank 0 asks for them, and all ranks make the same ones."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlast.model.limits import KEEP_LEAST_S, KEEP_SHARE
from outlast.runtime import clock
from outlast.runtime.worker.saving.keeping import DISK, NO_ROOM, VAULT, Keeping

AUTO, EACH_FIVE, TEN_SECONDS = [0, 0.0, True], [5, 0.0, False], [0, 10.0, False]


class Now:
    """The clock that `Keeping` reads."""

    s = 100.0


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> Now:
    found = Now()
    monkeypatch.setattr(clock, "now_s", lambda: found.s)
    return found


def test_nothing_is_copied_unless_it_was_requested() -> None:
    assert Keeping({}).wanted(7, rank=0) == 0
    assert not Keeping({}).copies_to_vault


def test_only_rank_0_asks_for_a_copy(now: Now) -> None:
    keeping = Keeping({"keep_vault": EACH_FIVE, "keep_disk": EACH_FIVE})
    assert [keeping.wanted(step, rank=0) for step in (4, 5, 6, 10)] == [
        0,
        VAULT | DISK,
        0,
        VAULT | DISK,
    ]
    assert keeping.wanted(5, rank=1) == 0


def test_a_time_counts_from_the_previous_copy(now: Now) -> None:
    keeping = Keeping({"keep_disk": TEN_SECONDS})
    now.s += 9.9
    assert keeping.wanted(1, rank=0) == 0
    now.s += 0.2
    assert keeping.wanted(2, rank=0) == DISK
    keeping.copied(DISK, cost_s=0.5)
    now.s += 9.0
    assert keeping.wanted(3, rank=0) == 0


@given(st.floats(0.0, 60.0), st.floats(0.0, 20_000.0))
def test_copies_by_the_clock_cost_no_more_than_their_share(cost_s: float, later_s: float) -> None:
    """Method: a copy that took `cost_s` was made, and `later_s` after it the next one is
    requested.
    """
    found = Now()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(clock, "now_s", lambda: found.s)
        keeping = Keeping({"keep_vault": AUTO})
        keeping.copied(VAULT, cost_s=cost_s)
        found.s += later_s
        asked = keeping.wanted(1, rank=0)
    waited_s = found.s - Now.s
    assert (asked == VAULT) == (waited_s >= max(KEEP_LEAST_S, cost_s / KEEP_SHARE))


def test_a_copy_that_was_held_up_once_does_not_make_the_next_ones_rare(now: Now) -> None:
    """The cost that counts is the smallest of the last three. Method: two copies take a second, and
    one takes a millisecond.
    """
    keeping = Keeping({"keep_vault": AUTO})
    for cost_s in (1.0, 0.001, 1.0):
        keeping.copied(VAULT, cost_s=cost_s)
    now.s += 0.001 / KEEP_SHARE + 0.01
    assert keeping.wanted(1, rank=0) == VAULT


def test_all_ranks_copy_what_the_vote_on_that_step_decided() -> None:
    keeping = Keeping({"keep_vault": AUTO})
    keeping.agreed(8, VAULT)
    assert keeping.is_due(VAULT, 8)
    assert not keeping.is_due(DISK, 8)
    assert not keeping.is_due(VAULT, 9)


def test_no_rank_copies_once_one_has_no_room() -> None:
    """A copy is useful only if all ranks have it. Checkpoints on disk go on."""
    short, other = Keeping({"keep_vault": AUTO}), Keeping({"keep_vault": AUTO})
    short.give_up_vault()
    assert not short.copies_to_vault
    bits = short.wanted(8, rank=1)
    assert bits == NO_ROOM
    other.agreed(8, bits | VAULT | DISK)
    assert not other.is_due(VAULT, 8)
    assert other.is_due(DISK, 8)
