"""Each mutant of tools/mutation is found at its place in the code."""

from __future__ import annotations

import ast

import pytest

from tools.mutation.named import NAMED
from tools.mutation.planted import Mutant, find


@pytest.mark.parametrize("mutant", NAMED, ids=lambda mutant: mutant.name)
def test_the_place_of_a_mutant_is_found_exactly_once(mutant: Mutant) -> None:
    """Method: `changed` looks for the place, and its result has to be a valid program."""
    assert ast.parse(mutant.changed()).body


def test_each_mutant_has_a_name_of_its_own() -> None:
    names = [mutant.name for mutant in NAMED]
    assert len(names) == len(set(names)) >= 20


@pytest.mark.parametrize(
    "layout",
    [
        "if kept(one, 'two'):\n    go()\n",
        'if kept(\n    one,\n    "two",\n):\n    go()\n',
        'if kept(one, "t" "wo"):  # why\n    go()\n',
    ],
)
def test_a_place_is_found_whatever_its_layout(layout: str) -> None:
    [(begin, end)] = find(layout, 'if kept(one, "two"):')
    assert (layout[begin:][:2], layout[end - 2 : end]) == ("if", "):")


def test_other_code_is_not_taken_for_the_place() -> None:
    """Method: search for another string, for another name, and for a place that occurs twice."""
    assert find('if kept(one, "three"): go()', 'if kept(one, "two"):') == []
    assert find('if kept(other, "two"): go()', 'if kept(one, "two"):') == []
    assert len(find("go()\ngo()\n", "go()")) == 2
