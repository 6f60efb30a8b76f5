"""The time of a fault that was seen late, on a virtual clock."""

from __future__ import annotations

from outlast.engine.lateness import HeldUp, estimate_fault, held_up_by
from outlast.model import limits

STOPPED = HeldUp(since_s=100.0, until_s=120.0)


def test_a_launcher_that_looks_in_time_was_not_held_up() -> None:
    assert held_up_by(looked_s=100.0, now_s=100.0 + limits.TICK_S) is None
    assert held_up_by(looked_s=100.0, now_s=100.0 + limits.LATE_TICK_S - 0.01) is None
    assert held_up_by(looked_s=100.0, now_s=120.0) == STOPPED


def test_a_death_that_is_seen_at_once_came_when_it_was_seen() -> None:
    for held_up in (None, STOPPED):
        assert (
            estimate_fault(seen_s=130.0, moved_s=129.0, looked_s=129.95, held_up=held_up).fault_s
            == 130.0
        )


def test_a_death_while_the_launcher_was_held_up_is_dated_by_the_beacon() -> None:
    """The estimate lies neither before the launcher was held up, nor after the death was seen."""
    for moved_s, fault_s in ((107.5, 107.5), (90.0, 100.0), (120.5, 120.01)):
        told = estimate_fault(seen_s=120.01, moved_s=moved_s, looked_s=120.0, held_up=STOPPED)
        assert told.fault_s == fault_s
        assert "held up" in told.reason


def test_without_a_beacon_the_whole_time_is_detection() -> None:
    assert (
        estimate_fault(seen_s=120.0, moved_s=None, looked_s=120.0, held_up=STOPPED).fault_s == 100.0
    )


def test_a_launcher_that_goes_on_may_see_the_death_before_it_looks() -> None:
    """Found with a stopped launcher: the report said "detected after 0 ms", and booked three
    seconds as repeated work.
    """
    told = estimate_fault(seen_s=120.0, moved_s=100.2, looked_s=100.0, held_up=None)
    assert told.fault_s == 100.2
    assert "held up" in told.reason
