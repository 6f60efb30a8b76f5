"""The verdict: order in time, what explains what, confidence, ranks."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outlast.diagnose.collectives.blame import WaitingRanks
from outlast.diagnose.findings import Finding
from outlast.diagnose.fuse import decide
from outlast.diagnose.fuse.culprits import SILENT_CONFIDENCE
from outlast.diagnose.fuse.reported_words import REPORTED
from outlast.diagnose.fuse.words import QUIET
from outlast.diagnose.logs import read_lines
from outlast.diagnose.rules import LINE_RULES, RULES
from outlast.model.terms import FailureClass, Mechanism
from outlast.model.verdict import Blamed, Evidence, Role, Suspect, Verdict

C = FailureClass
DATA = Path(__file__).parents[4] / "shared" / "data" / "logs"


@dataclass(frozen=True)
class Blame:
    ranks: tuple[Blamed, ...] = ()
    suspects: tuple[Suspect, ...] = ()
    findings: tuple[Finding, ...] = ()
    kind: str = "nothing"
    sentence: str = ""
    dumped: frozenset[int] = frozenset()
    either: bool = False
    edges: tuple[tuple[int, int, str], ...] = ()
    waiting_ranks: WaitingRanks = field(default_factory=WaitingRanks)


def verdict(*texts: str, blame: Blame | None = None) -> Verdict:
    found = [
        one
        for at, text in enumerate(texts)
        for one in read_lines(
            [line.encode() + b"\n" for line in text.splitlines()], name=f"file{at}"
        )
    ]
    return decide(found, blame=blame)


TIMEOUT = (
    "[rank{r}]:[E ProcessGroupNCCL.cpp:1537] [PG 0 Rank {r}] Timeout at NCCL work: 19, last"
    " enqueued NCCL work: 19, last completed NCCL work: 18.\n"
)


def test_nothing_read_is_unknown_with_no_confidence() -> None:
    empty = decide([], blame=None)
    assert (empty.failure_class, empty.confidence, empty.mechanism, empty.evidence) == (
        C.UNKNOWN,
        0.0,
        None,
        (),
    )
    assert empty.next_test


def test_a_timeout_with_nothing_behind_it_is_unknown() -> None:
    """All ranks report the same wait: nobody is behind."""
    all_wait = verdict("".join(TIMEOUT.format(r=rank) for rank in range(4)))
    assert (all_wait.failure_class, all_wait.mechanism, all_wait.ranks) == (
        C.UNKNOWN,
        Mechanism.HANG,
        (),
    )


def test_the_one_rank_that_reports_no_wait_is_named_without_much_trust() -> None:
    """All other ranks report a collective that they wait in; its log may only be missing."""
    said = verdict("".join(TIMEOUT.format(r=rank) for rank in (1, 2, 3)))
    assert [(one.rank, one.confidence) for one in said.ranks] == [(0, SILENT_CONFIDENCE)]
    assert SILENT_CONFIDENCE <= 0.6


def test_a_silent_file_named_after_a_rank_makes_nobody_absent() -> None:
    """A number in a file's name may be no rank at all."""
    found = [
        one
        for text, name in (
            (TIMEOUT.format(r=1) + TIMEOUT.format(r=2) + TIMEOUT.format(r=3), "log"),
            ("step 1\n", "rank_901.log"),
        )
        for one in read_lines(text.encode().splitlines(keepends=True), name=name)
    ]
    assert [one.rank for one in decide(found, blame=None).suspects] == [0]


def test_a_rank_whose_log_is_named_like_theirs_is_absent() -> None:
    """Its log reports no wait, so nothing but the name of its file says that the rank exists."""
    found = [
        one
        for rank in range(4)
        for one in read_lines(
            [b"step 1\n", b"training finished\n" if rank == 3 else TIMEOUT.format(r=rank).encode()],
            name=f"logs/rank_{rank}.log",
        )
    ]
    said = decide(found, blame=None)
    assert [one.rank for one in said.ranks] == [3]
    assert "its log ends: training finished" in said.reason


TABLE_OF_ONE_HOST = """\
ImportError: libcudnn.so.9: cannot open shared object file: No such file or directory
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
Failures:
[1]:
  time      : 2024-04-01_05:16:49
  host      : {host}
  rank      : 5 (local_rank: 1)
  exitcode  : 1 (pid: 2)
  error_file: <N/A>
  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html
Root Cause (first observed failure):
[0]:
  time      : 2024-04-01_05:16:49
  host      : n02
  rank      : 4 (local_rank: 0)
  exitcode  : 1 (pid: 1)
  error_file: <N/A>
  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html
"""


