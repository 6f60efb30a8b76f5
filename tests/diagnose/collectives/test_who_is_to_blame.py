"""Jobs that were made to hang, by the simulator of this folder: the rank that was put to sleep is
named, and nobody else.
"""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from outlast.diagnose.collectives import Blame, Dump, find_blame, read_dump
from outlast.diagnose.collectives.order import few_of
from tests.diagnose.collectives.simulator import Job, Layout, Op


def dumps_of(
    job: Job,
    *,
    backend: str = "nccl",
    only_active: bool = False,
    without: frozenset[int] = frozenset(),
) -> list[Dump]:
    ranks = [rank for rank in range(job.layout.size) if rank not in without]
    return [
        read_dump(job.raw(rank, backend=backend, only_active=only_active), name=f"trace_{rank}")
        for rank in ranks
    ]


def blamed(blame: Blame) -> set[int]:
    return {one.rank for one in blame.ranks}


def suspected(blame: Blame) -> set[int]:
    return {one.rank for one in blame.suspects}


SHAPES = [
    (2, 1, 2),
    (2, 1, 4),
    (4, 1, 2),
    (1, 2, 2),
    (1, 4, 2),
    (2, 2, 2),
    (2, 4, 2),
    (3, 2, 3),
    (8, 1, 4),
]
layouts = st.sampled_from(SHAPES).map(lambda shape: Layout(*shape))


