"""Which ranks are guilty, what shows it, and how they ended.

The ways of showing a rank guilty are tried in this order, and the first that has an answer decides:

    witnessed  a live run recorded which process it gave up
    mismatch   the graph shows a rank that called what no other did: what follows is confusion
    called     torch compared the calls of all ranks, and most ranks made another one
    barrier    torch's monitored barrier reports who did not come, and none failed by itself
    late       it says itself that it had not called the collective in which the others timed out
    reported   a report of all ranks, such as NCCL's, shows it behind
    stuck      its own watchdog was stuck, and those of all others timed out
    killed     a signal of its own (`accounts.py`)
    raised     an exception of its own; one that most ranks raise is the program's, and names none
    left       it ended without a failure, before the others
    forced     it did not react to SIGTERM, so it hung
    beacons    the workers' beacons show it to be behind, and no dump shows any rank
    graph      the graph of collectives shows it, and neither its own evidence nor its stack
               shows that it waited
    silent     it reports nothing, and all others lost a peer, timed out, or wait by their stacks;
               no dump shows any rank
    remains    all others of its node have ended, and it does not move
    channel    no stack was taken, and it alone waits in another channel of the kernel
    shown      a root of the winning class, a stack that stands out, or the only rank that ended
               by itself

A graph that was recorded after a failure shows which rank was behind, which need not be the one
that failed. That is why a rank's own account is asked first.

This module is pure: no clock, no files, no torch.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from outlast.diagnose.collectives.blame import WaitingRanks
from outlast.diagnose.findings import Finding
from outlast.diagnose.fuse.accounts import Accounts
from outlast.diagnose.fuse.alone import (
    OF_PEERS,
    alone_in_p2p,
    alone_inside,
    alone_unrecorded,
    elsewhere,
    ended_alone,
)
from outlast.diagnose.fuse.nodes_and_devices import near_the_fault
from outlast.diagnose.fuse.weigh import RuleVote
from outlast.diagnose.interrupted import RULE as WITNESSED
from outlast.diagnose.logs.fingerprints import odd_call
from outlast.diagnose.logs.process_table import STOPPED_PID
from outlast.diagnose.stacks.reader import Stack, activity, newest_of_ranks
from outlast.model.terms import FailureClass, Mechanism
from outlast.model.verdict import Blamed, Role, Suspect

WITNESS_CONFIDENCE = 0.95
KILLED_CONFIDENCE = 0.9
RAISED_CONFIDENCE = 0.9
LEFT_CONFIDENCE = 0.8
GONE_CONFIDENCE = 0.7  # the only one without a word, where all others lost a peer
CALLED_CONFIDENCE = 0.9  # torch compared the calls of all ranks, and most made another
BARRIER_CONFIDENCE = 0.9  # torch waited for each rank, and names those that did not come
LATE_CONFIDENCE = 0.85  # by its own words, and those of the ranks that timed out
STUCK_CONFIDENCE = 0.7  # a call of CUDA that blocks it may also wait for another rank's data
BUSY_CONFIDENCE = 0.8
ODD_CONFIDENCE = 0.6  # all wait, and it alone in another branch of the program
CHANNEL_CONFIDENCE = 0.6  # it may also be late for what the others wait for
STOPPED_CONFIDENCE = 0.9  # by a signal or a debugger: it does nothing, whatever it was in
SILENT_CONFIDENCE = 0.6  # the only one without a stack, where all the others' wait
BEHIND_CONFIDENCE = 0.6  # by beacons, which know neither the collectives in a step nor for how long
EXIT_CONFIDENCE = 0.7  # of the only rank that ended by itself
EVERYBODY = 0.5  # a root that more ranks than this share show is the job's, not theirs
MUTE_SHARE = 0.5  # silent ranks at most, for each rank that says how it stood
_OTHER_SIZE = ("gloo.size", "c10d.mismatch")
_NOT_COME = re.compile(
    r"\branks? (\d[\d, ]{0,200}?) failed to pass monitoredbarrier", re.IGNORECASE
)
_RANK_LABEL = re.compile(r"\[(?:rank|default)\d{1,7}\]:? ?")
_IN_P2P = re.compile(r"i?(?:send|recv)(?:_object_list)?\b|batch_isend_irecv")
BUSY_SHARE = 0.34  # if a larger share of stacks does not wait, they show no culprit


class GraphBlame(Protocol):
    """This is what the graph of collectives shows (`diagnose/collectives`)."""

    @property
    def ranks(self) -> tuple[Blamed, ...]: ...
    @property
    def suspects(self) -> tuple[Suspect, ...]: ...
    @property
    def findings(self) -> tuple[Finding, ...]: ...
    @property
    def kind(self) -> str: ...
    @property
    def dumped(self) -> frozenset[int]: ...
    @property
    def sentence(self) -> str: ...
    @property
    def either(self) -> bool: ...
    @property
    def edges(self) -> tuple[tuple[int, int, str], ...]: ...
    @property
    def waiting_ranks(self) -> WaitingRanks: ...


@dataclass(frozen=True, slots=True)
class Culprits:
    """The guilty ranks and the suspects.

    how         one of the names at the head of this module; "" if no rank is guilty
    mechanism   None: the verdict takes it from other evidence
    shown       the lines that show the ranks
    """

    how: str = ""
    ranks: tuple[Blamed, ...] = ()
    suspects: tuple[Suspect, ...] = ()
    mechanism: Mechanism | None = None
    shown: tuple[Finding, ...] = ()


def find_culprits(
    accounts: Accounts,
    blame: GraphBlame | None,
    findings: Sequence[Finding],
    *,
    named: FailureClass,
    supporting: Sequence[RuleVote],
    confidence: float,
) -> Culprits:
    witnesses = [one for one in findings if one.rule == WITNESSED]
    if witnesses:
        ranks = sorted({one.rank for one in witnesses if one.rank is not None})
        return Culprits(
            "witnessed",
            _all(ranks, WITNESS_CONFIDENCE),
            (),
            witnesses[0].mechanism,
            tuple(witnesses),
        )
    if blame is not None and blame.kind == "mismatch" and (blame.ranks or blame.suspects):
        return Culprits(
            "mismatch",
            tuple(blame.ranks),
            _without(blame.suspects, blame.ranks),
            _how_it_broke(findings),
        )
    if (odd := odd_call(findings)) is not None:
        return Culprits(
            "called",
            _all(odd.ranks, CALLED_CONFIDENCE),
            (),
            Mechanism.EXCEPTION,
            odd.lines,
        )
    own = None if _failed_alike(accounts, findings) else _by_themselves(accounts)
    if own is None and (absent := _not_in_barrier(findings)) is not None:
        return absent
    if own is not None:
        unseen = (
            ()
            if blame is None
            else (
                one for one in blame.suspects if one.rank not in accounts.ended | accounts.waiting
            )
        )
        return replace(own, suspects=_without(unseen, own.ranks))
    if blame is not None:
        hung = _hung(accounts, blame, findings)
        if hung is not None:
            return hung
        # asked already, with the graph
        findings = [one for one in findings if one.rule != "stack.divergent"]
    elif (late := _late(findings) or _stuck(accounts, findings)) is not None:
        return late
    if named is FailureClass.UNKNOWN and (late := _by_beacons(accounts, findings)) is not None:
        return late
    if (apart := _remains(findings) or _stands_apart(findings)) is not None:
        return apart
    by_silence = bool(supporting) and supporting[0].rule.name == "desync.left"
    if blame is None and (named is FailureClass.UNKNOWN or by_silence):
        silent = _silent(accounts)
        if silent is not None:
            return silent
    shown = _shown(accounts, findings, named=named, supporting=supporting, confidence=confidence)
    # if all ranks wait, waiting does not clear any of them
    if blame is not None and not shown.ranks and not shown.suspects:
        return replace(shown, suspects=tuple(blame.suspects))
    return shown


def _late(findings: Sequence[Finding]) -> Culprits | None:
    """Return the ranks that were behind, by their own watchdogs or by a report of all ranks."""
    for how, rule in (("late", "desync.behind"), ("reported", "report.behind")):
        lines = tuple(one for one in findings if one.rule == rule)
        if ranks := {one.rank for one in lines if one.rank is not None}:
            return Culprits(how, _all(ranks, LATE_CONFIDENCE), (), Mechanism.HANG, lines)
    return None


def _stuck(accounts: Accounts, findings: Sequence[Finding]) -> Culprits | None:
    """Return the one rank whose own watchdog was stuck, where all others timed out."""
    lines = tuple(one for one in findings if one.rule == "c10d.heartbeat" and one.rank is not None)
    ranks = {one.rank for one in lines if one.rank is not None}
    others = accounts.seen - ranks
    if len(ranks) != 1 or ranks & accounts.late or len(others) < 2 or not others <= accounts.late:
        return None
    return Culprits("stuck", _all(ranks, STUCK_CONFIDENCE), (), Mechanism.HANG, lines[:1])


def _by_beacons(accounts: Accounts, findings: Sequence[Finding]) -> Culprits | None:
    """Return the ranks whose beacons are behind or differ, and which wait for no other rank."""
    rules = ("beacon.apart", "beacon.behind", "beacon.body")
    lines = tuple(one for one in findings if one.rule in rules)
    late = {one.rank for one in lines if one.rank is not None} - accounts.waiting
    if not late:
        return None
    return Culprits("beacons", _all(late, BEHIND_CONFIDENCE), (), Mechanism.HANG, lines)


def _all(ranks: Iterable[int], confidence: float) -> tuple[Blamed, ...]:
    return tuple(Blamed(rank, confidence) for rank in sorted(ranks))


def _without(suspects: Iterable[Suspect], ranks: Iterable[Blamed]) -> tuple[Suspect, ...]:
    shown = {one.rank for one in ranks}
    return tuple(one for one in suspects if one.rank not in shown)


def _how_it_broke(findings: Sequence[Finding]) -> Mechanism:
    """Return how a job ends whose ranks call different things: with an error, or never."""
    if any(one.rule in (*_OTHER_SIZE, "c10d.unequal_inputs") for one in findings):
        return Mechanism.EXCEPTION
    return Mechanism.HANG


# --- by their own account -------------------------------------------------------------------------


def _by_themselves(accounts: Accounts) -> Culprits | None:
    if accounts.killed and not _everybody(accounts.killed, accounts):
        return Culprits(
            "killed",
            _all(accounts.killed, KILLED_CONFIDENCE),
            (),
            Mechanism.SIGNAL,
            tuple(accounts.killed.values()),
        )
    if accounts.raised:
        first = next(iter(accounts.raised.values()))
        if _everybody(accounts.raised, accounts):
            return None
        return Culprits(
            "raised",
            _all(accounts.raised, RAISED_CONFIDENCE),
            (),
            first.mechanism,
            tuple(accounts.raised.values()),
        )
    if accounts.exited and not _everybody(accounts.exited, accounts):
        return Culprits(
            "exited",
            _all(accounts.exited, LEFT_CONFIDENCE),
            (),
            Mechanism.EXIT,
            tuple(accounts.exited.values()),
        )
    if accounts.left and accounts.lost:
        return Culprits("left", _all(accounts.left, LEFT_CONFIDENCE), (), Mechanism.EXIT)
    if accounts.forced and not _everybody(accounts.forced, accounts):
        return Culprits("forced", _all(accounts.forced, BUSY_CONFIDENCE), (), Mechanism.HANG)
    return None


def _failed_alike(accounts: Accounts, findings: Sequence[Finding]) -> bool:
    """Return True if most ranks failed with the same words.

    The launcher notices one of them first, and closes the others before they have ended. That says
    nothing about this one. Before ranks have joined their group their words have no label, but each
    says them once. One rank may say an exception twice, as it logs it and fails.
    """
    if accounts.killed:
        return False
    said = {_without_rank(one.evidence.text) for one in accounts.raised.values()}
    if len(said) == 1 and _everybody(accounts.raised, accounts):
        return True
    unlabelled = [
        (one.rule, one.evidence.file, one.evidence.text)
        for one in findings
        if one.rank is None
        and one.mechanism in (Mechanism.EXCEPTION, Mechanism.EXIT)
        and one.evidence.role is Role.ROOT
    ]
    if accounts.raised or not unlabelled:
        return False
    # What came before the last one was perhaps handled, again and again.
    count = unlabelled.count(unlabelled[-1])
    least = 1 if unlabelled[-1][0] == "config.invalid" else 2
    return count > max(least, EVERYBODY * len(accounts.seen))


def _without_rank(text: str) -> str:
    return _RANK_LABEL.sub("", text)


def _not_in_barrier(findings: Sequence[Finding]) -> Culprits | None:
    """Return the ranks that did not reach a monitored barrier, by the rank that monitored it."""
    lines = [one for one in findings if one.rule == "c10d.barrier"]
    named = [found[1] for one in lines if (found := _NOT_COME.search(one.evidence.text))]
    ranks = {int(rank) for text in named for rank in re.findall(r"\d+", text)}
    if not ranks:
        return None
    return Culprits(
        "barrier", _all(ranks, BARRIER_CONFIDENCE), (), Mechanism.HANG, tuple(lines[:1])
    )


def _everybody(ranks: Iterable[int], accounts: Accounts) -> bool:
    count = len(set(ranks))
    return count > 1 and count > EVERYBODY * len(accounts.seen)


def _silent(accounts: Accounts) -> Culprits | None:
    """Return the one rank that says nothing. If its peers waited for it, it hung; else it is gone.

    A tool that takes stacks gets none of a process that is stopped or in uninterruptible sleep.
    """
    without_stack = accounts.seen - accounts.waiting - accounts.busy - accounts.ended
    if len(accounts.waiting) > 1 and not accounts.busy and len(without_stack) == 1:
        return Culprits("silent", _all(without_stack, SILENT_CONFIDENCE), (), Mechanism.HANG)
    if not accounts.silent:
        return None
    if accounts.lost <= accounts.late:
        return Culprits("silent", _all(accounts.silent, SILENT_CONFIDENCE), (), Mechanism.HANG)
    return Culprits("silent", _all(accounts.silent, GONE_CONFIDENCE), (), Mechanism.LOST_CONTACT)


# --- by the graph and by stacks -------------------------------------------------------------------


def _hung(accounts: Accounts, blame: GraphBlame, findings: Sequence[Finding]) -> Culprits | None:
    """Return the graph's answer, corrected by stacks.

    In a ring all ranks wait. There a waiting stack clears no rank, and one stack that does not wait
    shows that there is no ring.
    """
    if blame.suspects and _is_unseen_mismatch(blame, findings):
        return Culprits("graph", (), tuple(blame.suspects), _how_it_broke(findings))
    ring = is_ring(accounts, blame)
    if ring and len(blame.ranks) <= EVERYBODY * len(blame.dumped):
        return Culprits(
            "graph", tuple(blame.ranks), _without(blame.suspects, blame.ranks), Mechanism.HANG
        )
    # by the launcher, before their recorders could save what came last
    closed = blame.waiting_ranks.older & accounts.closed
    ranks, suspects = _not_cleared(accounts, blame, findings, closed)
    suspects |= _only_older(accounts, blame, ranks)
    ranks = {rank: one for rank, one in ranks.items() if rank not in suspects}
    if busy_are_few(accounts):
        busy = accounts.busy - _on_way(accounts, blame, findings) if ranks else accounts.busy
        ranks |= {
            rank: Blamed(
                rank, max(BUSY_CONFIDENCE, ranks[rank].confidence if rank in ranks else 0.0)
            )
            for rank in busy
        }
    if accounts.waiting or not ranks:
        mute = _mute(accounts, blame)
        suspects = {
            rank: Suspect(
                rank, "it left neither a dump nor a stack, and the others say that they wait"
            )
            for rank in mute - blame.dumped
        } | suspects
        alone = (
            _stopped_inside(accounts, blame, mute)
            if ranks
            else mute & blame.dumped
            if not blame.suspects
            else frozenset()
        )
        ranks |= {rank: Blamed(rank, SILENT_CONFIDENCE) for rank in alone - ranks.keys()}
    # thrown out of their waiting, or closed before they could say more; if there is any other rank
    for collateral in (accounts.lost, closed - accounts.busy):
        if (ranks.keys() | suspects.keys()) - collateral:
            ranks = {rank: one for rank, one in ranks.items() if rank not in collateral}
    if not ranks and not suspects:
        odd = alone_in_p2p(findings)
        if odd is None and accounts.seen <= blame.dumped & accounts.waiting:
            odd = elsewhere(findings)
        if odd is None:
            odd = alone_inside(
                blame.waiting_ranks, seen=accounts.seen, dumped=blame.dumped, edges=blame.edges
            )
        ranks = (
            {odd: Blamed(odd, ODD_CONFIDENCE)}
            if odd is not None
            else {one.rank: one for one in blame.ranks if ring}
        )
    if not ranks and not suspects:
        return None
    return Culprits(
        "graph",
        tuple(ranks[at] for at in sorted(ranks)),
        tuple(suspects[at] for at in sorted(suspects) if at not in ranks),
        Mechanism.HANG,
    )


def _not_cleared(
    accounts: Accounts, blame: GraphBlame, findings: Sequence[Finding], closed: frozenset[int]
) -> tuple[dict[int, Blamed], dict[int, Suspect]]:
    """Return the graph's ranks and suspects, without those that report a wait themselves."""
    collateral = accounts.late | (
        accounts.waiting if blame.kind != "self_stuck" else accounts.waiting & closed
    )
    collateral -= alone_unrecorded(findings)
    ranks = {one.rank: one for one in blame.ranks if one.rank not in collateral}
    stood = (accounts.waiting - _past_the_others(blame, findings)) | accounts.late
    # if all ranks wait, waiting does not clear any of them
    suspects = {
        one.rank: one for one in blame.suspects if one.rank not in stood or accounts.seen <= stood
    }
    # one of them, or of those without a dump, and a stack says which
    if blame.either and (accounts.busy & ranks.keys() or suspects):
        ranks = {rank: one for rank, one in ranks.items() if rank in accounts.busy}
    return ranks, suspects


