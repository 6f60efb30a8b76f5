"""A rank's own failure, table row, stack or time-out outweighs who was behind in the graph."""

from __future__ import annotations

import json

import pytest

from outlast.diagnose.collectives import Blame
from outlast.diagnose.collectives.blame import WaitingRanks
from outlast.diagnose.findings import Finding
from outlast.diagnose.fuse import decide
from outlast.diagnose.logs import read_lines
from outlast.diagnose.standing import read_standing
from outlast.model.terms import FailureClass, Mechanism
from outlast.model.verdict import Blamed, Evidence, Role, Suspect, Verdict

ALL = frozenset(range(4))
BEHIND = Blame(
    "missing", "Rank 3 has not come to all_reduce 7.", ranks=(Blamed(3, 0.9),), dumped=ALL
)
LOST = (
    "[rank{r}]: RuntimeError: [../gloo/transport/tcp/pair.cc:553] Connection closed by peer"
    " [127.0.0.1]:5.\n"
)
LATE = (
    "[rank{r}]: RuntimeError: [../gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 1500ms"
    " for recv operation to complete\n"
)
RAISED = (
    '[rank{r}]: Traceback (most recent call last):\n[rank{r}]:   File "/srv/train.py", line 3, in'
    " <module>\n[rank{r}]: KeyError: 7\n"
)
ENTRY = (
    "[{r}]:\n  time      : 2026-01-02_03:04:06\n  host      : n1\n  rank      : {r} (local_rank:"
    " {r})\n  exitcode  : {code} (pid: 1{r})\n  traceback : x\n"
)
WAITS = "{what} (torch/distributed/distributed_c10d.py:3252)"


def table(**codes: int) -> str:
    return "Failures:\n" + "".join(
        ENTRY.format(r=rank[1:], code=code) for rank, code in codes.items()
    )


def stack(rank: int, frame: str, *outer: str) -> str:
    lines = "\n".join(
        f"    {one}" for one in (frame, *outer, "train (train.py:90)", "<module> (train.py:99)")
    )
    return (
        f"Process {rank + 10}: python train.py --local_rank={rank}\n\nThread {rank + 10} (idle):"
        f' "MainThread"\n{lines}\n'
    )


def verdict(blame: Blame | None, *more: Finding, **logs: str) -> Verdict:
    found: list[Finding] = [
        one
        for name, text in logs.items()
        for one in read_lines(text.encode().splitlines(keepends=True), name=name)
    ]
    return decide([*found, *more], blame=blame)


def who(said: Verdict) -> tuple[list[int], list[int]]:
    return [one.rank for one in said.ranks], [one.rank for one in said.suspects]


@pytest.mark.parametrize(
    ("logs", "mechanism"),
    [
        ({"log": table(r1=-9, r0=-15, r2=-15, r3=-15)}, Mechanism.SIGNAL),
        ({"log": RAISED.format(r=1) + LOST.format(r=3)}, Mechanism.EXCEPTION),
    ],
    ids=["killed", "raised"],
)
def test_a_rank_that_failed_by_itself_outweighs_one_that_is_behind(
    logs: dict[str, str], mechanism: Mechanism
) -> None:
    """Its own failure says more than the graph, which shows another rank behind."""
    said = verdict(BEHIND, **logs)
    assert (who(said), said.mechanism) == (([1], []), mechanism)
    assert "all_reduce 7" not in said.reason, "the graph's sentence is about another rank"


def test_two_that_were_killed_are_both_guilty() -> None:
    assert who(verdict(BEHIND, log=table(r1=-9, r2=-9, r0=-15, r3=-15)))[0] == [1, 2]


def test_a_kill_by_the_launcher_after_sigterm_is_a_hang_and_no_failure() -> None:
    """The launcher sends SIGKILL to a process that ignored its SIGTERM because it hung."""
    forced = (
        "Unable to shutdown process 12 via Signals.SIGTERM, forcefully exiting via"
        " Signals.SIGKILL\n"
    )
    said = verdict(BEHIND, log=forced + table(r0=1, r1=-15, r2=-9, r3=-15) + LATE.format(r=0))
    assert (who(said)[0], said.mechanism) == ([2], Mechanism.HANG)


def test_a_mismatch_goes_before_the_signals_that_followed_it() -> None:
    blame = Blame(
        "mismatch", "Rank 0 called a wider all_reduce.", ranks=(Blamed(0, 0.85),), dumped=ALL
    )
    assert who(verdict(blame, log=table(r1=-11, r0=-15, r2=-15, r3=-15)))[0] == [0]


