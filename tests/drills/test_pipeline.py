"""A pipeline of plain stages under fault: each rank has its own weights, and its stage knows the
group of one generation.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.drills._run import CalmRun, Fault, Outcome, drilled

pytestmark = pytest.mark.timeout(150)
SCRIPT = "pipeline.py"
PLACES = ("forward", "backward", "before_optimizer", "tail")
MARKS = ("prepared", "passed", "committed")
KINDS = {
    "mesh": ("--group", "mesh"),
    "no group": ("--group", "none"),
    "default group": ("--group", "world"),
    "new group": ("--group", "new"),
    "1f1b": ("--schedule", "1f1b"),
}
Struck = Callable[..., Outcome]


def kill(place: str, rank: int, step: int) -> Fault:
    return {"mark" if place in MARKS else "at": place, "rank": rank, "step": step, "do": "SIGKILL"}


@pytest.fixture
def struck(tmp_path: Path) -> Struck:
    """Return a function that runs the script and kills ranks at these places, one after another."""

    def run(places: tuple[str, ...], *arguments: str | int, spares: int = 0) -> Outcome:
        faults = [
            kill(place, (number + 1) % 4, 4 + 3 * number) for number, place in enumerate(places)
        ]
        strikes = [fault for fault in faults if "at" in fault]
        marks = [fault for fault in faults if "mark" in fault]
        outcome = drilled(
            tmp_path, SCRIPT, *arguments, flags=("--spares", spares), strikes=strikes, marks=marks
        )
        assert outcome.code == 0, str(outcome)
        assert sorted(outcome.digests) == [0, 1, 2, 3], str(outcome)
        assert len(outcome.interruptions) == len(places), str(outcome)
        outcome.ledger_is_sound(lossless=False)
        return outcome

    return run


def all_entered_main_again(outcome: Outcome) -> None:
    for one in outcome.interruptions:
        assert "survivors enter main's function again" in one["reason"], str(outcome)
        assert one["steps_lost"] == 0, str(outcome)


@pytest.mark.drill
@pytest.mark.parametrize("kind", KINDS)
def test_survivors_of_a_pipeline_enter_main_again(struck: Struck, kind: str) -> None:
    outcome = struck(("forward",), *KINDS[kind])
    all_entered_main_again(outcome)
    assert len({pid for _, _, pid in outcome.commits}) == 5, str(outcome)


@pytest.mark.drill
@pytest.mark.parametrize("spares", [0, 1])
def test_a_pipeline_goes_on_after_a_kill_at_any_place(struck: Struck, spares: int) -> None:
    all_entered_main_again(struck(PLACES + MARKS, "--steps", 30, spares=spares))


@pytest.mark.drill
@pytest.mark.parametrize(
    ("way", "places"),
    [
        ("main", ("passed",)),
        ("main", ("backward", "passed", "tail")),
        ("module", ("backward", "passed")),
    ],
)
def test_each_stage_has_its_own_weights_after_a_kill(
    struck: Struck, calm_run: CalmRun, way: str, places: tuple[str, ...]
) -> None:
    """Inside main the survivors, here of a mesh, enter it again. Outside, all ranks start over."""
    steps = 6 + 8 * len(places)
    outcome = struck(places, "--steps", steps, "--way", way)
    calm = calm_run(SCRIPT, "--steps", steps, "--way", way)
    assert outcome.digests == calm.digests, str(outcome)
    outcome.ledger_is_sound()
    if way == "main":
        all_entered_main_again(outcome)
        assert len({pid for _, _, pid in outcome.commits}) == 4 + len(places), str(outcome)
