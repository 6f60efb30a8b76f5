"""Dimensions whose members no dump tells: the mesh that they form, from some members of some
groups.
"""

from __future__ import annotations

import math
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from outlast.diagnose.collectives.mesh import Mesh, fitting, together


@st.composite
def meshes(draw: Any) -> tuple[list[Mesh], int]:
    """All dimensions of a world, the fastest first."""
    sizes = draw(st.lists(st.integers(2, 4), min_size=2, max_size=3))
    return [
        Mesh(size, math.prod(sizes[:place]), {}) for place, size in enumerate(sizes)
    ], math.prod(sizes)


def known_of(mesh: Mesh, ranks: set[int]) -> dict[str, set[int]]:
    found: dict[str, set[int]] = {}
    for rank in ranks:
        found.setdefault(f"group of {mesh.place(rank)}", set()).add(rank)
    return found


@settings(max_examples=150)
@given(meshes(), st.data())
def test_what_is_known_of_a_dimension_always_fits_the_mesh_that_it_is_of(
    made: tuple[list[Mesh], int], data: st.DataObject
) -> None:
    dimensions, world_size = made
    ranks = data.draw(st.sets(st.integers(0, world_size - 1), min_size=1))
    for mesh in dimensions:
        known = known_of(mesh, ranks)
        strides = [found.stride for found in fitting(known, mesh.size, world_size)]
        assert (mesh.stride in strides) is any(len(group) > 1 for group in known.values())


@settings(max_examples=150)
@given(meshes())
def test_with_all_ranks_known_one_mesh_alone_fits(made: tuple[list[Mesh], int]) -> None:
    dimensions, world_size = made
    for mesh in dimensions:
        found = list(fitting(known_of(mesh, set(range(world_size))), mesh.size, world_size))
        assert [one.stride for one in found] == [mesh.stride]
        assert all(rank in found[0].members(found[0].place(rank)) for rank in range(world_size))


@settings(max_examples=150)
@given(meshes(), st.data())
def test_where_several_fit_it_is_one_by_which_all_dimensions_are_the_world(
    made: tuple[list[Mesh], int], data: st.DataObject
) -> None:
    dimensions, world_size = made
    ranks = data.draw(st.sets(st.integers(0, world_size - 1), min_size=2))
    candidates = [
        list(fitting(known_of(mesh, ranks), mesh.size, world_size)) for mesh in dimensions
    ]
    if all(candidates):
        chosen = sorted(together(candidates, world_size), key=lambda one: one.stride)
        assert [one.stride for one in chosen] == [
            math.prod(one.size for one in chosen[:place]) for place in range(len(chosen))
        ]


def test_of_two_dimensions_of_which_one_fits_twice_the_other_decides() -> None:
    """Eight ranks, 4 x 2.

    Ranks 0 and 2 of four may be neighbours but one, or neighbours; that 0 and 4 are a pair leaves
    room for the latter alone.
    """
    candidates = [list(fitting({"a": {0, 4}}, 2, 8)), list(fitting({"c": {0, 2}}, 4, 8))]
    assert [[one.stride for one in meshes] for meshes in candidates] == [[4], [2, 1]]
    assert [one.stride for one in together(candidates, 8)] == [4, 1]


def test_dimensions_that_are_not_all_there_are_decide_nothing() -> None:
    candidates = [list(fitting({"c": {0, 2}}, 4, 16))]
    assert len(candidates[0]) == 2
    assert together(candidates, 16) == [candidates[0][0]]
