"""The table of processes that `--collect` writes: a stopped process is named, and its stack is no
reason; without stacks the one rank that stands apart in the kernel is named.
"""

from __future__ import annotations

import pytest

from outlast.diagnose.fuse import decide
from outlast.diagnose.logs import read_lines
from outlast.model.terms import FailureClass

HEAD = " RANK     PID STAT WCHAN                    COMMAND\n"
ROWS = (
    "    0     100 S    poll_schedule_timeout    python train.py\n"
    "    1     101 {state}    {channel:24} python train.py\n"
    "\n"
    "    2     102 T    do_signal_stop           not a row any more\n"
)
STACKS = (
    "# the first look\nProcess 101: python train.py\n"
    'Thread 101 (idle): "MainThread"\n    fetch (train.py:4)\n    main (train.py:9)\n'
)


def rules(state: str, channel: str) -> list[tuple[str, int | None]]:
    text = HEAD + ROWS.format(state=state, channel=channel)
    found = read_lines((line.encode() for line in text.splitlines()), name="processes.txt")
    return [(one.rule, one.rank) for one in found if one.rule.startswith("standing.")]


def test_stopped_and_uninterruptible_processes_are_found() -> None:
    assert rules("T", "do_signal_stop") == [("standing.stopped", 1)]
    assert rules("t", "ptrace_stop") == [("standing.stopped", 1)]
    assert rules("D", "nfs_wait_bit_killable") == [("standing.storage", 1)]
    assert rules("S", "futex_wait_queue") == []


def test_the_line_in_which_a_stopped_process_stands_is_not_why() -> None:
    text = HEAD + ROWS.format(state="T", channel="do_signal_stop")
    waits = (
        'Process 100: python train.py\nThread 100 (idle): "MainThread"\n'
        "    all_reduce (torch/distributed/distributed_c10d.py:2501)\n    main (train.py:9)\n"
    )
    found = [
        *read_lines((line.encode() for line in STACKS.splitlines()), name="stack_rank_1.txt"),
        *read_lines((line.encode() for line in waits.splitlines()), name="stack_rank_0.txt"),
    ]
    without = decide(found, blame=None)
    found += read_lines((line.encode() for line in text.splitlines()), name="processes.txt")
    got = decide(found, blame=None)
    assert without.failure_class is FailureClass.USER_CODE
    assert (got.failure_class, [one.rank for one in got.ranks]) == (FailureClass.UNKNOWN, [1])


TABLE = " RANK     PID STAT WCHAN                    MOVED COMMAND\n"


def table(*rows: tuple[str, str, str]) -> str:
    """One row for each rank: state, channel, and whether it moved."""
    return TABLE + "".join(
        f"{rank:>5} {100 + rank:>7} {state:4} {channel:24} {moved:5} python train.py\n"
        for rank, (state, channel, moved) in enumerate(rows)
    )


WAITS = ("S", "futex_do_wait", "still")


def named(text: str, *more: str) -> list[int]:
    found = list(read_lines(text.encode().splitlines(), name="processes.txt"))
    for at, stack in enumerate(more):
        found += read_lines(stack.encode().splitlines(), name=f"stack_rank_{at}.txt")
    return [one.rank for one in decide(found, blame=None).ranks]


@pytest.mark.parametrize(
    ("odd", "ranks"),
    [
        (("S", "hrtimer_nanosleep", "still"), [2]),
        (("S", "anon_pipe_read", "still"), [2]),
        (("R", "-", "ran"), [2]),
        (("R", "-", "moved"), [2]),
        (("S", "hrtimer_nanosleep", "moved"), []),
        (WAITS, []),
    ],
    ids=["sleeps", "reads a pipe", "computes", "computes little", "moves", "waits like all"],
)
def test_without_stacks_the_rank_that_stands_apart_is_named(
    odd: tuple[str, str, str], ranks: list[int]
) -> None:
    """The process of its loader, which has the same rank, says nothing."""
    loader = "    2     902 S    poll_schedule_timeout    still python train.py\n"
    assert named(table(WAITS, WAITS, odd, WAITS) + loader) == ranks


def test_of_a_stopped_rank_it_is_said_that_it_is_stopped() -> None:
    """The kernel's channel, do_signal_stop, says it too, but not in plain words."""
    text = table(WAITS, ("T", "do_signal_stop", "still"), WAITS)
    got = decide(list(read_lines(text.encode().splitlines(), name="processes.txt")), blame=None)
    assert [one.rank for one in got.ranks] == [1]
    assert "is stopped" in got.reason
    assert got.ranks[0].confidence == 0.9
    assert got.action.startswith("kill -CONT 101,")
    assert "/proc/101/status" in got.next_test
    assert "stack" not in got.refuted_by


