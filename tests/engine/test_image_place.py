"""Which image of a step a successor begins from, when two of them are in the vault."""

from __future__ import annotations

import pytest

from outlast.engine.commit.image_place import (
    BEGUN,
    ENTERED,
    PREPARED,
    ScriptPosition,
    choose_image,
    is_between_calls,
    place_of,
)
from outlast.runtime.tiers.image import Image

# in order of time
PLACES = [
    ScriptPosition(PREPARED, 0),
    ScriptPosition(ENTERED, 0),
    ScriptPosition(PREPARED, 1),
    ScriptPosition(ENTERED, 1),
    ScriptPosition(BEGUN, 1),
]


def test_an_image_is_complete_once_nothing_has_moved_up_to_the_next_step() -> None:
    """A prepared image does not show what the script does after it, until that is known."""
    assert not ScriptPosition(PREPARED, 0).is_complete
    assert ScriptPosition(PREPARED, 0, still=True).is_complete
    for still in (True, False):
        place = ScriptPosition(PREPARED, 1, still=still)
        assert place_of(place.metadata()) == place


def chosen(*places: ScriptPosition, begun: bool, phases: int = 0) -> ScriptPosition:
    """Choose an image. Check that the order of the slots does not matter, and that each image
    records its position.
    """
    images = [(slot, Image(place.metadata(), {})) for slot, place in enumerate(places)]
    ways = [choose_image(order, begun=begun, phases=phases) for order in (images, images[::-1])]
    assert ways[0][2] == ways[1][2]
    assert all(places[slot] == place_of(image.metadata) == place for slot, image, place in ways)
    return ways[0][2]


@pytest.mark.parametrize("later", range(1, len(PLACES)))
@pytest.mark.parametrize("earlier", range(len(PLACES) - 1))
def test_survivors_at_the_next_step_want_the_newest_image(earlier: int, later: int) -> None:
    pair = PLACES[min(earlier, later)], PLACES[max(earlier, later)]
    assert chosen(*pair, begun=True) == pair[1]


def test_survivors_in_a_phase_want_the_newest_image_not_past_it() -> None:
    """A rank that was ahead of all living ranks does not bring back what they have not done yet."""
    assert chosen(
        ScriptPosition(PREPARED, 0), ScriptPosition(ENTERED, 0), begun=False
    ) == ScriptPosition(ENTERED, 0)
    assert chosen(
        ScriptPosition(ENTERED, 0), ScriptPosition(PREPARED, 1), begun=False
    ) == ScriptPosition(ENTERED, 0)
    assert chosen(
        ScriptPosition(ENTERED, 0), ScriptPosition(PREPARED, 1), begun=False, phases=1
    ) == ScriptPosition(PREPARED, 1)
    assert chosen(
        ScriptPosition(ENTERED, 0), ScriptPosition(BEGUN, 1), begun=False
    ) == ScriptPosition(ENTERED, 0)
    assert chosen(
        ScriptPosition(PREPARED, 1), ScriptPosition(BEGUN, 1), begun=False, phases=1
    ) == ScriptPosition(BEGUN, 1)


def test_an_image_sealed_at_the_vote_may_lack_what_moved_since() -> None:
    assert [place.is_complete for place in PLACES] == [False, True, False, True, True]


def test_of_two_steps_calls_the_survivors_image_is_wanted() -> None:
    """Between two calls of run.steps there is no step, so both images are of the same step."""
    before, behind = ScriptPosition(BEGUN, 0), ScriptPosition(BEGUN, 0, calls=1)
    for order in ((before, behind), (behind, before)):
        images = [(slot, Image(place.metadata(), {})) for slot, place in enumerate(order)]
        assert choose_image(images, begun=True, phases=0, calls=1)[2] == behind
        assert choose_image(images, begun=True, phases=0, calls=0)[2] == before


def test_changes_after_a_phase_are_not_only_code_between_calls() -> None:
    """Between two calls of run.steps there is code, which a successor runs again, and there are
    phases.
    """
    ended, entered = (5, ScriptPosition(BEGUN, 0)), (5, ScriptPosition(ENTERED, 0, calls=1))
    behind_phase = (5, ScriptPosition(BEGUN, 1, calls=1))
    assert is_between_calls(ended, (5, ScriptPosition(BEGUN, 0, calls=1)))
    assert is_between_calls(ended, entered)
    assert not is_between_calls(entered, behind_phase)
    assert not is_between_calls((4, ScriptPosition(BEGUN, 0)), (5, ScriptPosition(BEGUN, 0)))
    assert not is_between_calls((5, ScriptPosition(ENTERED, 0)), (5, ScriptPosition(BEGUN, 0)))
    assert not is_between_calls((4, ScriptPosition(BEGUN, 0)), entered)
    assert not is_between_calls(None, entered)


def test_an_image_without_a_position_is_of_the_next_steps_beginning() -> None:
    """Shards are sealed at the beginning of a step, and nowhere else."""
    assert place_of({"step": "7"}) == ScriptPosition(BEGUN, 0)
