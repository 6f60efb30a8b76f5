"""What lies in a vault and what does not, in the simulated world as in shared memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conformance.vaults import RANKS, Images, RealImages, SimulatedImages


@pytest.fixture(params=["simulated", "real"])
def images(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Images]:
    one: Images = SimulatedImages() if request.param == "simulated" else RealImages(tmp_path)
    yield one
    one.close()


def test_the_two_newest_lie_there_newest_first_and_outlive_who_sealed_them(images: Images) -> None:
    assert images.steps(0) == ()
    for step in range(1, 5):
        images.seal(0, step)
        assert images.steps(0) == tuple(range(step, max(0, step - 2), -1))


def test_a_kill_during_a_seal_loses_the_slot_written_over_and_no_other(
    images: Images,
) -> None:
    for step in (1, 2):
        images.seal(0, step)
    images.seal_cut_short(0, 3)
    assert images.steps(0) == (2,)
    images.seal(0, 3)
    assert images.steps(0) == (3, 2)


def test_a_step_that_is_sealed_again_takes_its_own_place(images: Images) -> None:
    for step in (1, 2, 2):
        images.seal(0, step)
    assert images.steps(0) == (2, 1)
    images.seal_cut_short(0, 2)
    assert images.steps(0) == (1,)


def test_steps_that_were_rolled_back_are_forgotten_and_older_ones_stay(images: Images) -> None:
    for step in (1, 2):
        images.seal(0, step)
    images.roll_back(0, 2)
    assert images.steps(0) == (2, 1)
    images.roll_back(0, 1)
    assert images.steps(0) == (1,)
    images.roll_back(0, 0)
    assert images.steps(0) == ()


def test_ranks_do_not_touch_each_other(images: Images) -> None:
    for rank in range(RANKS):
        images.seal(rank, 4 + rank)
    images.seal_cut_short(0, 4)
    images.roll_back(0, 0)
    assert (images.steps(0), images.steps(1)) == ((), (5,))


def test_a_transfer_image_is_read_once_it_is_whole_and_only_as_what_it_is(images: Images) -> None:
    assert not images.takes(None, 0)
    images.donate(3, 7)
    assert images.takes(None, 7)
    assert images.takes(3, 7)
    assert not images.takes(2, 7)
    assert not images.takes(None, 6)


def test_a_donor_that_is_killed_leaves_nothing_of_the_image_before(images: Images) -> None:
    images.donate(3, 7)
    images.donate_cut_short(4, 8)
    assert not any(images.takes(None, step) for step in (7, 8))
    images.donate(5, 8)
    assert images.takes(5, 8)


def test_an_image_of_the_same_step_outlives_a_donor_that_is_killed(images: Images) -> None:
    """Who has started over from it may have nothing else."""
    for generation in (3, 4, 5, 6):
        images.donate_cut_short(generation, 7)
        assert images.takes(None, 7) is (generation > 3)
        images.donate(generation, 7)
        assert images.takes(generation, 7)
    images.donate_cut_short(7, 8)
    assert not any(images.takes(None, step) for step in (7, 8))


@settings(max_examples=15)
@given(
    acts=st.lists(
        st.tuples(st.sampled_from(["seal", "seal_cut_short", "roll_back"]), st.integers(0, 3)),
        max_size=8,
    )
)
def test_any_course_of_seals_leaves_the_same_in_both(
    tmp_path_factory: pytest.TempPathFactory, acts: list[tuple[str, int]]
) -> None:
    """Method: the same acts in both vaults, compared after each."""
    fake, real = SimulatedImages(), RealImages(tmp_path_factory.mktemp("vault"))
    try:
        for what, step in acts:
            for one in (fake, real):
                getattr(one, what)(0, step)
            assert fake.steps(0) == real.steps(0)
    finally:
        real.close()
