"""Logs, stacks and dumps of one incident, read and weighed together: each tells what the others
cannot.
"""

from __future__ import annotations

import pytest

from outlast.diagnose.collectives import Blame
from outlast.diagnose.findings import Finding
from outlast.diagnose.fuse import decide
from outlast.diagnose.logs import read_lines
from outlast.model.terms import FailureClass, Mechanism
from outlast.model.verdict import Blamed, Suspect, Verdict
from tests.diagnose._torchrun import failed, failure_table

BLAMED = Blame("missing", "Rank 1 has not come to all_reduce 7.", ranks=(Blamed(1, 0.9),))
SUSPECTED = Blame(
    "missing", "Rank 1 left no evidence.", suspects=(Suspect(1, "no dump"), Suspect(2, "no dump"))
)


def table(exit_code: int, said: str) -> str:
    """Rank 1 failed so, and rank 0 was closed."""
    first = failed(rank=1, pid=11, exit_code=exit_code, said=said, second=5)
    other = failed(
        rank=0, pid=10, exit_code=-15, said="Signal 15 (SIGTERM) received by PID 10", second=6
    )
    return (
        f"torch.distributed.elastic.multiprocessing.errors.ChildFailedError:\n"
        f"{failure_table(first=first, other=other)}"
    )


KILLED = table(-9, "Signal 9 (SIGKILL) received by PID 11")
ABORTED = table(-6, "Signal 6 (SIGABRT) received by PID 11")
LEFT = table(1, "To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html")
RAISED = (
    '[rank1]: Traceback (most recent call last):\n[rank1]:   File "/srv/train.py", line 3, in'
    " <module>\n[rank1]: IndexError: list index out of range\n"
)
STACK = """Timeout (0:00:05)!
Thread 0x00007f1617fff6c0 (most recent call first):
  File "/srv/train.py", line 38 in keep
  File "/usr/lib/python3.11/threading.py", line 982 in run

Thread 0x00007f163cfc5b80 (most recent call first):
  File "{where}", line 46 in {what}
  File "/srv/train.py", line 80 in <module>
"""


def verdict(blame: Blame | None, **logs: str) -> Verdict:
    findings: list[Finding] = [
        one
        for name, text in logs.items()
        for one in read_lines(text.encode().splitlines(), name=name)
    ]
    return decide(findings, blame=blame)


@pytest.mark.parametrize(
    ("log", "mechanism"),
    [
        (KILLED, Mechanism.SIGNAL),
        (ABORTED, Mechanism.HANG),
        (RAISED, Mechanism.EXCEPTION),
        (RAISED + LEFT, Mechanism.EXCEPTION),
        ("", Mechanism.HANG),
    ],
    ids=["killed", "aborted by its watchdog", "raised", "raised and left", "nothing"],
)
def test_the_log_says_how_an_awaited_rank_ended_else_it_is_a_hang(
    log: str, mechanism: Mechanism
) -> None:
    got = verdict(BLAMED, log=log)
    assert (got.mechanism, [one.rank for one in got.ranks]) == (mechanism, [1])


def test_of_two_suspects_the_one_whose_end_was_seen_is_guilty() -> None:
    """The other one stays a suspect."""
    got = verdict(SUSPECTED, log=KILLED)
    assert ([one.rank for one in got.ranks], [one.rank for one in got.suspects]) == ([1], [2])


def test_a_rank_that_raised_by_itself_is_guilty() -> None:
    """Ranks without evidence stay suspects."""
    got = verdict(SUSPECTED, log=RAISED.replace("rank1", "rank5"))
    assert ([one.rank for one in got.ranks], [one.rank for one in got.suspects]) == ([5], [1, 2])


def test_a_thread_that_all_ranks_have_is_no_outlier() -> None:
    """Method: four ranks, each with the same recorder thread; three wait in a collective and one
    works.
    """
    logs = {
        f"stack_rank_{rank}.txt": STACK.format(
            where="/usr/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py",
            what="all_reduce",
        )
        for rank in range(4)
    }
    logs["stack_rank_2.txt"] = STACK.format(where="/srv/train.py", what="load")
    got = verdict(None, **logs)
    assert [one.rank for one in got.ranks] == [2]
    assert "load" in got.evidence[0].text


C10D = "/usr/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py"


def stacks(busy: dict[int, str], *, ranks: int = 8, others: str = "all_reduce") -> dict[str, str]:
    where = {rank: ("/srv/train.py", what) for rank, what in busy.items()}
    found = {rank: where.get(rank, (C10D, others)) for rank in range(ranks)}
    main = STACK.partition("\n\n")[2]
    return {
        f"stack_rank_{rank}.txt": main.format(where=file, what=what)
        for rank, (file, what) in found.items()
    }


