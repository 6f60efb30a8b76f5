"""Find out which rank each dump is of, from all dumps together.

    content         a rank that is alone in all of its groups is certain
    names           a number in a name is a rank if it is below the world size, where that is known;
                    without the word "rank" it also needs other files that are named in the same
                    way, or must be small beside the number of files
    elimination     a dump that is left over goes to a rank that is left over, if groups allow only
                    one
A dump whose rank stays unknown is left out, and a note says so. It is known which ranks it may be
of.

This module is pure.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from outlast.diagnose.collectives.mesh import Mesh, fitting, together
from outlast.diagnose.collectives.naming import RankClaim, claim_of
from outlast.diagnose.collectives.state import Dump, GroupState

NO_FAMILY = {"", "undefined"}


@dataclass(frozen=True, slots=True)
class Settled:
    """The rank of each dump, as far as it could be decided.

    broken       names of unreadable dumps, by their rank
    world_size   the number of ranks; 0 if nothing tells it
    unknown      dumps whose rank is not known; `possible` has all ranks that they may be of
    """

    dumps: Sequence[Dump]
    broken: Mapping[int, str]
    world_size: int
    unknown: Sequence[Dump]


def settle(dumps: Sequence[Dump], unreadable: Iterable[str], world_size: int) -> Settled:
    """Decide which rank each dump is of. `world_size` is what other evidence says, or 0."""
    names = list(unreadable)
    unsure = [dump for dump in dumps if not dump.is_sure]
    if not unsure and not names:
        return Settled(dumps, {}, world_size, ())
    limit = _size_told(dumps) or world_size
    claims = _claims(
        [*(dump.name for dump in unsure), *names],
        [dump.name for dump in dumps if dump.is_sure],
        limit,
    )
    sure = {dump.rank for dump in dumps if dump.is_sure}
    known, loose = [], []
    for dump in dumps:
        if dump.is_sure:
            known.append(dump)
        elif (rank := claims.get(dump.name)) is not None and (
            not dump.possible or rank in dump.possible
        ):
            known.append(dump if dump.rank == rank else replace(dump, rank=rank))
        else:
            loose.append(dump)
    broken = {claims[name]: name for name in names if name in claims and claims[name] not in sure}
    if loose:
        count = limit or max(
            (
                *(dump.rank + 1 for dump in known),
                *(rank + 1 for rank in broken),
                len(dumps) + len(names),
            )
        )
        found = _eliminated(
            known,
            loose,
            sorted({*range(count)} - {dump.rank for dump in known} - broken.keys()),
            count,
        )
        known += [
            replace(dump, rank=next(iter(found[id(dump)])))
            for dump in loose
            if len(found[id(dump)]) == 1
        ]
        loose = [
            replace(dump, possible=tuple(sorted(found[id(dump)])))
            for dump in loose
            if len(found[id(dump)]) != 1
        ]
    return Settled(known, broken, limit, loose)


# --- the size of the world ------------------------------------------------------------------------


def _size_told(dumps: Sequence[Dump]) -> int:
    """Return the world size by groups' members or by what the default group gathers; else 0."""
    told = max(
        (max(state.members) + 1 for dump in dumps for state in dump.groups if state.members),
        default=0,
    )
    sizes = Counter(
        size
        for dump in dumps
        for state in dump.groups
        if is_default(state) and (size := size_said(state))
    )
    return max(told, sizes.most_common(1)[0][0] if sizes else 0)


def is_default(state: GroupState) -> bool:
    """Return whether this is the default group, which has all ranks."""
    return state.desc == "default_pg" or state.name == "0"


def size_said(state: GroupState) -> int:
    """Return the members of a group by its all-gathers; 0 without any.

    The output of an all-gather is that many times its input.
    """
    for _, signature in reversed(state.recent):
        name, _, sizes = signature.partition(" ")
        into, arrow, out = sizes.rpartition(" ")[2].partition(">")
        if (
            "all_gather" in name
            and arrow
            and into.isdecimal()
            and out.isdecimal()
            and int(into)
            and int(out) % int(into) == 0
        ):
            return int(out) // int(into)
    return 0


