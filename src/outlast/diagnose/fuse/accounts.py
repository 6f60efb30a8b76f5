"""What each rank's own evidence says of it.

A graph of collectives that was recorded after a failure blames the rank that was behind. A rank's
own account says whether that rank was the one that failed:

    killed    a signal that is neither the launcher's (SIGTERM, and SIGKILL after it was said to
              follow) nor a watchdog's (SIGABRT, which ends collateral ranks)
    raised    the first exception in its log is none about a lost peer
    lost      the first exception in its log is about a peer: collateral; late: that it timed
              out, so that it had waited
    exited    it ended with an exit code above 0, and its log shows no exception
    left      the launcher's table names all other ranks of the host, and not this one: it ended
              without a failure, before them
    silent    the only rank that reports nothing, where all others lost a peer or timed out
    waiting   its newest stack stands in a collective, a send or a receive: collateral
    busy      its newest stack stands elsewhere

This module is pure: no clock, no files, no torch.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

from outlast.diagnose.findings import Finding
from outlast.diagnose.logs.tracebacks import RaisedAt
from outlast.diagnose.rules import RULES
from outlast.diagnose.stacks.reader import Stack, activity, newest_of_ranks
from outlast.model.terms import Mechanism
from outlast.model.verdict import Role

# errors that are raised because a peer is gone, late, or sent something unexpected
PEER = ("gloo.", "c10d.", "store.", "nccl.", "ib.")
OWN = (
    "store.port_taken",
    "gloo.interface",
    "nccl.interface",
)  # of those rules: what a rank met on its own host
OF_OTHERS = ("gloo.size", "c10d.mismatch")  # what a rank says of its peers' calls
NODE_LOST = ("slurm.node_failure", "kube.node_lost")  # its ranks went first, whoever they are
NOT_OWN = (-15, -2, -1, -6)
_PID = re.compile(r"\(pid: (\d{1,9})\)")
_CODE = re.compile(r"^exitcode {1,6}: (-?\d{1,3})\b")
_FORCED = re.compile(r"unable to shutdown process (\d{1,9})\b", re.IGNORECASE)
# the agent found it ended, before it asked any process to end
_AGENT_FAILED = re.compile(r"failed \(exitcode: (?:-15|-2|-1)\).{0,60}\(pid: (\d{1,9})\)")
_ASKED = re.compile(r"(?:sending|closing) process (\d{1,9}) (?:closing|via) ", re.IGNORECASE)
TOLD = "c10d.told"  # how far it had come, when another rank told it to dump
OUTSIDE = "exit.outside"  # the launcher itself was sent a signal
_SAID_RANK = re.compile(r"error: .{0,80}\brank (\d{1,6}) ", re.IGNORECASE)
_RAISES = (Mechanism.EXCEPTION, Mechanism.SIGNAL)
# srun: error: gpu-017: task 5: Segmentation fault (core dumped)
_TASK = re.compile(
    r"srun: error: \S{1,80}: task \d{1,6}: (?:Exited with exit code (?P<code>\d{1,3})"
    r"|(?P<word>[A-Z][a-z]+))"
)
# torch.multiprocessing.spawn: ProcessExitedException: process 2 terminated with signal SIGSEGV
_SPAWNED = re.compile(
    r"ProcessExitedException: process \d{1,4} terminated with"
    r" (?:exit code (?P<code>\d{1,3})|signal SIG(?P<word>[A-Z]+))"
)
# DeepSpeed: ['python', '-u', 'train.py', '--local_rank=7'] exits with return code = -9
# (the command is that of the last process of the node, and the code that of the one that failed)
_RETURNED = re.compile(r"exits with return code = (?P<code>-?\d{1,3})\b")
_SIGNALS = {"Killed": -9, "Segmentation": -11, "Bus": -7, "Aborted": -6, "Terminated": -15}
_SIGNALS |= {"Illegal": -4, "Floating": -8}
_SIGNALS |= {"KILL": -9, "SEGV": -11, "BUS": -7, "ABRT": -6, "TERM": -15, "ILL": -4, "FPE": -8}


@dataclass(frozen=True, slots=True)
class Accounts:
    """This is what the ranks and their launcher report of how each rank ended. Ranks are global.

    seen     all ranks that left any evidence by name
    forced   ranks that did not react to SIGTERM
    """

    seen: frozenset[int] = frozenset()
    killed: dict[int, Finding] = field(default_factory=dict)
    raised: dict[int, Finding] = field(default_factory=dict)
    exited: dict[int, Finding] = field(default_factory=dict)
    lost: frozenset[int] = frozenset()
    late: frozenset[int] = frozenset()
    closed: frozenset[int] = frozenset()
    left: frozenset[int] = frozenset()
    silent: frozenset[int] = frozenset()
    forced: frozenset[int] = frozenset()
    waiting: frozenset[int] = frozenset()
    busy: frozenset[int] = frozenset()

    @property
    def by_itself(self) -> bool:
        """Return True if some rank failed or left by its own account."""
        return bool(self.killed or self.raised or self.exited or (self.left and self.lost))

    @property
    def ended(self) -> frozenset[int]:
        """Return the ranks that ended, in any way."""
        own = self.killed.keys() | self.raised.keys() | self.exited.keys()
        return frozenset(own) | self.lost | self.closed | self.left


def take_accounts(findings: Sequence[Finding]) -> Accounts:
    """Return what the findings say of each rank's end. Findings of the graph are left out."""
    by_rank: dict[int, list[Finding]] = defaultdict(list)
    for one in findings:
        if one.rank is not None and not one.rule.startswith("graph."):
            by_rank[one.rank].append(one)
    forced_pids = {
        found[1]
        for one in findings
        if one.rule == "exit.closing" and (found := _FORCED.search(one.evidence.text))
    }
    table, codes = _table(findings)
    forced = {
        rank
        for rank, one in table.items()
        if (found := _PID.search(one.evidence.text)) and found[1] in forced_pids
    }
    firsts = {
        rank: first for rank, some in by_rank.items() if (first := _first_raised(some)) is not None
    }
    lost = {rank for rank, one in firsts.items() if _is_of_peer(one)}
    killed = {
        rank: table[rank]
        for rank, code in codes.items()
        if code < 0 and code not in NOT_OWN and rank not in forced | lost
    }
    unasked = _unasked(findings)
    killed |= {
        rank: one
        for rank, one in table.items()
        if (found := _PID.search(one.evidence.text)) and found[1] in unasked
    }
    raised = {rank: one for rank, one in firsts.items() if rank not in lost and rank not in killed}
    killed |= _aborted(codes, table, by_rank, lost | forced, killed, findings)
    raised = {rank: one for rank, one in raised.items() if rank not in killed}
    waiting, busy = _waiting_and_busy(findings)
    closed = frozenset(
        rank
        for rank, code in codes.items()
        if code in NOT_OWN and rank not in lost and rank not in raised and rank not in killed
    )
    late = frozenset(rank for rank in lost if firsts[rank].rule == "c10d.timeout")
    return Accounts(
        seen=frozenset(by_rank),
        killed=killed,
        raised=raised,
        exited=_exited(codes, table, by_rank, {*killed, *raised, *lost, *forced}),
        lost=frozenset(lost),
        late=late,
        closed=closed,
        left=_left(table, by_rank),
        silent=frozenset()
        if _ended_well(findings) or any(one.rule in NODE_LOST for one in findings)
        else _silent(by_rank, lost, {*raised, *killed}, () if lost <= late else closed),
        forced=frozenset(forced),
        waiting=waiting,
        busy=busy,
    )