@pytest.mark.parametrize(("host", "nodes"), [("n02", ("n02",)), ("n03", ())])
def test_the_host_of_the_only_launcher_in_a_file_is_the_node(
    host: str, nodes: tuple[str, ...]
) -> None:
    """The line that decides names no host; a file with the tables of two hosts tells neither."""
    assert verdict(TABLE_OF_ONE_HOST.format(host=host)).nodes == nodes


@pytest.mark.parametrize("rule", sorted(REPORTED))
def test_a_report_without_a_class_says_what_to_do(rule: str) -> None:
    """Method: the report alone; beside a suspect, the questions are about that rank instead."""
    row = RULES[rule]
    report = Finding(
        Evidence("log", 1, "some words", row.role), rule, row.failure_class, row.mechanism
    )
    said = decide([report], blame=None)
    assert said.failure_class is C.UNKNOWN
    assert (said.action, said.next_test) == (REPORTED[rule].action, REPORTED[rule].next_test)
    assert "some words (log:1)" in said.reason
    suspected = decide([report], blame=Blame(suspects=(Suspect(1, "no dump"),)))
    assert suspected.next_test != REPORTED[rule].next_test


def test_a_log_without_a_failure_asks_for_no_restart() -> None:
    said = verdict("step 1 loss 2.5\nstep 2 loss 2.4")
    assert (said.action, said.next_test) == (QUIET.action, QUIET.next_test)
    assert "restart" not in said.action


def test_a_bare_kill_is_unknown_with_its_rank() -> None:
    table = (
        "Root Cause (first observed failure):\n[0]:\n  time      : 2024-04-01_05:16:49\n  host     "
        " : n02\n  rank      : 4 (local_rank: 0)\n  exitcode  : -9 (pid: 1)\n  error_file: <N/A>\n "
        " traceback : Signal 9 (SIGKILL) received by PID 1\n"
    )
    said = verdict(table)
    assert (said.failure_class, said.mechanism, [one.rank for one in said.ranks]) == (
        C.UNKNOWN,
        Mechanism.SIGNAL,
        [4],
    )
    assert said.others[0][0] is C.HOST_MEMORY
    assert said.confidence == said.others[0][1] <= 0.5


def test_who_was_aborted_or_cut_off_is_not_blamed_for_ending_first() -> None:
    """gloo and the watchdog abort the rank that noticed, and a launcher closes the others: the
    table then names the collateral rank alone.
    """
    head, tail = (
        (
            "Root Cause (first observed failure):\n[0]:\n  time      : 2024-04-01_05:16:49\n  host "
            "     : n02\n  rank      : 0 (local_rank: 0)\n"
        ),
        "  error_file: <N/A>\n  traceback : x\n",
    )
    assert verdict(head + "  exitcode  : -6 (pid: 1)\n" + tail).ranks == ()
    lost = (
        "[rank0]: RuntimeError: [../gloo/transport/tcp/pair.cc:598] Connection closed by peer"
        " [10.0.0.1]:1\n"
    )
    assert verdict(lost + head + "  exitcode  : 1 (pid: 1)\n" + tail).ranks == ()
    assert [one.rank for one in verdict(head + "  exitcode  : 1 (pid: 1)\n" + tail).ranks] == [0]


def test_a_kill_with_an_oom_record_is_memory() -> None:
    assert (
        verdict(
            "failed (exitcode: -9) local_rank: 0", "Out of memory: Killed process 7 (python)"
        ).failure_class
        is C.HOST_MEMORY
    )


def test_oom_after_ecc_is_the_device_and_ecc_after_oom_leaves_doubt() -> None:
    ecc, oom = (
        "RuntimeError: CUDA error: uncorrectable ECC error encountered",
        "RuntimeError: CUDA out of memory. Tried to allocate 1 GiB",
    )
    first, second = verdict(f"{ecc}\n{oom}"), verdict(f"{oom}\n{ecc}")
    assert first.failure_class is C.HBM
    assert first.confidence > second.confidence


def test_effects_and_messengers_name_nothing() -> None:
    for line in (
        "NVRM: Xid (PCI:0000:dc:00): 45, pid=7",
        "NVRM: Xid (PCI:0000:dc:00): 43, pid=7",
        "recvValue failed on SocketImpl",
        "RuntimeError: NCCL error: unhandled system error",
        "Sending process 1 closing signal SIGTERM",
    ):
        assert verdict(line).failure_class is C.UNKNOWN, line


def test_the_order_of_files_does_not_matter() -> None:
    texts = [
        "NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.",
        "[rank0]: RuntimeError: CUDA error: unspecified launch failure",
        TIMEOUT.format(r=1),
    ]
    assert verdict(*texts).failure_class is verdict(*reversed(texts)).failure_class is C.GPU
    assert verdict(*texts).confidence == pytest.approx(verdict(*reversed(texts)).confidence)


