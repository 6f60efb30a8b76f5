"""How a rank ended, by the launcher's table and its own log, goes before what dumps show."""

from __future__ import annotations

import pytest

from outlast.diagnose.collectives import Blame
from outlast.diagnose.collectives.blame import WaitingRanks
from outlast.diagnose.findings import Finding
from outlast.diagnose.fuse import decide
from outlast.diagnose.logs import read_lines
from outlast.model.terms import Mechanism
from outlast.model.verdict import Blamed, Suspect, Verdict

PEER_GONE = "[rank{rank}]: RuntimeError: Connection closed by peer [127.0.0.1]:26509"
GLOO_SIZE = (
    "terminate called after throwing an instance of 'gloo::EnforceNotMet'\n"
    "  what():  [enforce fail at pair.cc:456] op.preamble.length <= op.nbytes. 8 vs 4."
)


def row(rank: int, code: int) -> str:
    signals = {-6: " (SIGABRT)", -9: " (SIGKILL)", -15: " (SIGTERM)"}
    return (
        f"  time      : 2026-11-24_23:05:59\n  host      : node1\n"
        f"  rank      : {rank} (local_rank: {rank})\n"
        f"  exitcode  : {code} (pid: {100 + rank}){signals.get(code, '')}\n"
        "  error_file: <N/A>\n  traceback : To enable traceback see: https://x.html\n"
    )


def table(codes: dict[int, int]) -> str:
    first = next(rank for rank, code in codes.items() if code != -15)
    others = "".join(f"[1]:\n{row(rank, code)}" for rank, code in codes.items() if rank != first)
    return (
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:\n"
        f"Failures:\n{others}Root Cause (first observed failure):\n[0]:\n{row(first, codes[first])}"
        "==================\n"
    )


def verdict(codes: dict[int, int], logs: dict[int, str], blame: Blame | None = None) -> Verdict:
    texts = {f"logs/run/attempt_0/{rank}/stderr.log": text for rank, text in logs.items()}
    texts["launcher.log"] = table(codes)
    findings = [
        one
        for name, text in texts.items()
        for one in read_lines(text.encode().splitlines(), name=name)
    ]
    return decide(findings, blame=blame)


DUMPS = {
    "none": None,
    "another is behind": Blame("missing", ranks=(Blamed(0, 0.9),), dumped=frozenset(range(4))),
    "suspects": Blame("missing", suspects=tuple(Suspect(rank, "x") for rank in (0, 1, 2))),
}


@pytest.mark.parametrize("blame", DUMPS.values(), ids=DUMPS)
@pytest.mark.parametrize(
    ("code", "said", "mechanism"),
    [
        (3, "step 4 done", Mechanism.EXIT),
        (-6, "Fatal Python error: Aborted", Mechanism.SIGNAL),
        (-9, "step 4 done", Mechanism.SIGNAL),
        (-11, "Fatal Python error: Segmentation fault", Mechanism.SIGNAL),
    ],
    ids=["exit code", "abort", "kill", "crash"],
)
def test_the_rank_that_ended_by_itself_is_named_whatever_the_dumps_show(
    code: int, said: str, mechanism: Mechanism, blame: Blame | None
) -> None:
    """Method: rank 3 ends so, rank 1 loses its connection, the others are closed by SIGTERM."""
    logs = {0: "step 4 done", 1: PEER_GONE.format(rank=1), 3: said}
    got = verdict({0: -15, 1: 1, 2: -15, 3: code}, logs, blame)
    assert ([one.rank for one in got.ranks], got.mechanism) == ([3], mechanism)


def test_a_victim_without_a_log_did_not_end_by_itself() -> None:
    """Method: two ranks end with code 1; the log of one tells why, that of the other is lost."""
    logs = {0: "step 4 done", 3: "ValueError: no"}
    got = verdict({0: -15, 1: 1, 2: -15, 3: 1}, logs)
    assert [one.rank for one in got.ranks] == [3]


def test_a_rank_that_says_what_its_peer_sent_is_not_the_odd_one() -> None:
    """Gloo aborts the rank that receives too much, and not the one that sent it."""
    logs = {2: GLOO_SIZE, 1: PEER_GONE.format(rank=1), 3: PEER_GONE.format(rank=3)}
    got = verdict({0: -15, 1: 1, 2: -6, 3: 1}, logs)
    assert got.ranks == ()