def _table(findings: Sequence[Finding]) -> tuple[dict[int, Finding], dict[int, int]]:
    """Return the line that says how each rank ended, and its exit code.

    The line is a launcher's, srun's or that of torch's spawn.
    """
    rows = [one for one in findings if one.rule.startswith("elastic.") and one.rank is not None]
    # A row with an exit code last: other lines of the launcher may name the rank after it.
    rows.sort(key=lambda one: _CODE.match(one.evidence.text) is not None)
    table = {one.rank: one for one in rows if one.rank is not None}
    codes = {
        rank: int(found[1])
        for rank, one in table.items()
        if (found := _CODE.match(one.evidence.text))
    }
    for one in findings:
        if one.rank is not None and (code := _code_of_task(one)) and one.rank not in table:
            table[one.rank], codes[one.rank] = one, code
    return table, codes


def _code_of_task(one: Finding) -> int | None:
    """Return with what a task or a spawned process ended, as an exit code of Python's."""
    if returned := _RETURNED.search(one.evidence.text):
        return int(returned["code"])
    found = _TASK.search(one.evidence.text) or _SPAWNED.search(one.evidence.text)
    if found is None:
        return None
    return int(found["code"]) if found["code"] else _SIGNALS.get(found["word"])


def _silent(
    by_rank: dict[int, list[Finding]],
    lost: Collection[int],
    failed: Collection[int],
    closed: Collection[int],
) -> frozenset[int]:
    """Return the one rank that reports no failure, where every other one lost a peer.

    It went first, or it hung: what its peers report is about it. Ranks are counted up to the
    highest one that was seen. One that has left no log at all is missing only between others, and
    beside one rank alone the logs of all others may be missing. A rank that the launcher closed may
    have had no time to report, unless its peers timed out.
    """
    if failed or not lost:
        return frozenset()
    others = set(range(max(by_rank) + 1)) - set(lost)
    if len(lost) == 1 and not others & by_rank.keys():
        return frozenset()
    told = {rank for rank, some in by_rank.items() if any(one.rule == TOLD for one in some)}
    return frozenset(others - set(closed) - told) if len(others) == 1 else frozenset()


def _ended_well(findings: Sequence[Finding]) -> bool:
    """Return True if the training finished, and what ranks report is printed at a good end too."""
    roles = {one.evidence.role for one in findings}
    finished = any(one.rule == "log.finished" for one in findings)
    return finished and not roles & {Role.ROOT, Role.MESSENGER}