def test_a_line_said_a_thousand_times_counts_once() -> None:
    once, often = (
        verdict("Killed"),
        verdict("Killed\n" * 1000, "failed (exitcode: -9) local_rank: 0"),
    )
    assert often.confidence == once.confidence < 0.5


def test_the_graph_names_ranks_and_suspects_and_how_but_not_why() -> None:
    blame = Blame(
        (Blamed(2, 0.95),),
        (Suspect(3, "no dump"),),
        (
            Finding(
                Evidence("dump_2", None, "never joined", Role.MESSENGER),
                "graph.missing",
                None,
                Mechanism.HANG,
                rank=2,
            ),
        ),
        "missing",
        "Rank 2 never joined.",
    )
    said = decide([], blame=blame)
    assert (said.failure_class, said.mechanism, said.ranks, said.suspects) == (
        C.UNKNOWN,
        Mechanism.HANG,
        blame.ranks,
        blame.suspects,
    )
    assert "Rank 2 never joined." in said.reason
    with_why = decide(
        list(
            read_lines(
                [b"[rank2]: OSError: [Errno 28] No space left on device: '/scratch'\n"], name="log"
            )
        ),
        blame=blame,
    )
    ranks = [one.rank for one in with_why.ranks]
    assert (with_why.failure_class, with_why.mechanism, ranks) == (
        C.STORAGE,
        Mechanism.EXCEPTION,
        [2],
    ), "its own log says how it ended"


def test_a_mismatch_in_the_graph_is_a_program_s_fault_without_certainty() -> None:
    blame = Blame(
        (Blamed(2, 0.9),),
        (),
        (
            Finding(
                Evidence("dump_2", None, "shape [4] against [8]", Role.ROOT),
                "graph.mismatch",
                C.SOFTWARE_BUG,
                Mechanism.HANG,
                rank=2,
            ),
        ),
        "mismatch",
        "Rank 2 brought another shape.",
    )
    said = decide([], blame=blame)
    assert said.failure_class is C.SOFTWARE_BUG
    assert 0.5 < said.confidence < 0.8


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(sorted(RULES)),
            st.none() | st.integers(0, 9),
            st.none() | st.floats(0, 2e9),
            st.integers(0, 99),
            st.sampled_from(["a", "b"]),
        ),
        max_size=25,
    )
)
def test_any_findings_give_a_verdict_that_keeps_the_contract(
    drawn: list[tuple[str, int | None, float | None, int, str]],
) -> None:
    """Confidence within bounds; unknown carries the best named class's; others are ranked and leave
    the winner out.
    """
    found = [
        Finding(
            Evidence(file, order, "x", RULES[name].role),
            name,
            RULES[name].failure_class,
            RULES[name].mechanism,
            at_s,
            order,
            rank,
        )
        for name, rank, at_s, order, file in drawn
    ]
    said = decide(found, blame=None)
    shares = [share for _, share in said.others]
    assert shares == sorted(shares, reverse=True)
    assert said.failure_class not in dict(said.others)
    assert (
        sum(shares) + (0 if said.failure_class is C.UNKNOWN else said.confidence) < 1 + 1e-9
        or len(shares) > 0
    )
    assert (said.failure_class is C.UNKNOWN) == (said.confidence <= 0.5)
    if said.failure_class is C.UNKNOWN and shares:
        assert said.confidence == pytest.approx(shares[0])
    json.dumps(said.public())


def test_every_line_rule_alone_gives_its_own_class_or_unknown() -> None:
    for rule in LINE_RULES:
        said = decide(
            [
                Finding(
                    Evidence("f", 1, "x", rule.role), rule.name, rule.failure_class, rule.mechanism
                )
            ],
            blame=None,
        )
        assert said.failure_class in (rule.failure_class, C.UNKNOWN), rule.name


def test_labelled_excerpts_are_judged_as_well_as_promised() -> None:
    """At least nine of ten right, none wrong with confidence of 0.8 or more.

    `benchmarks/score_logs.py` prints the rest.
    """
    if not (DATA / "truth.json").is_file():
        pytest.skip("the labelled excerpts are not part of the project")
    truth = json.loads((DATA / "truth.json").read_text())
    said = {
        name: decide(
            list(read_lines((DATA / name).read_bytes().splitlines(keepends=True), name=name)),
            blame=None,
        )
        for name in truth
    }
    right = {name for name, one in said.items() if one.failure_class.value in truth[name]}
    assert len(right) >= 0.9 * len(truth)
    assert not [name for name in truth if name not in right and said[name].confidence >= 0.8]