def _only_older(
    accounts: Accounts, blame: GraphBlame, ranks: Mapping[int, Blamed]
) -> dict[int, Suspect]:
    """Return several ranks that nothing shows but a dump older than their peers', as suspects.

    A rank that is stopped leaves such a dump, and so does one whose recorder saved the last before
    all ended. Stacks of peers that wait tell that the job hung.
    """
    older = blame.waiting_ranks.older & ranks.keys()
    if len(older) < 2 or accounts.waiting or blame.kind != "self_stuck":
        return {}
    why = "its dump is older than those of its peers: it was stopped, or saved no later one"
    return {rank: Suspect(rank, why) for rank in older}


def _is_unseen_mismatch(blame: GraphBlame, findings: Sequence[Finding]) -> bool:
    """Return True if a rank received another size than it asked for, and no dump shows the sender.

    Then the rank that sent it left no dump. That it also waited does not clear it. A dump that is
    only older than the others is from before the end, which came at once.
    """
    is_older = blame.kind == "self_stuck" and blame.waiting_ranks.older.issuperset(
        one.rank for one in blame.ranks
    )
    return (is_older or blame.kind in ("missing", "nothing", "all_joined")) and any(
        one.rule in _OTHER_SIZE for one in findings
    )


def _on_way(accounts: Accounts, blame: GraphBlame, findings: Sequence[Finding]) -> frozenset[int]:
    """Return busy ranks that no other rank waits for, if every rank left a dump.

    They are only slow, as on a machine with too much to do. Nothing is known of them if a stack is
    in a send or receive, because some backends do not record those.
    """
    if (
        blame.kind != "missing"
        or blame.either
        or blame.suspects
        or not accounts.seen <= blame.dumped
    ):
        return frozenset()
    if any(
        _IN_P2P.match(frame) for one in findings if isinstance(one, Stack) for frame in one.frames
    ):
        return frozenset()
    return accounts.busy - {awaited for _, awaited, _ in blame.edges}


