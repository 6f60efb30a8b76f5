"""The verdict, from all findings: class and confidence, mechanism, ranks, nodes and devices.

A class is named if it is more likely right than wrong. The mechanism is how the job ended, and does
not say why. Guilty ranks are shown by the graph of collectives, by a root of the winning class, or
by a stack that stands out. A rank that alone ended by itself is guilty too.

This module is pure: no clock, no files, no torch.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence

from outlast.diagnose.findings import Finding
from outlast.diagnose.fuse.accounts import OUTSIDE, Accounts, take_accounts
from outlast.diagnose.fuse.alone import alone_unrecorded
from outlast.diagnose.fuse.culprits import Culprits, GraphBlame, find_culprits, is_ring
from outlast.diagnose.fuse.desync import Desync, compare_waits
from outlast.diagnose.fuse.explain import (
    VerdictFacts,
    action_of,
    evidence_of,
    next_test_of,
    reason_of,
    refuted_by_of,
)
from outlast.diagnose.fuse.moments import job_runs_on, without_older_stacks
from outlast.diagnose.fuse.nodes_and_devices import places_of
from outlast.diagnose.fuse.time_outs import compare_places
from outlast.diagnose.fuse.verdict_context import (
    cleared_of,
    commands_of,
    hosts_of_pods,
    recovery_asked,
    stacks_of,
    timeline_of,
)
from outlast.diagnose.fuse.weigh import RuleVote, probabilities, rule_of, votes_of
from outlast.diagnose.fuse.weights import NAMED_ABOVE, WEIGHTS, Weights
from outlast.diagnose.interrupted import only_killed
from outlast.diagnose.recovered import finished_well
from outlast.diagnose.rules import Grade
from outlast.diagnose.stacks.reader import Stack
from outlast.diagnose.stacks.tree import compare, of_the_last
from outlast.model.terms import FailureClass, Mechanism
from outlast.model.verdict import Role, Suspect, Verdict

SURE = (Grade.NAMED, Grade.LIKELY)
_UNKNOWN = FailureClass.UNKNOWN
_OF_PROGRAMS = (
    FailureClass.USER_CODE,
    FailureClass.DEPENDENCY,
    FailureClass.SOFTWARE_BUG,
    FailureClass.USER_DATA,
)
_ABORTED = re.compile(r"exitcode {1,6}: -6 ")


def decide(
    findings: Sequence[Finding],
    *,
    blame: GraphBlame | None,
    notes: Sequence[str] = (),
    scheduler: str = "",
    weights: Weights = WEIGHTS,
) -> Verdict:
    """Return one verdict from all that was read.

    `notes` are what was noticed while reading (two jobs mixed, files cut); they end the reason.
    `scheduler` ("slurm", "kubernetes" or "") chooses the commands to paste.

    The findings of one file have to be in its order. The files may be in any order.
    """
    if job_runs_on(findings):
        blame = None  # a rank that is late at one moment of a job that runs on is not to blame
        findings = [one for one in findings if not isinstance(one, Stack)]
        notes = [*notes, "the ranks moved while they were looked at: the job ran on"]
    graph = () if blame is None else blame.findings
    read = without_older_stacks([one for one in findings if one.rule != "own.output"], blame)
    desync = compare_waits(read)
    accounts = take_accounts(read)
    if blame is not None and _ended_while_running(accounts, blame, read):
        blame, graph = None, ()
    places = () if blame is not None else compare_places(read, accounts)
    everything = [*graph, *read, *desync.findings, *places, *_outliers(read, desync)]
    votes = votes_of(_bearing_on_the_class(everything, accounts, blame), weights)
    shares = probabilities(votes, weights)
    best, share = next(iter(shares.items()), (_UNKNOWN, 0.0))
    confidence = min(share, weights.certain)
    named = best if confidence > NAMED_ABOVE else _UNKNOWN
    supporting = [vote for vote in votes if vote.failure_class is best]
    culprits = find_culprits(
        accounts, blame, everything, named=named, supporting=supporting, confidence=confidence
    )
    mechanism = _how_it_ended(culprits, accounts, named, supporting, everything)
    where = places_of(named, supporting, everything, {one.rank for one in culprits.ranks})
    facts = VerdictFacts(
        named,
        best,
        tuple(supporting),
        blame,
        desync,
        culprits,
        mechanism,
        tuple(everything),
        where[0],
    )
    winner = supporting[0].finding if supporting and named is not _UNKNOWN else None
    return Verdict(
        failure_class=named,
        mechanism=mechanism,
        confidence=confidence if named is not _UNKNOWN else min(confidence, NAMED_ABOVE),
        reason=reason_of(facts, notes),
        action=action_of(facts),
        ranks=culprits.ranks,
        suspects=_suspects(blame, desync, culprits),
        nodes=where[0],
        devices=where[1],
        evidence=evidence_of(facts),
        refuted_by=refuted_by_of(facts),
        next_test=next_test_of(facts),
        others=_rest(shares, named, confidence),
        commands=_commands(facts, where[1], winner, scheduler),
        stacks=stacks_of(read, culprits.ranks),
        timeline=timeline_of(read, winner.at_s if winner is not None else None),
        cleared=cleared_of(accounts, culprits.ranks),
    )


def _rest(
    shares: Mapping[FailureClass, float], named: FailureClass, confidence: float
) -> tuple[tuple[FailureClass, float], ...]:
    """Return the classes that are not named, with what is left for them at most.

    A class that its rival's rule allows for competes less with it, so shares may sum to more than
    one. A reader takes them for parts of a whole.
    """
    first = next(iter(shares), None)
    rest = sum(share for name, share in shares.items() if name is not first)
    factor = min(1.0, (1.0 - confidence) / rest) if rest > 0.0 else 1.0
    return tuple(
        (name, share if name is first else share * factor)
        for name, share in shares.items()
        if name is not named
    )


def _commands(
    facts: VerdictFacts, devices: tuple[str, ...], winner: Finding | None, scheduler: str
) -> tuple[str, ...]:
    return commands_of(
        facts.named,
        nodes=facts.nodes,
        devices=devices,
        scheduler=scheduler,
        winner=winner,
        alike=_alike(winner, facts.findings),
        asked=recovery_asked(facts.findings),
        hosts=hosts_of_pods(facts.findings),
    )


def _alike(winner: Finding | None, findings: Sequence[Finding]) -> list[Finding]:
    return [] if winner is None else [one for one in findings if one.rule == winner.rule]


def _outliers(read: Sequence[Finding], desync: Desync) -> tuple[Finding, ...]:
    """Return the stacks that stand out, or that of the only rank that others can wait for.

    That is the one that has not ended, or the one that reports no wait where all others timed out.
    """
    stacks = [one for one in read if isinstance(one, Stack)]
    last = {one.rank for one in read if one.rule == "standing.remains" and one.rank is not None}
    if not last and {one.rank for one in stacks} == {one.rank for one in desync.suspects}:
        last = {one.rank for one in desync.suspects}
    return of_the_last(stacks, *last) if len(last) == 1 else compare(stacks)


def _ended_while_running(
    accounts: Accounts, blame: GraphBlame, findings: Sequence[Finding]
) -> bool:
    """Return True if the launcher was ended from outside, and the graph shows only older dumps.

    Then the ranks ran when they were ended: their recorders had saved different moments.
    """
    from_outside = any(one.rule == OUTSIDE for one in findings)
    blamed = {one.rank for one in blame.ranks}
    only_older = bool(blamed) and blamed <= blame.waiting_ranks.older
    return from_outside and not accounts.by_itself and only_older


def _how_it_ended(
    culprits: Culprits,
    accounts: Accounts,
    named: FailureClass,
    supporting: Sequence[RuleVote],
    findings: Sequence[Finding],
) -> Mechanism | None:
    """Return how the job ended, or None where nothing shows it.

    Ranks that lost a peer and ended by that show no hang, although dumps that were written before
    the end look like a wait. The peers of a rank that hangs do not lose it: they time out, or are
    seen waiting in stacks.
    """
    mechanism = culprits.mechanism or _mechanism(named, supporting, findings)
    waited = any(
        one.mechanism is Mechanism.HANG and not one.rule.startswith("graph.") for one in findings
    )
    exited = any(
        one.rule == "elastic.first_failure" and one.mechanism is Mechanism.EXIT for one in findings
    )
    broke_off = exited and bool(accounts.lost) and not accounts.late and not waited
    return Mechanism.LOST_CONTACT if mechanism is Mechanism.HANG and broke_off else mechanism


def _bearing_on_the_class(
    everything: Sequence[Finding], accounts: Accounts, blame: GraphBlame | None
) -> Sequence[Finding]:
    """Return the findings that may say why the job failed.

    Left out are:

        - the stacks of a stopped process: they show where the signal met the process, not why
        - weak signs, if the job finished, no rank failed, and none is left
        - the order of calls, the waits and the stacks, if a rank failed by its own account: then
          they are consequences of that failure
        - calls out of order, if a stack refutes the ring of ranks that wait for one another
        - faults of programs, if a SIGKILL from outside is all that interrupted the run: a program
          that fails by its own error ends with a code
        - ranks that wait in different places, unless all ranks wait and none has ended or is late.
          Ranks that wait for one rank through different groups are in different places too. This
          finding stays for a rank that waits alone where all ranks have to come: it took another
          path.
    """
    if only_killed(everything):
        everything = [one for one in everything if one.failure_class not in _OF_PROGRAMS]
    stopped = {one.rank for one in everything if one.rule == "standing.stopped"}
    everything = [
        one for one in everything if one.rank not in stopped or not one.rule.startswith("stack.")
    ]
    if blame is not None and blame.kind == "mismatch":
        return everything
    remains = any(one.rule == "standing.remains" for one in everything)
    if finished_well(everything) and not accounts.ended and not remains:
        # Nothing failed that a weak sign could explain.
        return [one for one in everything if (rule := rule_of(one)) is None or rule.grade in SURE]
    if accounts.by_itself:
        return [
            one for one in everything if not one.rule.startswith(("graph.", "stack.", "desync."))
        ]
    explained = (
        (blame is not None and (blame.ranks or blame.suspects))
        or accounts.ended
        or accounts.seen - accounts.waiting
    )
    refuted = {"stack.divergent"} if explained else set()
    if accounts.seen - accounts.waiting:
        refuted.add("stack.lone_p2p")  # a rank without a stack may be the other end
    if not is_ring(accounts, blame):
        refuted.add("graph.order_inversion")
    another = _on_another_path(everything, blame)
    return [
        one
        for one in everything
        if one.rule not in refuted or (one.rule == "stack.divergent" and one.rank in another)
    ]


def _on_another_path(everything: Sequence[Finding], blame: GraphBlame | None) -> frozenset[int]:
    """Return the rank that the others wait for, if it waits alone where all ranks have to come.

    The set is empty if there is no such rank.
    """
    awaited = frozenset(one.rank for one in blame.ranks) if blame is not None else frozenset()
    return awaited & alone_unrecorded(everything)


# --- how it ended ---------------------------------------------------------------------------------


def _mechanism(
    named: FailureClass, supporting: Sequence[RuleVote], findings: Sequence[Finding]
) -> Mechanism | None:
    if named is not _UNKNOWN:
        said = next(
            (
                vote.finding.mechanism or vote.rule.mechanism
                for vote in supporting
                if vote.finding.mechanism or vote.rule.mechanism
            ),
            None,
        )
        if said is not None:
            return said
    ended = [
        one.mechanism
        for one in findings
        if one.rule == "elastic.first_failure"
        and one.mechanism is not None
        and one.evidence.role is not Role.EFFECT
    ]
    seen = Counter(
        one.mechanism
        for one in findings
        if one.mechanism is not None and one.evidence.role is not Role.ADVICE
    )
    signals = [one for one in findings if _is_signal(one)]
    if all(map(_is_abort, signals)):
        if Mechanism.HANG in seen:
            return Mechanism.HANG  # NCCL's watchdog aborts the process in which it gave up
        if signals and Mechanism.EXCEPTION in seen:
            return Mechanism.EXCEPTION  # an exception of C++ that nobody catches aborts its process
    for mechanism in (Mechanism.SIGNAL, Mechanism.CORRUPT):
        if mechanism in seen and mechanism in {
            one.mechanism for one in findings if one.evidence.role is not Role.EFFECT
        }:
            return mechanism
    for mechanism in (Mechanism.HANG, Mechanism.EXCEPTION, Mechanism.LOST_CONTACT, Mechanism.SLOW):
        if mechanism in seen:
            return mechanism
    return ended[0] if ended else next(iter(seen), None)


def _is_signal(one: Finding) -> bool:
    return one.mechanism is Mechanism.SIGNAL and one.evidence.role is not Role.EFFECT


def _is_abort(one: Finding) -> bool:
    told = one.evidence.text
    aborts = one.rule == "exit.abort" or _ABORTED.match(told) is not None
    return aborts or (one.rule == "python.fatal" and "terminate called" in told)


# --- where ----------------------------------------------------------------------------------------


def _suspects(blame: GraphBlame | None, desync: Desync, culprits: Culprits) -> tuple[Suspect, ...]:
    shown = {one.rank for one in culprits.ranks}
    if blame is not None and (blame.ranks or blame.suspects):
        return culprits.suspects
    if culprits.how in ("witnessed", "killed", "raised", "exited", "left", "forced"):
        return ()
    return tuple(one for one in (*culprits.suspects, *desync.suspects) if one.rank not in shown)


__all__ = ["decide", "rule_of"]
