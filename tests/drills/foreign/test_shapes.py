"""Shapes of public scripts, adopted as the how-to page says: faults change no bit.

`python -m tests.drills.foreign.twenty` strikes twenty times in each, and in others.
"""

from __future__ import annotations

import pytest

from tests.drills.foreign.twenty import struck

SHAPES = ("rollouts", "trainer_hooks", "recipe")


@pytest.mark.drill
@pytest.mark.timeout(400)
@pytest.mark.parametrize("name", SHAPES)
def test_faults_in_an_adopted_shape_change_no_bit(name: str) -> None:
    row = struck(name, seed=3, faults=4)
    assert row.well, f"{row}\n{row.hit}"
