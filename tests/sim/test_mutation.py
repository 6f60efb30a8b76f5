"""The mutants that `mutation.py` plants stand where they say, in code that is there."""

from __future__ import annotations

import ast

import pytest

from tests.sim.mutation import FLIPPED, NAMED, SURVIVORS, Mutant, conditions, remembered


@pytest.mark.parametrize("mutant", NAMED, ids=lambda mutant: mutant.name)
def test_a_mutant_has_its_place_and_is_a_program(mutant: Mutant) -> None:
    assert ast.parse(mutant.changed()).body


def test_each_mutant_has_a_name_of_its_own() -> None:
    names = [mutant.name for mutant in NAMED]
    assert len(names) == len(set(names)) >= 20
    there = {name for file in FLIPPED for name in conditions(file)}.union(names)
    assert set(SURVIVORS) <= there
    assert set(remembered()) <= there, (
        "python tests/sim/mutation.py --again --only nothing --remember forgets those that are no"
        " more"
    )