def test_who_left_without_a_failure_is_in_no_table() -> None:
    logs = {f"attempt_0/{rank}/stdout.log": f"step 9\nof rank {rank}\n" for rank in range(4)}
    said = verdict(
        BEHIND, **logs, log=table(r0=1, r1=-15, r3=1) + LOST.format(r=0) + LOST.format(r=3)
    )
    assert (who(said)[0], said.mechanism) == ([2], Mechanism.EXIT)


def test_who_waits_by_its_stack_is_a_victim_whatever_the_graph_says() -> None:
    stacks = {
        f"s{rank}": stack(rank, WAITS.format(what="recv" if rank == 3 else "all_reduce"))
        for rank in (1, 2, 3)
    }
    assert who(verdict(BEHIND, **stacks, s0=stack(0, "retry (data.py:3)")))[0] == [0]


def test_the_only_silent_rank_is_guilty_with_a_dump_else_suspected() -> None:
    stacks = {f"s{rank}": stack(rank, WAITS.format(what="recv")) for rank in (1, 2, 3)}
    assert who(verdict(BEHIND, **stacks)) == ([0], [])
    logs = {"attempt_0/0/stdout.log": "step 9\n"}
    without = Blame("missing", "x", ranks=(Blamed(3, 0.9),), dumped=frozenset({1, 2, 3}))
    assert who(verdict(without, **stacks, **logs)) == ([], [0])


def test_if_all_wait_waiting_clears_no_suspect() -> None:
    blame = Blame("missing", "x", suspects=(Suspect(2, "no dump"),), dumped=frozenset({0, 1, 3}))
    assert who(verdict(blame, log="".join(LATE.format(r=rank) for rank in range(4))))[1] == [2]


def test_waiting_in_a_barrier_that_nobody_else_reaches_clears_nobody() -> None:
    """Rank 2 left no dump and stands in the barrier at the end of its data; the others wait for it
    in a step.
    """
    blame = Blame(
        "missing",
        "x",
        suspects=(Suspect(2, "no dump"),),
        dumped=frozenset({0, 1, 3}),
        waiting_ranks=WaitingRanks(awaited=frozenset({"all_reduce"})),
    )
    stacks = {f"s{rank}": stack(rank, WAITS.format(what="all_reduce")) for rank in (0, 1)}
    assert who(
        verdict(
            blame,
            **stacks,
            s2=stack(2, WAITS.format(what="barrier")),
            s3=stack(3, "retry (data.py:3)"),
        )
    )[1] == [2]
    assert (
        who(
            verdict(
                blame,
                **stacks,
                s2=stack(2, WAITS.format(what="all_reduce")),
                s3=stack(3, "retry (data.py:3)"),
            )
        )[1]
        == []
    )


def test_an_older_dump_of_a_rank_closed_by_its_launcher_names_nobody() -> None:
    """Method: rank 3 timed out, which closed ranks 0 and 1 before their recorders had saved what
    they waited in; rank 2 has not come.
    """
    two = Blame(
        "self_stuck",
        "x",
        ranks=(Blamed(0, 0.6), Blamed(2, 0.6)),
        dumped=ALL,
        waiting_ranks=WaitingRanks(older=frozenset({0})),
    )
    log = table(r0=-15, r1=-15, r3=1) + LATE.format(r=3)
    assert who(verdict(two, log=log))[0] == [2]
    alone = Blame(
        "self_stuck",
        "x",
        ranks=(Blamed(0, 0.6),),
        dumped=ALL,
        waiting_ranks=WaitingRanks(older=frozenset({0})),
    )
    assert who(verdict(alone, log=log))[0] == [0], "somebody is"
    assert who(verdict(two, log=log, s0=stack(0, "pack (data.py:3)")))[0] == [
        0,
        2,
    ], "its stack shows that it did not wait"


def test_of_ranks_in_a_complete_collective_the_one_without_stack_hangs() -> None:
    """Method: ranks 0 and 1 have both come to theirs, where rank 1 waits; rank 3 has not come to
    that of rank 2.
    """
    joined = WaitingRanks(waits=frozenset({0, 1, 2}), joined=frozenset({0, 1}))
    blame = Blame("missing", "x", ranks=(Blamed(3, 0.9),), dumped=ALL, waiting_ranks=joined)
    stacks = {f"s{rank}": stack(rank, WAITS.format(what="all_reduce")) for rank in (1, 2)}
    assert who(verdict(blame, **stacks, s3=stack(3, "retry (data.py:3)")))[0] == [0, 3]
    assert who(
        verdict(
            blame,
            **stacks,
            s3=stack(3, "retry (data.py:3)"),
            s0=stack(0, WAITS.format(what="all_reduce")),
        )
    )[0] == [3]