# --- names ----------------------------------------------------------------------------------------


def _claims(names: Sequence[str], others: Sequence[str], limit: int) -> dict[str, int]:
    """Return the rank of each name whose claim is believed.

    The `others` are files whose rank is known; they keep names company.
    """
    made = {name: claim for name in names if (claim := claim_of(name)) is not None}
    alike: dict[str, set[int]] = defaultdict(set)
    for claim in (
        *made.values(),
        *(claim for name in others if (claim := claim_of(name)) is not None),
    ):
        alike[claim.pattern].add(claim.rank)
    count = len(names) + len(others)
    return {
        name: claim.rank
        for name, claim in made.items()
        if _is_believed(claim, len(alike[claim.pattern]) > 1, limit, count)
    }


def _is_believed(claim: RankClaim, has_company: bool, limit: int, count: int) -> bool:
    if limit and claim.rank >= limit:
        return False
    if claim.strength == 2 or count == 1:
        return True
    if claim.strength == 1:
        return has_company or bool(limit) or claim.rank < count
    return has_company and claim.rank < (limit or count)


# --- what is left over ----------------------------------------------------------------------------


def _eliminated(
    known: Sequence[Dump], loose: Sequence[Dump], free: Sequence[int], world_size: int
) -> dict[int, set[int]]:
    """Return the ranks that each dump may be of, by the identity of the dump.

    One rank means that it is certain; none means that all ranks that it may be of are others'.
    """
    meshes = meshes_of(known, loose, world_size)
    left = {id(dump): {rank for rank in free if _fits(dump, rank, meshes)} for dump in loose}
    found: dict[int, set[int]] = {}
    while alone := next((key for key, ranks in left.items() if len(ranks) == 1), None):
        found[alone] = left.pop(alone)
        left = {key: ranks - found[alone] for key, ranks in left.items()}
    return found | left


def _fits(dump: Dump, rank: int, meshes: Mapping[tuple[str, str], Mesh]) -> bool:
    if dump.possible and rank not in dump.possible:
        return False
    for state in dump.groups:
        mesh = meshes.get((state.desc, state.backend))
        if mesh is not None and mesh.groups.get(mesh.place(rank), state.name) != state.name:
            return False
        if (
            mesh is not None
            and state.name in mesh.groups.values()
            and mesh.groups.get(mesh.place(rank)) != state.name
        ):
            return False
    return True


def meshes_of(
    known: Sequence[Dump], others: Sequence[Dump], world_size: int
) -> dict[tuple[str, str], Mesh]:
    """Return the meshes of dimensions whose members no dump tells, by description and backend."""
    ranks: dict[tuple[str, str], dict[str, set[int]]] = defaultdict(lambda: defaultdict(set))
    sizes: dict[tuple[str, str], int] = defaultdict(int)
    names: dict[tuple[str, str], set[str]] = defaultdict(set)
    for dump in known:
        for state in dump.groups:
            if state.members is None and state.desc not in NO_FAMILY and not is_default(state):
                ranks[state.desc, state.backend][state.name].add(dump.rank)
    for dump in (*known, *others):
        for state in dump.groups:
            if (state.desc, state.backend) in ranks:
                names[state.desc, state.backend].add(state.name)
                sizes[state.desc, state.backend] = max(
                    sizes[state.desc, state.backend], size_said(state)
                )
    found: dict[tuple[str, str], list[Mesh]] = {}
    for key, groups in ranks.items():
        # without a gather to tell it: all groups of a dimension are of one size, and together they
        # are the world, if each is known by one dump at least
        size = sizes[key] or (
            world_size // len(names[key]) if world_size % len(names[key]) == 0 else 0
        )
        if max(map(len, groups.values())) <= size and (
            meshes := list(fitting(groups, size, world_size))
        ):
            found[key] = meshes
    return dict(zip(found, together(list(found.values()), world_size), strict=True))