def _past_the_others(blame: GraphBlame, findings: Sequence[Finding]) -> frozenset[int]:
    """Return ranks whose stack is in a barrier, while by the dumps no rank waits in one.

    They took another path through the program, and wait for ranks that wait for them. Only a
    barrier tells this, and what no dump records: no other operation has the same name in stacks
    and dumps for sure.
    """
    if not blame.waiting_ranks.awaited or "barrier" in blame.waiting_ranks.awaited:
        return frozenset()
    barrier = ("waiting", "barrier")
    inside = {
        rank
        for rank, stacks in newest_of_ranks(findings).items()
        if any(activity(one) == barrier for one in stacks)
    }
    return alone_unrecorded(findings) | inside


def _mute(accounts: Accounts, blame: GraphBlame) -> frozenset[int]:
    """Return ranks that were there and report nothing, if most others waited or timed out.

    Ranks without a dump are counted apart.
    """
    said = accounts.waiting | accounts.busy | accounts.late
    mute = (
        (accounts.seen | blame.dumped)
        - said
        - accounts.ended
        - (blame.waiting_ranks.waits - blame.waiting_ranks.joined)
    )
    parts = (mute & blame.dumped, mute - blame.dumped)
    return frozenset().union(*(part for part in parts if len(part) <= MUTE_SHARE * len(said)))


