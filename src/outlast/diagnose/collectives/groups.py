"""Put together the groups of a job from what its ranks say, with the members of each.

A group is known by its name, its backend and its members, because two groups may share a name.
If dumps do not name the members (gloo), they are:
    all ranks                           of the default group
    the ranks of its place in a mesh    of a dimension whose known members fit one (mesh.py)
    ranks that have used the group      of others; and these are all, if they are as many as its
                                        all-gathers or its sister groups say (an all-gather's output
                                        is so many times its input; groups of one description, such
                                        as "mesh_tp", are of one size)
    and the ranks left over             if just as many are missing as are in no sister group
Otherwise the group is open: ranks without a dump may be in it.

This module is pure.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from outlast.diagnose.collectives.identity import (
    NO_FAMILY,
    is_default,
    meshes_of,
    settle,
    size_said,
)
from outlast.diagnose.collectives.mesh import Mesh
from outlast.diagnose.collectives.state import Dump, GroupState


@dataclass(slots=True)
class DumpedGroup:
    """One process group of the job.

    members    its ranks, sorted
    states     what its ranks say, by rank
    is_open    ranks that left no dump may be members too; `possible` says which
    """

    label: str
    backend: str
    members: tuple[int, ...] = ()
    places: tuple[int, ...] | None = None  # members in the order of the group, where that is known
    states: dict[int, GroupState] = field(default_factory=dict)
    is_open: bool = False
    possible: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class DumpedJob:
    """The groups of a job, and the dumps that show them.

    silent   ranks without a dump, or with one from a recorder that was off
    broken   names of dumps that could not be read, by their rank
    """

    dumps: Mapping[int, Dump]
    ranks: frozenset[int]
    silent: frozenset[int]
    groups: tuple[DumpedGroup, ...]
    doubles: tuple[tuple[Dump, Dump], ...]  # of one rank: the one used, and the other
    broken: Mapping[int, str]
    unknown: tuple[Dump, ...]  # of unknown ranks


def put_together(given: Sequence[Dump], unreadable: Iterable[str], world_size: int) -> DumpedJob:
    """Return the job that the dumps show: one dump for each rank, and the members of each group."""
    settled = settle(given, unreadable, world_size)
    dumps, doubles = _one_each(settled.dumps)
    told, untold = _by_group(dumps)
    ranks = set(dumps) | set(settled.broken) | set(range(settled.world_size))
    for group in told:
        ranks.update(group.members)
    if not told and ranks:
        ranks.update(range(max(ranks)))
    silent = frozenset(rank for rank in ranks if rank not in dumps or dumps[rank].is_blank)
    meshes = (
        meshes_of(list(dumps.values()), settled.unknown, len(ranks)) if untold and silent else {}
    )
    for family in _families(untold):
        _infer(family, ranks, silent, meshes)
    return DumpedJob(
        dumps,
        frozenset(ranks),
        silent,
        (*told, *untold),
        doubles,
        settled.broken,
        tuple(settled.unknown),
    )


def _one_each(given: Sequence[Dump]) -> tuple[dict[int, Dump], tuple[tuple[Dump, Dump], ...]]:
    """Return the latest dump of each rank."""
    dumps: dict[int, Dump] = {}
    doubles: list[tuple[Dump, Dump]] = []
    for dump in given:
        other = dumps.setdefault(dump.rank, dump)
        if other is not dump:
            later, earlier = (
                (dump, other)
                if (dump.newest_ns, dump.entry_count, dump.name)
                > (other.newest_ns, other.entry_count, other.name)
                else (other, dump)
            )
            dumps[dump.rank] = later
            doubles.append((later, earlier))
    return dumps, tuple(doubles)


def _by_group(dumps: Mapping[int, Dump]) -> tuple[list[DumpedGroup], list[DumpedGroup]]:
    """Return the groups whose members are known, and the others.

    Members are compared as objects first. So a tuple of 16,384 ranks is hashed once, and not once
    for each rank.
    """
    same: dict[int, tuple[int, ...]] = {}
    equal: dict[tuple[int, ...], tuple[int, ...]] = {}
    told: dict[tuple[str, str, int], DumpedGroup] = {}
    untold: dict[tuple[str, str], DumpedGroup] = {}
    for rank, dump in sorted(dumps.items()):
        for state in dump.groups:
            if state.members is None:
                group = untold.setdefault(
                    (state.name, state.backend), DumpedGroup(state.label(), state.backend)
                )
            else:
                members = same.get(id(state.members))
                if members is None:
                    members = same[id(state.members)] = equal.setdefault(
                        state.members, state.members
                    )
                key = (state.name, state.backend, id(members))
                if (known := told.get(key)) is None:
                    known = told[key] = DumpedGroup(
                        state.label(), state.backend, tuple(sorted(members)), members
                    )
                group = known
            group.states[rank] = state
    return list(told.values()), list(untold.values())


# --- members that no dump tells -------------------------------------------------------------------


def _families(groups: Sequence[DumpedGroup]) -> list[list[DumpedGroup]]:
    families: dict[object, list[DumpedGroup]] = defaultdict(list)
    for place, group in enumerate(groups):
        state = next(iter(group.states.values()))
        families[place if state.desc in NO_FAMILY else (state.desc, state.backend)].append(group)
    return list(families.values())


def _infer(
    family: list[DumpedGroup],
    ranks: set[int],
    silent: frozenset[int],
    meshes: Mapping[tuple[str, str], Mesh],
) -> None:
    one = next(iter(family[0].states.values()))
    if (mesh := meshes.get((one.desc, one.backend))) is not None and not is_default(one):
        for group in family:
            group.members = tuple(mesh.members(mesh.place(next(iter(group.states)))))
        return
    seen = {rank for group in family for rank in group.states}
    is_family = one.desc not in NO_FAMILY
    size = max(
        max(_size_said(group) for group in family),
        max(len(group.states) for group in family) if is_family and len(family) > 1 else 0,
    )
    short = [group for group in family if len(group.states) < size]
    left = sorted(ranks - seen) if is_family else []
    for group in family:
        group.members = tuple(sorted(group.states))
        if is_default(one):
            group.members = tuple(sorted(ranks))
        elif len(group.states) < size:
            if short == [group] and len(left) == size - len(group.states):
                group.members = tuple(sorted({*group.states, *left}))
            else:
                group.is_open, group.possible = (
                    True,
                    tuple(rank for rank in (left or sorted(ranks)) if rank in silent),
                )
        elif not size:
            group.is_open, group.possible = True, tuple(sorted(silent - set(group.members)))


def _size_said(group: DumpedGroup) -> int:
    return next((size for state in group.states.values() if (size := size_said(state))), 0)
