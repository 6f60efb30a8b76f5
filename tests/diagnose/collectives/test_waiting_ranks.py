"""Where ranks stand by dumps of a backend whose calls wait."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from outlast.diagnose.collectives import Blame, find_blame, read_dump
from outlast.diagnose.collectives.blame import WaitingRanks
from tests.diagnose.collectives.simulator import Job, Layout

SHAPES = [(2, 1, 2), (2, 1, 4), (4, 1, 2), (3, 1, 3)]


def tops(job: Job) -> list[dict[str, Any]]:
    return [
        top | {"entries": list(top["entries"])}
        for top in (job.dump(rank, backend="gloo") for rank in range(job.layout.size))
    ]


def blame_of(made: list[dict[str, Any]]) -> Blame:
    return find_blame(
        [read_dump(json.dumps(top).encode(), name=f"dump_{rank}") for rank, top in enumerate(made)]
    )


@st.composite
def hanging(draw: Any) -> tuple[Job, int]:
    layout = Layout(*draw(st.sampled_from(SHAPES)))
    rank = draw(st.integers(0, layout.size - 1))
    length = len(layout.program(rank, 1))
    job = Job(layout, steps=6, sleeps={rank: draw(st.integers(4 * length, 6 * length - 1))})
    assume(job.hangs)
    return job, rank


@settings(max_examples=60)
@given(hanging())
def test_all_but_the_sleeper_wait_or_have_finished(
    made: tuple[Job, int],
) -> None:
    """The sleeper itself has finished every collective that it called."""
    job, rank = made
    waiting_ranks = blame_of(tops(job)).waiting_ranks
    assert waiting_ranks.waits == {
        other for other, one in enumerate(job.ranks) if one.seen < one.enqueued
    }
    assert rank in waiting_ranks.through
    assert not waiting_ranks.through & waiting_ranks.waits
    assert (waiting_ranks.older, waiting_ranks.joined) == (set(), set())
    assert waiting_ranks.awaited


@settings(max_examples=60)
@given(hanging())
def test_who_was_thrown_out_of_its_wait_had_waited(made: tuple[Job, int]) -> None:
    """Method: all is retired, as gloo retires what failed."""
    job, rank = made
    all_tops = tops(job)
    waited = blame_of(all_tops).waiting_ranks.waits
    for top in all_tops:
        for entry in top["entries"]:
            entry["retired"] = True
    waiting_ranks = blame_of(all_tops).waiting_ranks
    assert waiting_ranks.waits == waited
    assert rank not in waiting_ranks.waits


def test_an_older_dump_says_only_that_it_is_older() -> None:
    """Where its rank waited when the others were dumped is not known."""
    layout = Layout(2, 1, 2)
    job = Job(layout, steps=6, sleeps={2: 5 * len(layout.program(2, 1)) + 2})
    all_tops = tops(job)
    mine = all_tops[2]["entries"]
    del mine[len(mine) - 2 :]
    mine[-1]["retired"] = False
    waiting_ranks = blame_of(all_tops).waiting_ranks
    assert (2 in waiting_ranks.older, 2 in waiting_ranks.waits, 2 in waiting_ranks.through) == (
        True,
        False,
        False,
    )


def test_those_to_whose_collective_all_have_come_are_joined() -> None:
    job = Job(Layout(2, 1, 2), sleeps=dict.fromkeys(range(4), 5))
    for one in job.ranks:
        one.enqueued += 1
    assert blame_of(tops(job)).waiting_ranks.joined == {0, 1, 2, 3}


def test_a_backend_that_queues_calls_says_nothing_of_where_ranks_are() -> None:
    """A queued call says what a rank has asked for, not where its main thread is."""
    job = Job(Layout(2, 1, 2), steps=3, sleeps={2: 9})
    waiting_ranks = find_blame(
        [read_dump(job.raw(rank), name=f"dump_{rank}") for rank in range(4)]
    ).waiting_ranks
    assert waiting_ranks == WaitingRanks(awaited=waiting_ranks.awaited)
