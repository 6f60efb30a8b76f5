"""Ranks of which nothing tells but what their peers report: those that are gone, hang, or wait
elsewhere.
"""

from __future__ import annotations

import pytest

from outlast.diagnose.findings import Finding
from outlast.diagnose.fuse import decide
from outlast.diagnose.logs import read_lines
from outlast.diagnose.pipeline import Material, conclude
from outlast.model.terms import FailureClass, Mechanism
from outlast.model.verdict import Verdict
from tests.diagnose.fuse.test_accounts import BEHIND, LATE, LOST, WAITS, stack, table, who
from tests.diagnose.fuse.test_accounts import verdict as decided

STEPS = "step 10 loss 2.1\nstep 20 loss 2.0\n"
TIMED_OUT = LATE.partition(": ")[2]
BROKEN = LOST.partition(": ")[2]


def raised(rank: int, line: int, said: str = TIMED_OUT) -> str:
    """Return the traceback of a rank that stood at a line of the script."""
    label = f"[rank{rank}]: "
    return STEPS + label.join(
        [
            "",
            "Traceback (most recent call last):\n",
            f'  File "/srv/train.py", line {line}, in step\n',
            "    dist.barrier()\n",
            '  File "/usr/site-packages/torch/distributed/distributed_c10d.py", line 5356, in x\n',
            f"RuntimeError: {said.partition(': ')[2]}",
        ]
    )


def verdict(texts: list[str]) -> Verdict:
    """Return the verdict of one log for each rank."""
    found: list[Finding] = [
        one
        for rank, text in enumerate(texts)
        for one in read_lines(text.encode().splitlines(), name=f"logs/rank_{rank}.log")
    ]
    return decide(found, blame=None)


# --- one rank reports nothing ---------------------------------------------------------------------


@pytest.mark.parametrize("ranks", [2, 4])
def test_the_one_without_a_word_is_gone_where_all_others_lost_a_peer(ranks: int) -> None:
    texts = [STEPS if rank == 1 else raised(rank, 7, BROKEN) for rank in range(ranks)]
    said = verdict(texts)
    assert (who(said), said.mechanism) == (([1], []), Mechanism.LOST_CONTACT)
    assert said.failure_class is FailureClass.UNKNOWN
    assert "rank 1 reports nothing: it went first" in said.reason
    assert "dmesg" in said.next_test


def test_the_one_without_a_word_hung_where_all_others_timed_out() -> None:
    said = verdict([raised(0, 7), raised(1, 7), STEPS])
    assert (who(said), said.mechanism) == (([2], []), Mechanism.HANG)


def test_of_two_without_a_word_neither_is_named() -> None:
    said = verdict([raised(0, 7, BROKEN), STEPS, STEPS])
    assert who(said) == ([], [])


def test_a_rank_that_the_launcher_closed_had_no_time_to_say_anything() -> None:
    """It may have been closed because a peer had lost another one; after a time-out it hung."""
    codes = table(r0=1, r1=-15, r2=1)
    lost = decided(None, log=LOST.format(r=0) + LOST.format(r=2) + codes)
    assert who(lost)[0] == []
    late = decided(None, log=LATE.format(r=0) + LATE.format(r=2) + codes)
    assert (who(late)[0], late.mechanism) == ([1], Mechanism.HANG)


def test_the_only_rank_without_a_stack_hung_where_all_others_wait() -> None:
    """No tool gets a stack of a process that is stopped, or that a disk holds up."""
    waits = {f"s{rank}": stack(rank, WAITS.format(what="all_reduce")) for rank in (0, 1, 3)}
    said = decided(None, **waits, **{"logs/rank_2.log": STEPS})
    assert (who(said)[0], said.mechanism) == ([2], Mechanism.HANG)
    works = stack(3, "tokenize (data.py:3)")
    said = decided(None, **{**waits, "s3": works}, **{"logs/rank_2.log": STEPS})
    assert who(said)[0] == [3]


# --- one rank waits elsewhere ---------------------------------------------------------------------