AGENT = "E1125 10:34:10.968000 9 torch/distributed/elastic/multiprocessing/api.py:1002] failed"
CLOSES = "W1125 10:34:10.9 9 torch/distributed/elastic/multiprocessing/api.py:1028] Sending process"
OUTSIDE = (
    "W1125 10:34:09.9 9 torch/distributed/elastic/agent/server/api.py:753] Received 15 death"
    " signal, shutting down workers\n"
)


def launcher(*, ended: int, outside: bool = False) -> list[Finding]:
    """The launcher's log of four ranks that all end by SIGTERM; it closes all but one."""
    closed = "".join(
        f"{CLOSES} {100 + rank} closing signal SIGTERM\n" for rank in range(4) if rank != ended
    )
    failed = f"{AGENT} (exitcode: -15) local_rank: {ended} (pid: {100 + ended}) of binary: python\n"
    rows = "".join(f"[1]:\n{row(rank, -15)}" for rank in range(4) if rank != ended)
    said = (
        f"Failures:\n{rows}Root Cause (first observed failure):\n[0]:\n{row(ended, -15)}"
        "==================\n"
    )
    text = (OUTSIDE if outside else "") + closed + failed + said
    return list(read_lines(text.encode().splitlines(), name="launcher.log"))


def test_a_sigterm_that_the_launcher_did_not_send_is_the_ranks_own_end() -> None:
    """Where the launcher was sent one itself, whoever did may have sent one to all."""
    got = decide(launcher(ended=3), blame=None)
    assert ([one.rank for one in got.ranks], got.mechanism) == ([3], Mechanism.SIGNAL)
    assert decide(launcher(ended=3, outside=True), blame=None).ranks == ()


def test_an_end_from_outside_shows_no_rank_by_dumps_of_other_moments() -> None:
    """Dumps that show one rank behind at the same moment count: then the job hung before."""
    findings = list(read_lines(OUTSIDE.encode().splitlines(), name="launcher.log"))
    older = Blame(
        "self_stuck",
        ranks=(Blamed(0, 0.6), Blamed(2, 0.6)),
        dumped=frozenset(range(4)),
        waiting_ranks=WaitingRanks(older=frozenset({0, 2})),
    )
    got = decide(findings, blame=older)
    assert (got.ranks, got.mechanism) == ((), Mechanism.SIGNAL)
    assert "scheduler" in got.action
    hung = decide(findings, blame=DUMPS["another is behind"])
    assert [one.rank for one in hung.ranks] == [0]


def test_a_monitored_barrier_names_who_did_not_come() -> None:
    """The ranks that lose the one that monitors it are collateral, and so is rank 0 itself."""
    late = "RuntimeError: [Rank 0]: Rank 2 failed to pass monitoredBarrier in 6000 ms"
    peer = (
        "RuntimeError: Rank {rank} successfully reached monitoredBarrier, but received errors while"
        " waiting for send/recv from rank 0. Please check rank 0 logs for faulty rank."
    )
    logs = {rank: f"[rank{rank}]: {peer.format(rank=rank)}" for rank in (1, 3)}
    got = verdict({0: 1, 1: -15, 2: -15, 3: -15}, {**logs, 0: f"[rank0]: {late}"})
    assert ([one.rank for one in got.ranks], got.mechanism) == ([2], Mechanism.HANG)
    two = late.replace("Rank 2", "Ranks 2, 3")
    got = verdict({0: 1, 1: -15, 2: -15, 3: -15}, {0: f"[rank0]: {two}"})
    assert [one.rank for one in got.ranks] == [2, 3]


def test_a_port_that_is_taken_is_no_loss_of_a_peer() -> None:
    logs = {0: PEER_GONE.format(rank=0), 3: "[rank3]: OSError: [Errno 98] Address already in use"}
    got = verdict({0: 1, 1: -15, 2: -15, 3: 1}, logs, DUMPS["another is behind"])
    assert [one.rank for one in got.ranks] == [3]


