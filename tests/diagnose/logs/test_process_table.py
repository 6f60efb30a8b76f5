"""The table of processes that `--collect` writes: a stopped process is named, and its stack is no
reason.
"""

from __future__ import annotations

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