def _is_of_peer(one: Finding) -> bool:
    if one.rule == "c10d.peer_said" and (found := _SAID_RANK.search(one.evidence.text)):
        return int(found[1]) != one.rank
    if one.rule == "nccl.unhandled" and "cuda" in one.evidence.text.lower():
        return False  # a call of CUDA failed in that very process
    return one.rule.startswith(PEER) and one.rule not in OWN


def _unasked(findings: Sequence[Finding]) -> frozenset[str]:
    """Return the pids of ranks that ended by SIGTERM or the like, which the launcher did not send.

    Where the launcher was sent a signal itself, whoever sent it may have sent it to all.
    """
    if any(one.rule == OUTSIDE for one in findings):
        return frozenset()
    failed, asked = (
        {found[1] for one in findings if (found := pattern.search(one.evidence.text))}
        for pattern in (_AGENT_FAILED, _ASKED)
    )
    return frozenset(failed - asked)


def _aborted(
    codes: dict[int, int],
    table: dict[int, Finding],
    by_rank: dict[int, list[Finding]],
    not_own: set[int],
    killed: dict[int, Finding],
    findings: Sequence[Finding],
) -> dict[int, Finding]:
    """Return the one rank that aborted by itself, if there is one.

    A watchdog ends collateral ranks by SIGABRT too, but it says so in their logs, and seldom in
    only one. If the log of the rank was not read, all others have to have lost a peer. One that
    received what it did not ask for may be collateral. In a log without labels, an exception is
    that of the only rank of which anything is told.
    """
    aborted = {rank for rank, code in codes.items() if code == -6} - not_own
    if len(aborted) != 1 or killed:
        return {}
    rank = aborted.pop()
    some = by_rank[rank]
    has_log = any(not one.rule.startswith(("elastic.", "exit.")) for one in some)
    others = by_rank.keys() - {rank}
    alone = bool(others) and others <= not_own
    received = any(one.rule in OF_OTHERS and one.rank is None for one in findings)
    unlabelled = not others and any(
        one.rank is None and one.evidence.role is Role.ROOT and one.mechanism is Mechanism.EXCEPTION
        for one in findings
    )
    has_log = has_log or ((alone or unlabelled) and not received)
    of_peers = any(_is_of_peer(one) for one in some)
    return {rank: table[rank]} if has_log and not of_peers else {}


def _exited(
    codes: dict[int, int],
    table: dict[int, Finding],
    by_rank: dict[int, list[Finding]],
    explained: set[int],
) -> dict[int, Finding]:
    """Return ranks with an exit code of their own and no exception.

    Of several, only those count whose logs were read. The missing log may be that of a
    collateral rank, which would name its peers.
    """
    found = {rank for rank, code in codes.items() if code > 0} - explained
    failed = {rank for rank, code in codes.items() if code not in NOT_OWN}
    if failed != found or len(found) > 1:
        found = {
            rank
            for rank in found
            if any(not one.rule.startswith(("elastic.", "exit.")) for one in by_rank[rank])
        }
    return {rank: table[rank] for rank in sorted(found)}


def _first_raised(some: Iterable[Finding]) -> Finding | None:
    """Return the first exception in a rank's log, in the order of its file.

    What a launcher repeats counts only if there is nothing else.
    """
    told = [one for one in some if _tells(one)]
    return min(told, key=lambda one: (one.evidence.line is None, one.order), default=None)


def _tells(one: Finding) -> bool:
    """Return True for a line that says that something was raised.

    That is a root or messenger that ends in an exception, or any line about a peer.
    """
    rule = RULES.get(one.rule)
    if (
        isinstance(one, Stack)
        or rule is None
        or one.rule in ("python.fatal", "c10d.left_open")
        or one.rule.startswith(
            ("elastic.", "exit.", "stack.", "desync.", "own.", "ledger.", "standing.", "beacon.")
        )
    ):
        return False
    if _is_of_peer(one) or one.rule == "c10d.peer_said":
        return one.evidence.role is not Role.ADVICE
    raises = one.mechanism in _RAISES or (isinstance(one, RaisedAt) and not one.doubt)
    return one.evidence.role in (Role.ROOT, Role.MESSENGER) and raises


def _left(table: dict[int, Finding], by_rank: dict[int, list[Finding]]) -> frozenset[int]:
    """Return ranks that left a log and are missing from a table that names most of their host's.

    With the tables of several hosts too little is known.
    """
    if len(table) < 2 or len({one.node for one in table.values()}) > 1:
        return frozenset()
    logged = {rank for rank, some in by_rank.items() if any(one.rule == "log.last" for one in some)}
    missing = logged - table.keys()
    return (
        frozenset(missing)
        if len(missing) * 2 <= len(table) and table.keys() <= logged
        else frozenset()
    )


def _waiting_and_busy(findings: Sequence[Finding]) -> tuple[frozenset[int], frozenset[int]]:
    kinds = {
        rank: {activity(one)[0] for one in stacks}
        for rank, stacks in newest_of_ranks(findings).items()
    }
    waiting = {rank for rank, some in kinds.items() if "waiting" in some}
    busy = {rank for rank, some in kinds.items() if some - {"waiting", "idle"}}
    return frozenset(waiting - busy), frozenset(busy)