def _stopped_inside(accounts: Accounts, blame: GraphBlame, mute: frozenset[int]) -> frozenset[int]:
    """Return silent ranks in a collective that every rank has reached, and where others wait.

    No rank is missing there, so one of those in it does not run.
    """
    joined = blame.waiting_ranks.joined
    return mute & joined if joined & accounts.waiting else frozenset()


def busy_are_few(accounts: Accounts) -> bool:
    return bool(accounts.waiting and accounts.busy) and len(accounts.busy) <= max(
        1, int(BUSY_SHARE * (len(accounts.waiting) + len(accounts.busy)))
    )


def is_ring(accounts: Accounts, blame: GraphBlame | None) -> bool:
    return (
        blame is not None
        and blame.kind == "order_inversion"
        and bool(blame.ranks)
        and not ({one.rank for one in blame.ranks} & accounts.busy)
    )


def _remains(findings: Sequence[Finding]) -> Culprits | None:
    """Return the one rank that has not ended, if all others of its node have."""
    lines = [one for one in findings if one.rule == "standing.remains"]
    ranks = {one.rank for one in lines if one.rank is not None}
    if len(ranks) != 1:
        return None
    return Culprits("remains", _all(ranks, BUSY_CONFIDENCE), (), Mechanism.HANG, tuple(lines))


