"""Weigh what the findings say about the class.

Roots are weighed in order of time, effects are removed, and several lines from one source count
once.

This module is pure: no clock, no files, no torch.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from outlast.diagnose.findings import Finding
from outlast.diagnose.fuse.weights import LATER_THAN_S, ONE_SOURCE, SAME_FAULT, Weights, explains
from outlast.diagnose.interrupted import Interrupted
from outlast.diagnose.logs.harmless import ASKED_AGAIN
from outlast.diagnose.logs.tracebacks import RaisedAt
from outlast.diagnose.rules import RULES, Grade, Rule
from outlast.diagnose.rules.xid import EFFECT_OF
from outlast.model.terms import FailureClass, Mechanism
from outlast.model.verdict import Role

# a ledger blames the program for a hang only if no other reason was found
LEDGER = "ledger.interruption"
# "Caught E in replica 0": what raised stands elsewhere, with its own message. Nor is a line clear
# into which another rank wrote the marks of its traceback
UNCLEAR = re.compile(r"\bCaught \w{3,60} in \w|\^\^")
# such an error ends a program at its start, so of several in one file the last one is of today
AT_THE_START = ("config.invalid", "script.missing")
SOFT = frozenset({FailureClass.USER_CODE, FailureClass.USER_DATA, FailureClass.SOFTWARE_BUG})


@dataclass(frozen=True, slots=True)
class RuleVote:
    """The vote of one rule: its first finding, and how sure that makes of its class."""

    finding: Finding
    rule: Rule
    failure_class: FailureClass
    probability: float


def rule_of(one: Finding) -> Rule | None:
    """Return the rule of a finding; an unknown one that points to a class counts as possible.

    A drain that somebody asked for counts as named, because the run knows for certain who asked.
    """
    rule = RULES.get(one.rule)
    if rule is None and one.failure_class is not None:
        return Rule(
            one.rule,
            "",
            one.evidence.role,
            "outlast: a deduction that names its class",
            one.failure_class,
            Grade.NAMED if isinstance(one, Interrupted) and one.drained else Grade.POSSIBLE,
        )
    return rule


def votes_of(findings: Sequence[Finding], weights: Weights) -> list[RuleVote]:
    """Return one vote for each rule that points to a class, strongest first.

    What follows from a stronger root weighs little, and effects weigh nothing.
    """
    by_rule: dict[str, list[Finding]] = defaultdict(list)
    for one in findings:
        by_rule[one.rule].append(one)
    votes = [
        vote
        for name, some in by_rule.items()
        if (vote := _vote(name, some, weights)) is not None and vote.probability > 0.0
    ]
    votes = _without_coded_effects(votes, by_rule)
    # What a person remembers takes nothing from what a program says.
    if any(not vote.finding.doubt for vote in votes):
        votes = [vote for vote in votes if vote.finding.doubt != "remark"]
    roots = [vote for vote in votes if vote.rule.role is Role.ROOT]
    strongest = max((vote.probability for vote in roots), default=0.0)
    if strongest >= weights.grades[Grade.POSSIBLE]:
        votes = [
            vote
            for vote in votes
            if vote.rule.role is Role.ROOT
            or any(root.failure_class is vote.failure_class for root in roots)
        ]
    votes = [
        _placed(vote, [root for root in roots if not root.finding.doubt], weights) for vote in votes
    ]
    # Of equals, the line that names the process goes before the one that only begins the report.
    return sorted(votes, key=lambda vote: (-vote.probability, vote.rule.name == "oom.invoked"))


def _vote(name: str, some: Sequence[Finding], weights: Weights) -> RuleVote | None:
    rule = rule_of(some[0])
    if rule is None or rule.failure_class is None or rule.role in (Role.EFFECT, Role.ADVICE):
        return None
    first = _first(name, some)
    probability = weights.grades[
        Grade.HINT
        if name == LEDGER and rule.failure_class in SOFT and first.mechanism is Mechanism.HANG
        else rule.grade
    ]
    ranks, devices = (
        {one.rank for one in some} - {None},
        {(one.node, one.device) for one in some if one.device},
    )
    # Several ranks that work are not a sign of a hang, and so none of the program's fault.
    if (
        rule.failure_class in SOFT
        and name != "stack.working"
        and (len(ranks) > 1 or (name.startswith("xid.") and len(devices) > 1))
    ):
        probability = 1 - (1 - probability) * weights.shared
    if first.doubt:
        probability *= weights.doubts[first.doubt]
    return RuleVote(first, rule, rule.failure_class, probability)


def _first(name: str, some: Sequence[Finding]) -> Finding:
    """Return the finding of a rule that says most: the first one without a doubt.

    A line in doubt says less than the same line without a doubt, in any order. A line that passes
    an exception on, or that several ranks wrote at once, says less than a clear one.
    """
    if name in AT_THE_START and len({one.evidence.file for one in some}) == 1:
        return min(some, key=lambda one: (bool(one.doubt), -one.order))
    return min(
        some,
        key=lambda one: (
            bool(one.doubt),
            UNCLEAR.search(one.evidence.text) is not None,
            *_moment(one),
        ),
    )


def _moment(one: Finding) -> tuple[bool, float, int]:
    return one.at_s is None, one.at_s or 0.0, one.order


def _without_coded_effects(
    votes: list[RuleVote], by_rule: Mapping[str, Sequence[Finding]]
) -> list[RuleVote]:
    """Leave out Xids that another Xid on the same node explains."""
    kept = []
    for vote in votes:
        code = vote.rule.name[4:] if vote.rule.name.startswith("xid.") else ""
        causes = EFFECT_OF.get(int(code), ()) if code.isdigit() else ()
        here = {one.node for one in by_rule[vote.rule.name]}
        if not any(
            f"xid.{cause}" in by_rule and here & {one.node for one in by_rule[f"xid.{cause}"]}
            for cause in causes
        ):
            kept.append(vote)
    return kept


def before(one: Finding, other: Finding) -> bool | None:
    """Return whether one finding came before another, or None if nothing tells.

    The clock decides, or else the place in the same file.
    """
    if (
        one.evidence.file == other.evidence.file
        and one.at_s is not None
        and other.at_s is not None
        and one.at_s != other.at_s
    ):
        return one.at_s < other.at_s
    if (
        one.at_s is not None
        and other.at_s is not None
        and abs(one.at_s - other.at_s) > LATER_THAN_S
    ):
        return one.at_s < other.at_s
    if one.evidence.file == other.evidence.file:
        return one.order < other.order
    return None


def _placed(vote: RuleVote, roots: Sequence[RuleVote], weights: Weights) -> RuleVote:
    """Return the vote, discounted if another root explains it or came first."""
    factor = 1.0
    for root in roots:
        if (
            root.failure_class is vote.failure_class
            or root.rule.name == vote.rule.name
            or (vote.failure_class in root.rule.also and root.probability < vote.probability)
        ):
            continue
        first = before(root.finding, vote.finding)
        if _only_slows(root, vote) or _only_logged(root, vote):
            continue
        if _only_slows(vote, root) or _only_logged(vote, root):
            factor = min(factor, weights.later)
        if _tells_more(root, vote):
            factor = min(factor, weights.explained)  # both tell of one fault
        elif _tells_more(vote, root):
            continue
        elif (
            root.probability >= vote.probability
            and explains(root.failure_class, vote.rule.name)
            and first is not False
            and weights.explained < factor
        ):
            factor = weights.explained
        elif (
            first and weights.later < factor and root.probability >= weights.grades[Grade.POSSIBLE]
        ):
            factor = weights.later
    return RuleVote(vote.finding, vote.rule, vote.failure_class, vote.probability * factor)


def _only_slows(one: RuleVote, other: RuleVote) -> bool:
    """Return True if `one` tells of slowness, which raises no exception of a program."""
    raised = other.failure_class in SOFT and other.rule.mechanism is Mechanism.EXCEPTION
    sure = other.rule.grade in (Grade.NAMED, Grade.LIKELY, Grade.POSSIBLE)
    return one.rule.mechanism is Mechanism.SLOW and raised and sure


def _only_logged(one: RuleVote, other: RuleVote) -> bool:
    """Return True if `one` is a service's refusal in the log, and `other` a rank's exception.

    A client of a service logs its refusal and often goes on without it. What a rank raised after
    that ended the rank.
    """
    if not one.rule.name.startswith(ASKED_AGAIN) or isinstance(one.finding, RaisedAt):
        return False
    raised = isinstance(other.finding, RaisedAt) and other.finding.rank is not None
    return raised and other.rule.grade in (Grade.NAMED, Grade.LIKELY, Grade.POSSIBLE)


def _tells_more(one: RuleVote, other: RuleVote) -> bool:
    """Return True if both votes tell of one fault, and `one` tells more of it.

    A ledger blames the program for every exception; the exception's name and text say more.
    """
    is_ledgers = (
        other.rule.name == LEDGER
        and other.failure_class in SOFT
        and other.finding.mechanism is Mechanism.EXCEPTION
    )
    names_it = one.rule.mechanism is Mechanism.EXCEPTION and one.rule.grade is not Grade.HINT
    return (is_ledgers and names_it) or one.rule.name in SAME_FAULT.get(other.rule.name, ())


def probabilities(votes: Iterable[RuleVote], weights: Weights) -> dict[FailureClass, float]:
    """Return the probability of each class that has a vote, most likely first.

    What is missing to 1 is the probability that none of them is the cause.
    """
    sources: dict[FailureClass, dict[str, float]] = defaultdict(dict)
    kin: dict[FailureClass, set[FailureClass]] = defaultdict(set)
    for vote in votes:
        source = ONE_SOURCE.get(
            vote.rule.name,
            vote.rule.name.partition(".")[0] if vote.rule.grade is Grade.HINT else vote.rule.name,
        )
        if vote.finding.doubt:  # all are in doubt for one reason, and make one another no surer
            source = "killed" if vote.finding.doubt == "untied" else vote.finding.doubt
        said = sources[vote.failure_class]
        said[source] = max(said.get(source, 0.0), vote.probability)
        kin[vote.failure_class].update(vote.rule.also)
    odds: dict[FailureClass, float] = {}
    for name, said in sources.items():
        doubt = 1.0
        for probability in said.values():
            doubt *= 1 - probability
        sure = min(1 - doubt, weights.certain)
        odds[name] = sure / (1 - sure)
    shares: dict[FailureClass, float] = {}
    for name, own in odds.items():
        rivals = sum(
            other * (weights.kin if rival in kin[name] else 1.0)
            for rival, other in odds.items()
            if rival is not name
        )
        shares[name] = own / (1 + own + rivals)
    return dict(sorted(shares.items(), key=lambda item: -item[1]))
