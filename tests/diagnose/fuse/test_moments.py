"""Stacks that are of another moment than the dump of their rank are not asked how it stood."""

from __future__ import annotations

import pytest

from outlast.diagnose.collectives import Blame
from outlast.diagnose.collectives.blame import WaitingRanks
from outlast.diagnose.findings import Finding
from outlast.diagnose.fuse import decide
from outlast.diagnose.fuse.moments import without_older_stacks
from outlast.diagnose.logs import read_lines
from outlast.diagnose.stacks.reader import Stack
from outlast.model.terms import FailureClass
from outlast.model.verdict import Blamed

ALL = frozenset(range(4))
IN = {
    "all_reduce": "torch/distributed/distributed_c10d.py",
    "all_gather_into_tensor": "torch/distributed/distributed_c10d.py",
    "recv": "torch/distributed.py",
}


def stack(rank: int, *whats: str) -> list[Finding]:
    """Stacks of one rank's file, the newest last."""
    frames = [
        f"    {what} ({IN.get(what, 'train.py')}:7)\n    train (train.py:90)\n    <module>"
        " (train.py:99)\n"
        for what in whats
    ]
    text = "".join(
        f"Process {rank + 10}: python train.py --local_rank={rank}\n\nThread {rank + 10} (idle):"
        f' "MainThread"\n{one}\n'
        for one in frames
    )
    return [
        one
        for one in read_lines(text.encode().splitlines(keepends=True), name=f"stack_{rank}")
        if isinstance(one, Stack)
    ]


def blame(**waiting_ranks: object) -> Blame:
    return Blame(
        "missing",
        "Rank 3 has not come to all_reduce 7.",
        ranks=(Blamed(3, 0.9),),
        dumped=ALL,
        waiting_ranks=WaitingRanks(**waiting_ranks),
    )  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("waiting_ranks", "what", "is_kept"),
    [
        ({"waits": {1}}, "tokenize", False),
        ({"waits": {1}}, "torch_load", False),
        ({"waits": {1}}, "all_reduce", True),
        ({"waits": {2}}, "tokenize", True),
        ({"through": {1}}, "all_reduce", False),
        ({"through": {1}}, "all_gather_into_tensor", False),
        ({"through": {1}}, "recv", True),
        ({"through": {1}}, "tokenize", True),
        ({}, "all_reduce", True),
    ],
)
def test_a_stack_that_its_ranks_dump_contradicts_is_left_out_and_no_other(
    waiting_ranks: dict[str, set[int]], what: str, is_kept: bool
) -> None:
    found = stack(1, what)
    assert len(found) == 1
    assert without_older_stacks(found, blame(**waiting_ranks)) == (found if is_kept else [])


def test_the_newest_stack_of_a_thread_decides_for_all_of_them() -> None:
    assert len(without_older_stacks(stack(1, "tokenize", "all_reduce"), blame(waits={1}))) == 2
    assert without_older_stacks(stack(1, "all_reduce", "tokenize"), blame(waits={1})) == []


def test_without_dumps_every_stack_counts() -> None:
    found = stack(1, "tokenize")
    assert without_older_stacks(found, None) == found


def test_a_slow_step_before_the_hang_names_nobody() -> None:
    """Rank 0 waits by its dump and its stack, written in an earlier step, stands in its own work;
    rank 3 has not come.
    """
    found = [*stack(0, "tokenize"), *stack(1, "all_reduce"), *stack(2, "all_reduce")]
    said = decide(found, blame=blame(waits=frozenset({0, 1, 2}), through=frozenset({3})))
    assert [one.rank for one in said.ranks] == [3]


def test_a_wait_that_ended_before_the_hang_clears_nobody() -> None:
    """The stack of rank 3, which has not come, is of an all-reduce that it has finished since."""
    found = [one for rank in range(4) for one in stack(rank, "all_reduce")]
    said = decide(found, blame=blame(waits=frozenset({0, 1, 2}), through=frozenset({3})))
    assert [one.rank for one in said.ranks] == [3]
    assert [one.rank for one in decide(found, blame=blame()).ranks] == []


def looked_at(rank: int, *stacks: str) -> str:
    """A file of several stacks of one process, as `--collect` writes them."""
    return "".join(
        f'Process {rank + 9}: python train.py\nThread {rank + 9} (idle): "MainThread"\n'
        f"    {frame}\n    main (train.py:9)\n\n"
        for frame in stacks
    )


WAITS, WORKS = "all_reduce (torch/distributed/distributed_c10d.py:1)", "forward_pass (train.py:4)"


@pytest.mark.parametrize(
    ("stacks", "named"),
    [
        ([(WAITS, WORKS), (WORKS, WAITS), (WAITS, WORKS), (WORKS, WORKS)], False),
        ([(WAITS, WORKS), (WAITS, WORKS), (WAITS, WORKS), (WORKS, WAITS)], False),
        ([(WAITS, WAITS), (WAITS, WAITS), (WAITS, WAITS), (WORKS, WORKS)], True),
        ([(WAITS,), (WAITS,), (WAITS,), (WORKS,)], True),
        # a loop: the same function, another line
        ([(WAITS, WAITS), (WAITS, WAITS), (WAITS, WAITS), (WORKS, WORKS + " ")], True),
    ],
    ids=["all move", "all move to work", "one works", "one look", "a loop"],
)
def test_a_job_whose_ranks_move_between_two_stacks_is_not_hung(
    stacks: list[tuple[str, ...]], named: bool
) -> None:
    findings = [
        one
        for rank, some in enumerate(stacks)
        for one in read_lines(
            looked_at(rank, *some).encode().splitlines(), name=f"stack_rank_{rank}.txt"
        )
    ]
    got = decide(findings, blame=None)
    assert [one.rank for one in got.ranks] == ([3] if named else [])
    assert (got.failure_class is FailureClass.UNKNOWN) is not named


def test_ranks_that_all_work_show_no_hang_of_the_program() -> None:
    """One that works while the others wait does. A job that trains shows only the former."""
    ranks = range(4)
    works = [one for rank in ranks for one in stack(rank, "tokenize", "tokenize")]
    said = decide(works, blame=None)
    assert said.failure_class is FailureClass.UNKNOWN
    assert "the job runs, or all of them hang" in said.reason
    waits = [one for rank in ranks[:3] for one in stack(rank, "all_reduce", "all_reduce")]
    said = decide([*waits, *stack(3, "tokenize", "tokenize")], blame=None)
    assert said.failure_class is FailureClass.USER_CODE
