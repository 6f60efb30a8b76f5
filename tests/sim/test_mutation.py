"""The mutants that `mutation.py` plants stand where they say, in code that is there."""

from __future__ import annotations

import ast

import pytest

from tests.sim.mutation import NAMED, SURVIVORS, Mutant


@pytest.mark.parametrize("mutant", NAMED, ids=lambda mutant: mutant.name)
def test_a_mutant_has_its_place_and_is_a_program(mutant: Mutant) -> None:
    ast.parse(mutant.changed())


def test_each_mutant_has_a_name_of_its_own() -> None:
    names = [mutant.name for mutant in NAMED]
    assert len(names) == len(set(names)) >= 20
    assert set(SURVIVORS) <= set(names)