@st.composite
def sleepers(draw: Callable[[st.SearchStrategy], object], backend: str) -> tuple[Job, int]:
    layout = (
        draw(layouts)
        if backend == "nccl"
        else Layout(*draw(st.sampled_from([shape for shape in SHAPES if shape[1] == 1])))
    )
    rank = draw(st.integers(0, layout.size - 1))
    program = layout.program(rank, 3)
    # gloo tells no members: every rank has used each of its groups once before
    place = draw(st.integers(len(program) // 3 if backend == "gloo" else 0, len(program) - 1))
    return Job(
        layout,
        steps=3,
        ahead=draw(st.sampled_from([0, 2, 5])) if backend == "nccl" else 0,
        sleeps={rank: place},
    ), rank


@settings(max_examples=150)
@given(sleepers("nccl"), st.booleans())
def test_a_rank_that_sleeps_is_named_exactly(made: tuple[Job, int], only_active: bool) -> None:
    """Over NCCL, whether the host waits for each operation or runs ahead, and whether finished
    operations are in the dumps.
    """
    job, rank = made
    assume(job.hangs)
    blame = find_blame(dumps_of(job, only_active=only_active))
    assert blamed(blame) == {rank}
    assert not blame.suspects
    assert blame.kind in ("missing", "p2p")


@settings(max_examples=100)
@given(sleepers("gloo"))
def test_a_rank_that_sleeps_is_named_exactly_over_gloo(made: tuple[Job, int]) -> None:
    job, rank = made
    assume(job.hangs)
    blame = find_blame(dumps_of(job, backend="gloo"))
    assert blamed(blame) == {rank}
    assert not blame.suspects


@settings(max_examples=200)
@given(sleepers("nccl"), st.booleans(), st.data())
def test_without_some_dumps_no_innocent_rank_is_named(
    made: tuple[Job, int], only_active: bool, data: st.DataObject
) -> None:
    """The truth is still named or suspected."""
    job, rank = made
    assume(job.hangs)
    others = st.integers(0, job.layout.size - 1)
    lost = data.draw(st.frozensets(others, min_size=1, max_size=job.layout.size // 2))
    blame = find_blame(dumps_of(job, only_active=only_active, without=lost))
    assert rank in blamed(blame) | suspected(blame)
    assert blamed(blame) <= {rank}
    assert suspected(blame) <= lost


# found by the test above, or by long searches with its rule: shape, rank, place, ahead,
# only_active, lost
FOUND = [
    ((2, 4, 2), 0, 19, 5, False, {0}),
    ((2, 4, 2), 0, 19, 5, True, {0}),
    ((2, 4, 2), 8, 9, 5, True, {8}),
    ((2, 4, 2), 9, 20, 5, False, {1, 5, 6, 7, 9}),
    ((1, 4, 2), 4, 5, 0, False, {0, 3, 4, 5}),
    ((1, 4, 2), 3, 6, 0, False, {2, 3, 6, 7}),
    ((2, 2, 2), 6, 9, 0, True, {2, 4, 6, 7}),
    ((2, 4, 2), 5, 14, 0, False, {3, 5, 7, 8, 11, 13, 14}),
    ((2, 4, 2), 5, 25, 0, True, {2, 3, 5, 7, 8, 13, 14}),
    ((2, 4, 2), 7, 1, 0, True, {3, 5, 6, 7, 8, 10, 13, 15}),
    ((3, 2, 3), 7, 2, 0, True, {1, 3, 6, 7, 10, 13, 14, 15, 16}),
]


@pytest.mark.parametrize(("shape", "rank", "place", "ahead", "only_active", "lost"), FOUND)
def test_without_a_dump_of_who_sleeps_it_is_a_suspect_and_nobody_is_named(
    shape: tuple[int, int, int],
    rank: int,
    place: int,
    ahead: int,
    only_active: bool,
    lost: set[int],
) -> None:
    """First those in whose queues a ring is seen, behind what they wait in; then those where
    whoever waits for the sleeper has left no dump either.
    """
    job = Job(Layout(*shape), steps=3, ahead=ahead, sleeps={rank: place})
    blame = find_blame(dumps_of(job, only_active=only_active, without=frozenset(lost)))
    assert blamed(blame) == set()
    assert rank in suspected(blame)
    assert suspected(blame) <= lost
    assert all(str(one.reason).startswith("it left no dump, and rank") for one in blame.suspects)


def test_a_dead_link_makes_no_ring_of_calls_queued_behind_it() -> None:
    """Method: all have come to the first collective of one pair, and it never gets done, while
    their hosts run ahead into sends and receives of other pairs.
    """

    class Dead(Job):
        def _is_there(self, other: int, rank: int, op: Op, seq: int) -> bool:
            return (op.group, op.peer) != ("tp-2", None) and super()._is_there(other, rank, op, seq)

    for ahead in range(12):
        blame = find_blame(dumps_of(Dead(Layout(2, 4, 2), ahead=ahead)))
        assert (blame.kind, blame.ranks, blame.suspects) == ("all_joined", (), ())


@settings(max_examples=150)
@given(sleepers("gloo"), st.data())
def test_without_some_dumps_of_gloo_the_truth_is_named_or_suspected(
    made: tuple[Job, int], data: st.DataObject
) -> None:
    """How many ranks there should be is told, as a launcher knows it."""
    job, rank = made
    assume(job.hangs)
    lost = data.draw(
        st.frozensets(
            st.integers(0, job.layout.size - 1), min_size=1, max_size=max(1, job.layout.size // 4)
        )
    )
    blame = find_blame(dumps_of(job, backend="gloo", without=lost), world_size=job.layout.size)
    assert rank in blamed(blame) | suspected(blame)
    assert blamed(blame) <= {rank}
    assert suspected(blame) <= lost


@settings(max_examples=100)
@given(layouts, st.data())
def test_two_sleepers_are_never_taken_for_others(layout: Layout, data: st.DataObject) -> None:
    """Who sleeps where nobody waits for it yet need not be seen; who is named does sleep."""
    ranks = data.draw(
        st.lists(st.integers(0, layout.size - 1), min_size=2, max_size=2, unique=True)
    )
    job = Job(
        layout,
        sleeps={
            rank: data.draw(st.integers(0, len(layout.program(rank, 2)) - 1)) for rank in ranks
        },
    )
    assume(job.hangs)
    found = blamed(find_blame(dumps_of(job)))
    assert found
    assert found <= job.asleep


def has_finished(job: Job, rank: int, group: str, seq: int) -> bool:
    one = job.ranks[rank]
    return any(
        op.group == group and op.peer is None and one.seqs[place] >= seq
        for place, op in enumerate(one.program[: one.seen])
    )


@settings(max_examples=100)
@given(layouts, st.data())
def test_a_rank_whose_operations_are_never_seen_to_finish_is_stuck(
    layout: Layout, data: st.DataObject
) -> None:
    """Method: its device takes part, so the others go on until its host, which sees nothing finish,
    enqueues no more.
    """
    rank = data.draw(st.integers(0, layout.size - 1))
    place = data.draw(st.integers(0, len(layout.program(rank, 3)) // 2))
    job = Job(layout, steps=3, ahead=12, blind={rank: place})
    op, seq = job.ranks[rank].program[place], job.ranks[rank].seqs[place]
    assume(
        job.hangs
        and op.peer is None
        and any(
            has_finished(job, other, op.group, seq)
            for other in layout.groups[op.group]
            if other != rank
        )
    )
    assert blamed(find_blame(dumps_of(job))) == {rank}


# shape, rank, place, ahead, only_active: found by searches with the rule of the test above, for
# jobs with send and receive
BLIND = [
    ((1, 2, 2), 3, 5, 5, True),
    ((2, 4, 2), 13, 14, 12, True),
    ((2, 4, 2), 6, 12, 5, True),
    ((1, 4, 2), 6, 8, 2, False),
    ((1, 4, 2), 2, 1, 2, False),
]


@pytest.mark.parametrize(("shape", "rank", "place", "ahead", "only_active"), BLIND)
def test_nobody_is_named_for_what_a_stuck_rank_seems_to_wait_in(
    shape: tuple[int, int, int], rank: int, place: int, ahead: int, only_active: bool
) -> None:
    """Its sends and receives are long finished, and only it does not see it."""
    blame = find_blame(
        dumps_of(Job(Layout(*shape), ahead=ahead, blind={rank: place}), only_active=only_active)
    )
    assert (blame.kind, blamed(blame), blame.either) == ("self_stuck", {rank}, False)


def test_a_ring_that_a_send_may_have_closed_long_ago_is_doubtful() -> None:
    """Method: dumps of what is active only do not tell whether a send without its receive is waited
    for, or finished.
    """
    blame = find_blame(dumps_of(Job(Layout(1, 4, 2), ahead=2, blind={5: 7}), only_active=True))
    assert 5 in blamed(blame)
    assert blame.either
    assert all(one.confidence <= 0.5 for one in blame.ranks)


def two_groups() -> Layout:
    layout = Layout(2, 1, 1)
    layout.add("first", "", (0, 1))
    layout.add("second", "", (0, 1))
    return layout


@pytest.mark.parametrize("ahead", [0, 4])
def test_groups_called_in_different_orders_are_a_ring(ahead: int) -> None:
    """With a host that waits, each has not come to the other's operation; with one that runs ahead
    all have come, and each is queued behind the other.
    """
    start = [Op("first"), Op("second"), Op("world")]
    job = Job(
        two_groups(),
        ahead=ahead,
        programs={0: [*start, Op("first"), Op("second")], 1: [*start, Op("second"), Op("first")]},
    )
    blame = find_blame(dumps_of(job))
    assert (blame.kind, blamed(blame)) == ("order_inversion", {0, 1})


@pytest.mark.parametrize("backend", ["nccl", "gloo"])
@pytest.mark.parametrize(("size", "kind"), [(7, "all_reduce"), (64, "broadcast")])
def test_the_minority_that_calls_something_else_is_named(
    size: int, kind: str, backend: str
) -> None:
    layout = Layout(4, 1, 2)
    programs = {rank: layout.program(rank, 2) for rank in range(8)}
    at = next(
        place for place, op in enumerate(programs[5]) if place > 4 and op.group.startswith("tp")
    )
    programs[5][at] = Op(programs[5][at].group, kind, size)
    blame = find_blame(dumps_of(Job(layout, programs=programs), backend=backend))
    assert (blame.kind, blamed(blame), blame.either) == ("mismatch", {5}, False)


def test_of_two_that_disagree_it_is_one_or_the_other() -> None:
    job = Job(
        Layout(2, 1, 1),
        programs={0: [Op("world"), Op("world", size=4)], 1: [Op("world"), Op("world", size=8)]},
    )
    blame = find_blame(dumps_of(job))
    assert (blame.kind, blamed(blame), blame.either) == ("mismatch", {0, 1}, True)
    assert all(one.confidence <= 0.5 for one in blame.ranks)


def test_of_two_that_disagree_the_one_unlike_all_sister_groups_is_named() -> None:
    layout = Layout(2, 1, 3)
    programs = {rank: layout.program(rank, 2) for rank in range(6)}
    programs[3][0] = Op(programs[3][0].group, "all_reduce", 5)
    blame = find_blame(dumps_of(Job(layout, programs=programs)))
    assert (blame.kind, blamed(blame), blame.either) == ("mismatch", {3}, False)


def test_when_all_have_come_and_nobody_gets_on_nobody_is_named() -> None:
    """Method: all ranks but none of the devices take part in the last operation, as with a dead
    link.
    """
    job = Job(Layout(2, 1, 2), sleeps=dict.fromkeys(range(4), 5))
    for one in job.ranks:
        one.enqueued += 1
    blame = find_blame(dumps_of(job))
    assert (blame.kind, blame.ranks, blame.suspects) == ("all_joined", (), ())


def test_a_job_that_has_ended_well_blames_nobody() -> None:
    for backend in ("nccl", "gloo"):
        job = Job(Layout(2, 2, 2) if backend == "nccl" else Layout(2, 1, 2))
        assert not job.hangs
        blame = find_blame(dumps_of(job, backend=backend))
        assert (blame.kind, blame.ranks, blame.suspects) == ("nothing", (), ())


def test_dumps_of_gloo_from_after_the_time_out_still_name_who_had_not_come() -> None:
    """Then all is retired, whether it finished or failed: the order of arrival is left, and is
    believed less.
    """
    job = Job(Layout(2, 1, 2), steps=3, sleeps={2: 9})
    dumps = []
    for rank in range(4):
        dump = job.dump(rank, backend="gloo")
        for entry in dump["entries"]:
            entry["retired"] = True
        dumps.append(read_dump(json.dumps(dump).encode(), name=f"fr_{rank}.json"))
    blame = find_blame(dumps)
    assert blamed(blame) == {2}
    assert blame.ranks[0].confidence < 0.7


def test_a_dump_that_cannot_be_read_makes_a_suspect_with_the_reason() -> None:
    job = Job(Layout(2, 1, 2), sleeps={3: 4})
    blame = find_blame(
        dumps_of(job, without=frozenset({3})),
        unreadable={"host-9_3": "cut short: the pickle ends in its middle, after 87 bytes"},
    )
    assert not blame.ranks
    assert [one.rank for one in blame.suspects] == [3]
    assert "cut short" in blame.suspects[0].reason


def test_a_recorder_that_was_off_says_nothing_against_its_rank() -> None:
    job = Job(Layout(2, 1, 2), sleeps={3: 4})
    off = read_dump(
        (
            b'{"comm_lib_version":"","nccl_comm_state":{},"pg_config":{},"pg_status":{},"versi'
            b'on":"2.10"}'
        ),
        name="rank_3",
    )
    blame = find_blame([*dumps_of(job, without=frozenset({3})), off])
    assert not blame.ranks
    assert [(one.rank, "off" in one.reason) for one in blame.suspects] == [(3, True)]


def test_of_two_dumps_of_one_rank_the_later_counts_and_it_is_said() -> None:
    layout = Layout(2, 1, 2)
    early, late = Job(layout, sleeps={0: 2}), Job(layout, sleeps={3: 9}, steps=3)
    dumps = [*dumps_of(late), read_dump(early.raw(1), name="old/trace_1")]
    blame = find_blame(dumps)
    assert blamed(blame) == {3}
    assert [
        finding.evidence.file for finding in blame.findings if finding.rule == "dump.double"
    ] == ["old/trace_1"]


@example(16)
@given(st.integers(2, 40))
def test_a_chain_of_waiting_ranks_leads_to_its_end(length: int) -> None:
    """Method: groups of two, each rank waiting in the one with its neighbour; all hold the first in
    a ring of groups but the last, who sleeps.
    """
    layout = Layout(length, 1, 1)
    for rank in range(length - 1):
        layout.add(f"link{rank}", "", (rank, rank + 1))
    programs = {
        rank: [
            *([Op(f"link{rank}")] if rank < length - 1 else []),
            *([Op(f"link{rank - 1}")] if rank else []),
        ]
        for rank in range(length)
    }
    blame = find_blame(dumps_of(Job(layout, programs=programs, sleeps={length - 1: 0})))
    assert blamed(blame) == {length - 1}
    assert len(blame.edges) == length - 1


@pytest.mark.parametrize(
    ("places", "few"),
    [
        ({0: 7, 1: 7, 2: 7, 3: 8}, [3]),
        ({0: 7, 1: 8, 2: 7, 3: 7}, [1]),
        ({0: 7, 1: 7, 2: 8, 3: 8}, []),
        ({0: 7, 1: 8}, []),
        ({rank: 7 if rank < 6 else 8 for rank in range(8)}, [6, 7]),
    ],
)
def test_who_waits_elsewhere_than_most_of_a_ring_is_the_odd_one(
    places: dict[int, int], few: list[int]
) -> None:
    """Method: the operations in which the ranks of a ring wait; of halves nobody is odd."""
    heads: dict[int, list[int]] = {}
    for rank, seq in places.items():
        heads.setdefault(seq, []).append(rank)
    assert few_of(places, [heads]) == few


@pytest.mark.parametrize(
    ("others", "few"),
    [({0: 7, 1: 7}, [3]), ({0: 8, 1: 8}, [2]), ({0: 7, 1: 8}, []), ({0: 9, 1: 9}, []), ({}, [])],
)
def test_the_others_tell_which_of_two_that_wait_for_each_other_is_odd(
    others: dict[int, int], few: list[int]
) -> None:
    """Method: ranks 2 and 3 are the ring; where most of the others wait, one of them belongs."""
    heads: dict[int, list[int]] = {}
    for rank, seq in {**others, 2: 7, 3: 8}.items():
        heads.setdefault(seq, []).append(rank)
    assert few_of([2, 3], [heads]) == few