@pytest.mark.parametrize("function", ["_new_process_group_helper", "monitored_barrier"])
def test_who_waits_alone_where_all_have_to_come_took_another_path(function: str) -> None:
    """No dump records it. Two ranks there would wait for the others."""
    waits = {f"s{rank}": stack(rank, WAITS.format(what="all_reduce")) for rank in range(3)}
    there = WAITS.format(what=function)
    for blame in (BEHIND, None):
        said = decided(blame, **waits, s3=stack(3, there))
        assert (who(said)[0], said.failure_class) == ([3], FailureClass.SOFTWARE_BUG)
        assert "different paths" in said.reason
    said = decided(BEHIND, **{**waits, "s2": stack(2, there)}, s3=stack(3, there))
    assert said.failure_class is FailureClass.UNKNOWN


def test_who_timed_out_at_another_line_took_another_path() -> None:
    said = verdict([raised(0, 7), raised(1, 9), raised(2, 7, BROKEN)])
    assert (who(said)[0], said.failure_class) == ([1], FailureClass.SOFTWARE_BUG)
    assert "step (srv/train.py:9)" in said.reason


def test_of_two_that_timed_out_at_two_lines_neither_is_named() -> None:
    said = verdict([raised(0, 7), raised(1, 9)])
    assert (who(said)[0], said.failure_class) == ([], FailureClass.SOFTWARE_BUG)


@pytest.mark.parametrize(
    ("texts", "ranks"),
    [
        ([raised(0, 7), raised(1, 7), raised(2, 7)], []),
        ([raised(0, 7, BROKEN), raised(1, 9, BROKEN), raised(2, 7, BROKEN)], []),
        ([raised(0, 7), raised(1, 9), raised(2, 7), STEPS], [3]),
        ([raised(0, 7), raised(1, 7), raised(2, 9), raised(3, 9)], []),
    ],
    ids=["one line", "a connection broke", "another rank says nothing", "two and two"],
)
def test_other_time_outs_show_no_path(texts: list[str], ranks: list[int]) -> None:
    said = verdict(texts)
    assert (who(said)[0], said.failure_class) == (ranks, FailureClass.UNKNOWN)


# --- what srun says -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("end", "failure_class", "mechanism"),
    [
        ("Segmentation fault (core dumped)", FailureClass.SOFTWARE_BUG, Mechanism.SIGNAL),
        ("Killed", FailureClass.UNKNOWN, Mechanism.SIGNAL),
        ("Exited with exit code 7", FailureClass.UNKNOWN, Mechanism.EXIT),
    ],
)
def test_srun_says_how_the_task_ended_that_wrote_nothing(
    end: str, failure_class: FailureClass, mechanism: Mechanism
) -> None:
    """Labels of srun are ranks where the lines behind them say so."""
    lines = [
        *(f"{rank}: {line}" for rank in (0, 2) for line in raised(rank, 7, BROKEN).splitlines()),
        f"srun: error: gpu-017: task 1: {end}",
        "srun: error: gpu-017: tasks 0,2: Exited with exit code 1",
    ]
    found = list(read_lines([line.encode() for line in lines], name="slurm-4711.out"))
    said = conclude(Material(found)).verdict
    assert (who(said)[0], said.failure_class, said.mechanism) == ([1], failure_class, mechanism)


def test_a_number_of_srun_is_no_rank_where_lines_tell_of_other_ranks() -> None:
    lines = [
        *(f"{rank // 2}: {line}" for rank in (0, 3) for line in raised(rank, 7).splitlines()),
        "srun: error: gpu-017: task 1: Killed",
    ]
    found = list(read_lines([line.encode() for line in lines], name="slurm-4711.out"))
    assert who(conclude(Material(found)).verdict)[0] == []


def test_a_rank_whose_loss_is_no_number_is_named() -> None:
    text = (
        '[rank1]: Traceback (most recent call last):\n[rank1]:   File "/srv/train.py", line 3, in'
        " step\n[rank1]: FloatingPointError: loss is nan at step 20\n"
    )
    said = verdict([raised(0, 7, BROKEN), text, raised(2, 7, BROKEN)])
    assert (who(said)[0], said.mechanism) == ([1], Mechanism.CORRUPT)


def test_stacks_that_were_asked_for_are_no_fatal_error() -> None:
    """Faulthandler writes "Current thread" also when a signal asks it for a stack."""
    frame = '  File "/srv/train.py", line 9 in tokenize\n'
    asked = f"Current thread 0x00007f{{}} (most recent call first):\n{frame}"
    said = verdict([asked.format("01"), asked.format("02")])
    assert said.mechanism is not Mechanism.SIGNAL