def _stands_apart(findings: Sequence[Finding]) -> Culprits | None:
    """Return the one rank that waits elsewhere in the kernel, where no stack says more."""
    apart = [one for one in findings if one.rule == "standing.apart"]
    if len(apart) != 1 or any(isinstance(one, Stack) for one in findings):
        return None
    ranks = [one.rank for one in apart if one.rank is not None]
    stopped = STOPPED_PID.search(apart[0].evidence.text) is not None
    sure = STOPPED_CONFIDENCE if stopped else CHANNEL_CONFIDENCE
    return Culprits("channel", _all(ranks, sure), (), Mechanism.HANG, tuple(apart))


def _shown(
    accounts: Accounts,
    findings: Sequence[Finding],
    *,
    named: FailureClass,
    supporting: Sequence[RuleVote],
    confidence: float,
) -> Culprits:
    """Return ranks shown by a root of the winning class, by a stack, or by having ended alone."""
    if named is not FailureClass.UNKNOWN:
        # What a rank says of its peers' calls shows that it met them, not that it is the odd one.
        rules = {
            vote.rule.name
            for vote in supporting
            if vote.rule.role is Role.ROOT and not vote.rule.name.startswith(OF_PEERS)
        }
        lines = near_the_fault(
            [one for one in findings if one.rule in rules and one.rank is not None]
        )
        ranks = sorted({one.rank for one in lines if one.rank is not None})
        if ranks and (len(ranks) == 1 or len(ranks) <= EVERYBODY * len(accounts.seen)):
            return Culprits("shown", _all(ranks, confidence), shown=lines)
    outliers = [
        one
        for one in findings
        if one.rule.startswith(("stack.outlier", "stack.divergent")) and one.rank is not None
    ]
    if len({one.rank for one in outliers}) == 1:
        return Culprits(
            "shown",
            _all({one.rank for one in outliers if one.rank is not None}, EXIT_CONFIDENCE),
            (),
            Mechanism.HANG,
            tuple(outliers),
        )
    making = alone_unrecorded(findings)
    if making and accounts.seen and accounts.seen <= accounts.waiting:
        return Culprits("shown", _all(making, ODD_CONFIDENCE), (), Mechanism.HANG)
    alone = frozenset() if _failed_alike(accounts, findings) else ended_alone(findings)
    return Culprits("alone" if alone else "", _all(alone, EXIT_CONFIDENCE))
