"""Dumps that were not taken while all ranks stood still: older than their peers', from after the
failure, under names that tell nothing.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from outlast.diagnose.collectives import Blame, find_blame, read_dump
from outlast.diagnose.collectives.dumps import _FIELDS
from outlast.diagnose.collectives.entries import group_states, worth_reading
from outlast.diagnose.same_job import Sample, world_size
from tests.diagnose.collectives.simulator import Job, Layout, Op

SHAPES = [(2, 1, 2), (2, 1, 4), (4, 1, 2), (3, 1, 3)]


def tops(job: Job) -> list[dict[str, Any]]:
    made = [job.dump(rank, backend="gloo") for rank in range(job.layout.size)]
    return [top | {"entries": list(top["entries"])} for top in made]


def blame_of(made: list[dict[str, Any]], **names: str) -> Blame:
    """`names`: by "r3", the file's name of rank 3's dump."""
    return find_blame(
        [
            read_dump(json.dumps(top).encode(), name=names.get(f"r{rank}", f"fr/dump_{rank}"))
            for rank, top in enumerate(made)
        ]
    )


def blamed(blame: Blame) -> set[int]:
    return {one.rank for one in blame.ranks}


@st.composite
def hanging(draw: Any) -> tuple[Job, int]:
    layout = Layout(*draw(st.sampled_from(SHAPES)))
    rank = draw(st.integers(0, layout.size - 1))
    length = len(layout.program(rank, 1))
    return Job(layout, steps=6, sleeps={rank: draw(st.integers(4 * length, 6 * length - 1))}), rank


@settings(max_examples=100)
@given(hanging(), st.integers(0, 4), st.booleans())
def test_a_rank_with_an_older_dump_is_the_only_one_named(
    made: tuple[Job, int], lacking: int, is_in_one: bool
) -> None:
    """A stopped process saves nothing.

    Method: the last entries of the sleeper's dump are taken away, and it may still have been in the
    last that is left.
    """
    job, rank = made
    assume(job.hangs)
    all_tops = tops(job)
    mine = all_tops[rank]["entries"]
    del mine[len(mine) - lacking :]
    if lacking:
        mine[-1]["retired"] = not is_in_one
    blame = blame_of(all_tops)
    assert blamed(blame) == {rank}
    assert (blame.suspects, blame.is_afterwards) == ((), False)


@settings(max_examples=60)
@given(hanging(), st.data())
def test_dumps_from_after_the_failure_weigh_less_and_say_so(
    made: tuple[Job, int], data: st.DataObject
) -> None:
    """Method: of some waiting ranks, what they wait in is retired, as gloo does when it fails."""
    job, rank = made
    assume(job.hangs)
    all_tops = tops(job)
    waiting = [one for one, top in enumerate(all_tops) if not top["entries"][-1]["retired"]]
    for one in data.draw(st.lists(st.sampled_from(waiting), min_size=1, unique=True)):
        all_tops[one]["entries"][-1]["retired"] = True
    blame = blame_of(all_tops)
    assert blamed(blame) == {rank}
    assert not blame.is_afterwards or blame.ranks[0].confidence < 0.7


def swapped(layout: Layout, rank: int) -> list[Op]:
    """Its last two calls, of the replicas and of all, the other way round."""
    program = layout.program(rank, 4)
    return [*program[:-2], program[-1], program[-2]]


@pytest.mark.parametrize("backend", ["gloo", "nccl"])
@pytest.mark.parametrize("shape", SHAPES)
def test_a_rank_with_another_order_of_groups_is_named_and_not_the_ring(
    shape: tuple[int, int, int], backend: str
) -> None:
    layout = Layout(*shape)
    for rank in (0, layout.size - 1):
        job = Job(
            layout,
            programs={
                one: swapped(layout, one) if one == rank else layout.program(one, 4)
                for one in range(layout.size)
            },
        )
        blame = find_blame(
            [
                read_dump(job.raw(one, backend=backend), name=f"dump_{one}")
                for one in range(layout.size)
            ]
        )
        assert (blame.kind, blamed(blame)) == ("order_inversion", {rank})


def test_of_two_that_disagree_the_one_with_another_order_is_named() -> None:
    """Method: of four dumps two are left; one of them has come to the last sum over all before the
    barrier that always comes first.
    """
    layout = Layout(2, 1, 2)
    steps = [Op("world", "barrier", 1), Op("world", "all_reduce", 1)]
    usual = {
        rank: [one for _ in range(4) for one in (*layout.program(rank, 1)[:-1], *steps)]
        for rank in range(4)
    }
    odd = [*usual[3][:-2], *reversed(steps)]
    job = Job(layout, programs=usual | {3: odd})
    blame = find_blame(
        [read_dump(job.raw(rank, backend="gloo"), name=f"dump_{rank}") for rank in (2, 3)],
        world_size=4,
    )
    assert (blame.kind, blamed(blame), blame.either) == ("mismatch", {3}, False)
    assert {one.rank for one in blame.suspects} <= {0, 1}


def test_a_step_that_is_new_to_all_is_nobodys_fault() -> None:
    """Method: after four steps all evaluate for the first time, and one sleeps there."""
    layout = Layout(2, 1, 2)
    programs = {
        rank: [*layout.program(rank, 4), Op("world", "barrier", 1), Op("world", "broadcast", 1)]
        for rank in range(4)
    }
    job = Job(layout, programs=programs, sleeps={2: len(programs[2]) - 2})
    blame = blame_of(tops(job))
    assert (blame.kind, blamed(blame)) == ("missing", {2})


# --- whose it is ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["copy-of-88203-dump", "copy-of-1f3a2-dump", "backup", "host12.7f.json", "trace_20240"]
)
@pytest.mark.parametrize("nameless", [{5}, {2, 5}, {5, 6, 7}])
def test_a_dump_whose_name_tells_nothing_is_known_by_elimination(
    name: str, nameless: set[int]
) -> None:
    """Of eight ranks in TP x DP, each is the only one in both of its groups."""
    job = Job(Layout(2, 1, 4), steps=6, sleeps={5: 20})
    names = {f"r{rank}": f"{rank * 7}x/{name}" for rank in nameless}
    blame = blame_of(tops(job), **names)
    assert (blamed(blame), blame.suspects) == ({5}, ())
    assert blame.findings[0].evidence.file == names["r5"]


def test_suspects_never_lie_beyond_the_world() -> None:
    """Method: a number as large as a process id in the name of a dump that is cut, and of one that
    is whole; what is gathered tells that there are 4.
    """
    layout = Layout(2, 1, 2)
    programs = {rank: [Op("world", "all_gather", 4), *layout.program(rank, 4)] for rank in range(4)}
    job = Job(layout, programs=programs, sleeps={3: 12})
    dumps = [read_dump(job.raw(rank, backend="gloo"), name=f"dump_{rank}") for rank in (0, 1)]
    dumps.append(read_dump(job.raw(2, backend="gloo"), name="dump_70123"))
    blame = find_blame(dumps, unreadable={"dump_41234": "cut short"}, world_size=4)
    assert {one.rank for one in blame.ranks} | {one.rank for one in blame.suspects} <= {2, 3}
    assert 3 in {one.rank for one in blame.suspects}


def test_names_that_agree_are_believed_with_few_dumps_left() -> None:
    job = Job(Layout(2, 1, 2), steps=6, sleeps={3: 20})
    made = [
        read_dump(job.raw(rank, backend="gloo"), name=f"dump_{rank + 508}") for rank in range(4)
    ]
    assert blamed(find_blame(made)) == {511}


def test_logs_tell_the_size_of_the_world_unless_they_disagree() -> None:
    one, other = Sample("a.log"), Sample("b.log")
    one.look([b"RANK=3 WORLD_SIZE=64"])
    assert world_size([one, other]) == 64
    other.look([b"world_size: 128"])
    assert world_size([one, other]) == 0


def widened(layout: Layout, rank: int, place: int) -> Job:
    """Its call at that place is of another size than the others'; nothing tells, as gloo does where
    sizes differ by little, and all go on to the next step.
    """
    programs = {one: layout.program(one, 5) for one in range(layout.size)}
    wide = programs[rank][place]
    job = Job(layout, programs=programs, sleeps=dict.fromkeys(range(layout.size), place + 1))
    job.ranks[rank].program[place] = Op(wide.group, wide.kind, wide.size + 2)
    for one in job.ranks:
        one.enqueued, one.seen = place + 1, place
    return job


def test_dumps_that_are_nobodys_vote_on_what_the_others_called() -> None:
    """Of two known ranks that disagree neither has a majority; two dumps of that group whose ranks
    nobody knows agree with one of them.
    """
    layout = Layout(2, 1, 2)
    job = widened(layout, 1, 4 * len(layout.program(0, 1)) + len(layout.program(0, 1)) - 1)
    blame = blame_of(tops(job), r2="x/copy-of-1f3a2-dump", r3="y/copy-of-88203-dump")
    assert (blame.kind, blamed(blame), blame.either, blame.suspects) == ("mismatch", {1}, False, ())


def test_a_dump_of_an_unknown_rank_makes_its_candidates_suspects() -> None:
    """Nobody can say whose dump it is, so every rank without a dump may be its owner."""
    layout = Layout(2, 1, 4)
    job = widened(layout, 5, 5 * len(layout.program(5, 1)) - 1)
    names = {f"r{rank}": f"{rank * 7}x/copy-of-1f3a2-dump" for rank in (0, 2, 3, 4, 5, 6, 7)}
    blame = blame_of(tops(job), **names)
    suspects = {one.rank for one in blame.suspects}
    assert (blame.kind, blame.ranks) == ("mismatch", ())
    assert 5 in suspects
    assert 1 not in suspects, "its dump is known"
    assert blame.findings[0].evidence.file == names["r5"]


# --- what of a dump is looked at ------------------------------------------------------------------


@settings(max_examples=60)
@given(st.sampled_from(SHAPES), st.integers(0, 3), st.integers(0, 60), st.booleans())
def test_what_is_left_out_of_a_long_dump_would_have_told_nothing_more(
    shape: tuple[int, int, int], ahead: int, place: int, is_blind: bool
) -> None:
    """Method: states from all entries and from those worth reading, beside each other."""
    layout = Layout(*shape)
    place += 40
    job = Job(
        layout,
        steps=20,
        ahead=ahead,
        blind={1: place} if is_blind else {},
        sleeps={} if is_blind else {1: place},
    )
    for rank in range(layout.size):
        entries = list(job.dump(rank)["entries"])
        some = worth_reading(entries)
        assert len(some) < len(entries)
        assert group_states(map(_FIELDS, some), some, {}) == group_states(
            map(_FIELDS, entries), entries, {}
        )
