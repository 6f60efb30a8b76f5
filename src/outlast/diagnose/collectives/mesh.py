"""The rule that puts ranks into the groups of one dimension of a mesh.

So the group of a rank is known even if the rank left no dump. Ranks of a group are a stride apart,
and the first `size * stride` ranks of the mesh hold `stride` such groups. All launchers of meshes
do it like this, torch's DeviceMesh and Megatron included. The rule is used only where everything
that is known of the dimension agrees with it.

This module is pure.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

COMBINATIONS_MAX = 10_000


@dataclass(frozen=True, slots=True)
class Mesh:
    """One dimension of a mesh. `groups` has the known names by their places in the mesh."""

    size: int
    stride: int
    groups: Mapping[tuple[int, int], str]

    def place(self, rank: int) -> tuple[int, int]:
        """Return the place in the mesh of the group that the rank is in."""
        return rank // (self.size * self.stride), rank % self.stride

    def members(self, place: tuple[int, int]) -> range:
        """Return the ranks of the group at that place."""
        first = place[0] * self.size * self.stride + place[1]
        return range(first, first + self.size * self.stride, self.stride)


def fitting(known: Mapping[str, Collection[int]], size: int, world_size: int) -> Iterator[Mesh]:
    """Yield the meshes that fit all that is known, largest stride first.

    `known` are some members of each group. Nothing fits if none of it tells the stride, or if
    something disagrees.
    """
    gaps = [
        later - earlier
        for ranks in known.values()
        for earlier, later in zip(sorted(ranks), sorted(ranks)[1:], strict=False)
    ]
    if size < 2 or not gaps or not world_size or world_size % size:
        return
    for stride in (stride for stride in _divisors(min(gaps)) if world_size % (size * stride) == 0):
        mesh = Mesh(size, stride, {})
        places = {name: {mesh.place(rank) for rank in ranks} for name, ranks in known.items()}
        firsts = {next(iter(own)): name for name, own in places.items()}
        if all(len(own) == 1 for own in places.values()) and len(firsts) == len(places):
            yield Mesh(size, stride, firsts)


def together(candidates: Sequence[Sequence[Mesh]], world_size: int) -> list[Mesh]:
    """Return one mesh for each dimension.

    If the dimensions are all there are, the stride of each is the size of those below it. That
    decides if several fit.
    """
    firsts = [meshes[0] for meshes in candidates]
    if (
        math.prod(mesh.size for mesh in firsts) != world_size
        or math.prod(map(len, candidates)) > COMBINATIONS_MAX
    ):
        return firsts
    return next((list(some) for some in itertools.product(*candidates) if _is_chain(some)), firsts)


def _is_chain(meshes: Sequence[Mesh]) -> bool:
    stride = 1
    for mesh in sorted(meshes, key=lambda mesh: mesh.stride):
        if mesh.stride != stride:
            return False
        stride *= mesh.size
    return True


def _divisors(number: int) -> list[int]:
    """Return the divisors, largest first.

    The nearest two members that are known are neighbours, unless dumps between them are missing.
    """
    return [part for part in range(number, 0, -1) if number % part == 0]