def test_a_stack_that_does_not_wait_refutes_a_ring() -> None:
    ring = Blame(
        "order_inversion",
        "Ranks 0 and 1 wait for each other.",
        ranks=(Blamed(0, 0.7), Blamed(1, 0.7)),
        dumped=ALL,
        findings=(
            Finding(
                Evidence("dump_0", None, "x", Role.ROOT),
                "graph.order_inversion",
                FailureClass.SOFTWARE_BUG,
                Mechanism.HANG,
                rank=0,
            ),
        ),
    )
    stacks = {f"s{rank}": stack(rank, WAITS.format(what="all_reduce")) for rank in (0, 2, 3)}
    said = verdict(ring, **stacks, s1=stack(1, "pack (data.py:3)"))
    assert (who(said)[0], said.failure_class) == ([1], FailureClass.USER_CODE)
    assert (
        verdict(ring, **stacks, s1=stack(1, WAITS.format(what="barrier"))).failure_class
        is FailureClass.SOFTWARE_BUG
    )


def test_a_rank_that_is_behind_explains_stacks_in_different_places() -> None:
    """Those who wait for one rank through several groups stand in several places: no fault of the
    program.
    """
    stacks = {
        f"s{rank}": stack(rank, WAITS.format(what="all_reduce"), f"{where} (train.py:7)")
        for rank, where in enumerate(("norms", "update", "update"))
    }
    assert verdict(BEHIND, **stacks).failure_class is FailureClass.UNKNOWN


def test_a_verdict_of_the_graph_says_what_would_refute_it() -> None:
    """It asks for no dumps: they are what it was drawn from."""
    said = verdict(BEHIND)
    assert said.refuted_by
    assert "flight recorder" not in said.next_test
    assert "rank 3" in said.next_test


def test_the_reason_does_not_say_a_mismatch_twice() -> None:
    text = "rank 0 called all_reduce Float 6"
    found = Finding(
        Evidence("dump_0", None, text, Role.ROOT),
        "graph.mismatch",
        FailureClass.SOFTWARE_BUG,
        Mechanism.HANG,
        rank=0,
    )
    said = decide(
        [],
        blame=Blame(
            "mismatch",
            f"{text.capitalize()}.",
            ranks=(Blamed(0, 0.85),),
            findings=(found,),
            dumped=ALL,
        ),
    )
    assert said.reason.lower().count(text.lower()) == 1


# --- live runs ------------------------------------------------------------------------------------


def interruption_record(**about: object) -> list[Finding]:
    told = {
        "id": 3,
        "mechanism": "hang",
        "class": "unknown",
        "reason": "no beacon for 5.0 s in body",
        "nodes": ["n1"],
        "ranks": [1],
        **about,
    }
    return list(
        read_standing(
            json.dumps(
                {"outlast": "standing", "schema": 1, "interruption": told, "processes": []}
            ).encode(),
            name="standing.json",
        ).findings
    )


def test_whom_the_run_gave_up_for_a_hang_hung_and_where_it_stands_is_said() -> None:
    own = "_await (/usr/lib/python3.11/site-packages/outlast/runtime/worker/steps/vote.py:7)"
    said = verdict(
        None, *interruption_record(), s0=stack(0, own), s1=stack(1, "tokenize (data.py:3)")
    )
    assert (who(said)[0], said.mechanism) == ([1], Mechanism.HANG)
    assert "Rank 1 hung" in said.reason
    assert "tokenize (data.py:3)" in said.reason
    assert "ended by itself" not in said.reason


def test_a_hang_booked_to_the_program_by_default_names_no_class() -> None:
    """The run books a hang without a known reason to the program. That is no evidence."""
    assert (
        verdict(None, *interruption_record(**{"class": "user_code"})).failure_class
        is FailureClass.UNKNOWN
    )
    assert (
        verdict(
            None, *interruption_record(**{"class": "user_code", "mechanism": "exception"})
        ).failure_class
        is FailureClass.USER_CODE
    )


def test_a_rank_that_alone_makes_a_group_is_what_the_others_wait_for() -> None:
    """Rank 3 called new_group, in which it waits for all. Another rank there would clear it."""
    waits = {
        f"s{rank}": stack(rank, WAITS.format(what="all_reduce" if rank else "all_gather"))
        for rank in range(3)
    }
    makes = WAITS.format(what="_new_process_group_helper")
    for blame in (BEHIND, None):
        assert who(verdict(blame, **waits, s3=stack(3, makes)))[0] == [3]
        waits_too = {**waits, "s2": stack(2, makes)}
        assert who(verdict(blame, **waits_too, s3=stack(3, makes)))[0] == []
