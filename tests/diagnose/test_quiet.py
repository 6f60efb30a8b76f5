"""A job is taken to hang by long silence and by stacks that do not move, never by one stack."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from outlast.diagnose.quiet import (
    GAPS_MIN,
    QUIET_FACTOR,
    QUIET_MIN_S,
    JobState,
    Look,
    decide_hang,
    decide_quiet,
    usual_gap_s,
)

GAPS = st.lists(st.floats(0.01, 1e4), max_size=40)
FRAMES = st.dictionaries(
    st.integers(1, 4), st.tuples(st.sampled_from(["load (a.py:1)", "step (a.py:2)"])), max_size=4
)
QUIET = Look(JobState.QUIET, "no new line")


@given(GAPS, st.floats(0, 1e6))
def test_a_job_is_quiet_only_after_many_usual_gaps_and_the_least_time(
    gaps_s: list[float], quiet_s: float
) -> None:
    """With too few gaps the least time suffices, but only for a look that has to be repeated."""
    look = decide_quiet(now_s=quiet_s, last_line_s=0.0, gaps_s=gaps_s)
    long_s = max(QUIET_MIN_S, QUIET_FACTOR * usual_gap_s(gaps_s))
    is_known = len(gaps_s) >= GAPS_MIN
    assert (look.state is JobState.QUIET) is (quiet_s >= (long_s if is_known else QUIET_MIN_S))
    assert look.is_sure is (is_known or quiet_s >= long_s)


@given(FRAMES, FRAMES)
def test_a_job_whose_usual_gap_is_not_known_hangs_at_the_second_look(
    frames: dict[int, tuple[str, ...]], before: dict[int, tuple[str, ...]]
) -> None:
    """A long save may stand still for the seconds between two stacks, so it is looked at again."""
    early = decide_quiet(now_s=QUIET_MIN_S, last_line_s=0.0, gaps_s=[])
    at_first, again = (
        decide_hang(
            early, first=frames, second=frames, quiet_s=60, blind_after_s=600, earlier=earlier
        )
        for earlier in (None, before)
    )
    assert at_first.state is (JobState.STANDS if frames else JobState.QUIET)
    same = bool(frames) and all(before.get(pid) == stack for pid, stack in frames.items())
    assert (again.state is JobState.HANGS) is same


def test_a_job_with_a_long_save_each_tenth_line_is_not_quiet_during_one() -> None:
    """The gap that counts is not the median: long ones belong to the job too."""
    gaps_s = [1.0] * 9 + [120.0]
    look = decide_quiet(now_s=150.0, last_line_s=0.0, gaps_s=gaps_s * 5)
    assert look.state is JobState.GOES_ON


@given(FRAMES, FRAMES)
def test_only_stacks_that_all_stand_still_make_a_hang(
    first: dict[int, tuple[str, ...]], second: dict[int, tuple[str, ...]]
) -> None:
    look = decide_hang(QUIET, first=first, second=second, quiet_s=60, blind_after_s=300)
    both = first.keys() & second.keys()
    stands = bool(both) and all(first[pid] == second[pid] for pid in both)
    assert (look.state is JobState.HANGS) is stands


def test_one_stack_shows_no_hang_and_silence_without_stacks_takes_longer() -> None:
    one = {7: ("load (a.py:1)",)}
    for first, second, quiet_s, state in (
        (one, {}, 60, JobState.QUIET),
        ({}, {}, 60, JobState.QUIET),
        ({}, {}, 301, JobState.HANGS),
    ):
        look = decide_hang(QUIET, first=first, second=second, quiet_s=quiet_s, blind_after_s=300)
        assert look.state is state


def test_a_job_that_goes_on_does_not_hang_whatever_its_stacks() -> None:
    going = Look(JobState.GOES_ON, "lines come")
    one = {7: ("load (a.py:1)",)}
    look = decide_hang(going, first=one, second=one, quiet_s=1, blind_after_s=300)
    assert look.state is JobState.GOES_ON