def test_in_a_job_that_moves_nobody_stands_apart() -> None:
    """Nor do two of four, nor one of two, nor one beside a rank of which nothing is known."""
    sleeps = ("S", "hrtimer_nanosleep", "still")
    assert named(table(("S", "futex_do_wait", "moved"), WAITS, sleeps, WAITS)) == []
    assert named(table(("S", "futex_do_wait", "?"), WAITS, sleeps, WAITS)) == []
    assert named(table(WAITS, sleeps, sleeps, WAITS)) == []
    assert named(table(WAITS, sleeps)) == []


def test_stacks_say_more_than_the_kernels_channels() -> None:
    """Method: rank 0 reads, by its stack; rank 2 only sleeps between two looks at a queue."""
    look = 'Process 10{rank}: python train.py\nThread 10{rank} (idle): "MainThread"\n    {frame}\n'
    frames = ["read (gzip.py:3)", *["all_reduce (torch/distributed/distributed_c10d.py:2)"] * 3]
    stacks = [look.format(rank=rank, frame=frame) for rank, frame in enumerate(frames)]
    odd = table(WAITS, WAITS, ("S", "hrtimer_nanosleep", "still"), WAITS)
    assert named(odd, *stacks) == [0]


def test_a_job_whose_ranks_all_moved_runs_on_whatever_one_stack_shows() -> None:
    """Method: rank 2 stands in its own code in two looks, and the others wait for it.

    A rank that only polls for its GPU may wait for ever.
    """
    look = 'Process 10{rank}: python train.py\nThread 10{rank} (idle): "MainThread"\n    {frame}\n'
    frames = ["all_reduce (torch/distributed/distributed_c10d.py:2)"] * 4
    frames[2] = "augment (train.py:40)"
    stacks = [look.format(rank=rank, frame=frame) * 2 for rank, frame in enumerate(frames)]
    moves = ("S", "hrtimer_nanosleep", "moved")
    for row, ranks in (
        (moves, []),
        (("S", "futex_do_wait", "still"), [2]),
        (("S", "poll_schedule_timeout", "polls"), [2]),
    ):
        assert named(table(row, moves, moves, ("R", "-", "ran")), *stacks) == ranks, row


GONE = ("X", "-", "ended")


def test_the_only_rank_that_has_not_ended_keeps_the_job_from_its_end() -> None:
    """Method: rank 1 waits for a thread after the training, whose end its log has.

    Ranks that have ended do not stand apart, and a rank that moves may still be on its way out.
    """
    look = 'Process 101: python train.py\nThread 101 (idle): "MainThread"\n    close (train.py:9)\n'
    text = table(GONE, WAITS, GONE)
    found = [
        *read_lines([b"training finished"], name="train.log"),
        *read_lines(text.encode().splitlines(), name="processes.txt"),
        *read_lines((look * 2).encode().splitlines(), name="stack_rank_1.txt"),
    ]
    got = decide(found, blame=None)
    assert (got.failure_class, [one.rank for one in got.ranks]) == (FailureClass.USER_CODE, [1])
    assert "has not ended" in got.reason
    assert named(table(GONE, ("S", "futex_do_wait", "moved"), GONE)) == []
    assert named(table(GONE, WAITS, WAITS)) == []


def test_a_verdict_says_that_processes_are_there_and_stand_still() -> None:
    """They were looked at twice. So the verdict does not ask whether they are there, and does not
    ask to collect the same once more.
    """
    log = [f"step {step} done".encode() for step in range(30)]
    text = table(WAITS, WAITS, WAITS, WAITS)
    found = list(read_lines(text.encode().splitlines(), name="processes.txt"))
    got = decide(found + list(read_lines(log, name="train.log")), blame=None)
    assert not got.ranks
    assert "None of the 4 ranks moved between the two looks." in got.reason
    assert "are there still" not in got.next_test
    assert "once more" in got.next_test
    assert "once more" in got.action


def test_for_a_rank_apart_the_advice_is_to_collect_stacks_as_well() -> None:
    text = table(WAITS, ("S", "hrtimer_nanosleep", "still"), WAITS)
    got = decide(list(read_lines(text.encode().splitlines(), name="processes.txt")), blame=None)
    assert [one.rank for one in got.ranks] == [1]
    assert "py-spy" in got.action
    assert "once more" in got.action