def test_a_loader_that_lost_its_worker_is_an_exception_of_its_rank() -> None:
    """The pipe to the worker breaks; what it says is what a lost peer says, too."""
    site, library = "/usr/site-packages/torch", "/usr/lib/python3.11"
    frames = [
        f"{site}/utils/data/dataloader.py",
        f"{library}/multiprocessing/queues.py",
        f"{site}/multiprocessing/reductions.py",
        f"{library}/multiprocessing/connection.py",
    ]
    text = "Traceback (most recent call last):\n"
    text += "".join(f'  File "{one}", line 7, in get\n    get()\n' for one in frames)
    text += "ConnectionResetError: [Errno 104] Connection reset by peer\n"
    said = verdict({0: -15, 1: 1}, {0: PEER_GONE.format(rank=0), 1: text})
    assert ([one.rank for one in said.ranks], said.mechanism) == ([1], Mechanism.EXCEPTION)
    assert "loader's worker" in said.next_test


def test_that_the_launcher_was_ended_from_outside_is_said_first() -> None:
    line = "torch/distributed/elastic/agent/server/api.py:753] Received 15 death signal, shutting"
    said = decide(list(read_lines([line.encode()], name="log")), blame=None)
    assert said.reason.startswith("The launcher was ended from outside.")


def test_the_only_one_that_aborted_went_first_where_all_others_lost_a_peer() -> None:
    """Its own log was not read. If somebody received another size, any of two may have sent it."""
    codes = {1: -6, 0: -15, 2: -15}
    lost = {rank: PEER_GONE.format(rank=rank) for rank in (0, 2)}
    said = verdict(codes, lost)
    assert ([one.rank for one in said.ranks], said.mechanism) == ([1], Mechanism.SIGNAL)
    found = [*read_lines(GLOO_SIZE.encode().splitlines(), name="console.log")]
    for rank, text in lost.items():
        found += read_lines(text.encode().splitlines(), name=f"rank_{rank}.log")
    found += read_lines(table(codes).encode().splitlines(), name="launcher.log")
    assert decide(found, blame=None).ranks == ()


def mixed(codes: dict[int, int], text: str) -> Verdict:
    """Return the verdict on the log of a launcher into which all ranks write."""
    log = f"{text}{table(codes)}".encode().splitlines()
    return decide(list(read_lines(log, name="train.out")), blame=None)


CLOSED_EARLY = {1: 1, 0: -15, 2: -15}
NOT_BUILT = "RuntimeError: Distributed package doesn't have NCCL built in"


@pytest.mark.parametrize(
    "text",
    [
        "".join(f"[rank{rank}]: KeyError: 'lr'\n" for rank in range(3)),
        # before the ranks have joined their group, torch puts no label before their words
        f"{NOT_BUILT}\n" * 3,
        "train.py: error: unrecognized arguments: --batchsize 8\n" * 3,
    ],
)
def test_where_all_ranks_fail_alike_the_first_that_is_noticed_is_not_named(text: str) -> None:
    """The launcher closes the others while they are still on their way out."""
    assert not mixed(CLOSED_EARLY, text).ranks


@pytest.mark.parametrize(
    "text",
    [
        "[rank0]: ValueError: a\n[rank1]: KeyError: 'b'\n[rank2]: ValueError: c\n",
        f"{NOT_BUILT}\n" * 2,  # of one rank, which logs its exception before it fails of it
        "ConnectionResetError: [Errno 104] reset\n" * 3 + "KeyError: 'x'\n",  # handled each time
    ],
)
def test_where_ranks_do_not_all_fail_alike_the_one_that_ended_is_named(text: str) -> None:
    """Either two ranks have failures of their own, or only one has any."""
    assert [one.rank for one in mixed(CLOSED_EARLY, text).ranks] == [1]


def test_an_exception_without_a_rank_is_not_said_to_be_missing() -> None:
    """Method: rank 1 fails at its imports, before torch would put its rank before the words."""
    words = "ModuleNotFoundError: No module named 'flash_attn'\n"
    said = mixed(CLOSED_EARLY, words).reason
    assert "Rank 1 ended with an exit code of its own" in said
    assert "without an exception" not in said
    assert "without an exception" in mixed(CLOSED_EARLY, "step 1\n").reason