@pytest.mark.parametrize(
    ("edges", "others", "guilty"),
    [
        (((1, 4, "x"), (2, 4, "x")), "all_reduce", [4]),
        (((1, 4, "x"), (2, 4, "x"), (3, 0, "x")), "all_reduce", [0, 4]),
        (((1, 4, "x"), (2, 4, "x")), "recv", [0, 4]),
    ],
    ids=[
        "nobody waits for the other",
        "somebody waits for both",
        "sends and receives that are not recorded",
    ],
)
def test_a_busy_rank_that_nobody_waits_for_is_on_its_way(
    edges: tuple[tuple[int, int, str], ...], others: str, guilty: list[int]
) -> None:
    """Found in incidents made on a machine with far too much to do: rank 0 was still writing down
    its last step while all others waited for rank 4.
    """
    blame = Blame(
        "missing",
        "Rank 4 has not come.",
        ranks=(Blamed(4, 0.9),),
        edges=edges,
        dumped=frozenset(range(8)),
    )
    got = verdict(blame, **stacks({0: "load", 4: "pack"}, others=others))
    assert [one.rank for one in got.ranks] == guilty


def test_of_two_that_dumps_cannot_tell_apart_the_busy_one_is_guilty() -> None:
    blame = Blame(
        "missing",
        "One of them.",
        ranks=(Blamed(1, 0.5), Blamed(2, 0.5)),
        either=True,
        dumped=frozenset(range(4)),
    )
    logs = stacks({1: "load"}, ranks=4)
    del logs["stack_rank_2.txt"]
    assert [one.rank for one in verdict(blame, **logs).ranks] == [1]


def test_a_rank_that_may_wait_unseen_is_named_only_by_a_stack() -> None:
    """Method: ranks 1 and 2 have not come, but may wait for rank 3, which left no dump, in a
    receive that is not recorded.
    """
    blame = Blame(
        "missing",
        "One of them.",
        ranks=(Blamed(1, 0.5), Blamed(2, 0.5)),
        suspects=(Suspect(3, "no dump"),),
        either=True,
        dumped=frozenset({0, 1, 2}),
    )
    got = verdict(blame)
    assert ([one.rank for one in got.ranks], [one.rank for one in got.suspects]) == ([], [3])
    logs = stacks({1: "load"}, ranks=3)
    assert [one.rank for one in verdict(blame, **logs).ranks] == [1]


def test_an_odd_dump_of_an_unknown_rank_keeps_its_candidates_suspects() -> None:
    """They stay suspects although other evidence shows that they wait."""
    blame = Blame(
        "mismatch", "x", suspects=(Suspect(1, "odd"), Suspect(2, "odd")), dumped=frozenset({0, 3})
    )
    got = verdict(blame, **stacks({}, ranks=4))
    assert ([one.rank for one in got.ranks], [one.rank for one in got.suspects]) == ([], [1, 2])


@pytest.mark.parametrize(
    "said",
    [
        (
            "RuntimeError: [../gloo/transport/tcp/pair.cc:446] op.preamble.length <= op.nbytes. 40"
            " vs 16"
        ),
        (
            "what(): [enforce fail at gloo/transport/tcp/pair.cc:456] op.preamble.length <="
            " op.nbytes. 16 vs 4. Received data size doesn't match expected size. Is there a"
            " distributed collective mismatch in your code?"
        ),
    ],
)
def test_a_mismatch_that_no_dump_shows_is_of_those_without_one(said: str) -> None:
    """Method: gloo said that sizes differ; ranks 3 and 4 left no dump, and may have been thrown out
    of a wait too. Who was idle then proves nothing.
    """
    blame = Blame(
        "missing",
        "Others wait.",
        ranks=(Blamed(0, 0.5),),
        suspects=(Suspect(3, "cut"), Suspect(4, "no dump")),
        either=True,
        dumped=frozenset({0, 1, 2, 5}),
    )
    got = verdict(blame, **{"rank_2.log": f"[rank2]: {said}\n", **stacks({}, ranks=6)})
    assert ([one.rank for one in got.ranks], [one.rank for one in got.suspects]) == ([], [3, 4])


def test_where_stacks_clear_everybody_those_without_a_dump_stay_suspects() -> None:
    """Found in made incidents: ranks that call their groups in different orders all wait, and some
    others are still on their way.
    """
    blame = Blame(
        "missing",
        "Others wait.",
        suspects=(Suspect(0, "cut"), Suspect(6, "no dump")),
        dumped=frozenset({1, 2, 3, 4, 5, 7}),
    )
    got = verdict(blame, **stacks({3: "load", 5: "load", 7: "load"}))
    assert ([one.rank for one in got.ranks], [one.rank for one in got.suspects]) == ([], [0, 6])


def test_of_a_rank_that_stands_it_is_not_said_that_it_raised() -> None:
    blame = Blame(
        "missing",
        "Rank 4 has not come.",
        ranks=(Blamed(4, 0.9),),
        edges=((1, 4, "x"), (2, 4, "x")),
        dumped=frozenset(range(8)),
    )
    got = verdict(blame, **stacks({4: "pack"}))
    assert (got.failure_class, got.mechanism) == (FailureClass.USER_CODE, Mechanism.HANG)
    assert "makes no progress" in got.reason
    assert "raised" not in got.action + got.reason
    assert "twice" in got.next_test
