"""Decide by a policy what is done about an incident, given what was done before.

`decide_action` picks the first rule of the policy that matches, and says whether the rule's action
is held back. Four gates can hold an action back: certainty (for drain and shrink), the budgets of
the action and of the rule, the rule's backoff, and the circuit breaker. If a gate does, the rule's
`otherwise` is tried; if that is held back too, nothing is done. A dry run only reports its actions,
but decides as if they had been carried out.

Each earlier decision is a `Past`, the oldest first. If the time of one is later than `now_s`, it
counts as `now_s`. This module is pure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from outlast.engine.symptoms import as_signal, exit_codes, has, lines_of, xids
from outlast.model.policy import (
    DISRUPTIVE,
    MOVING,
    OF_NODES,
    Action,
    ActionBudget,
    Breaker,
    Policy,
    PolicyRule,
    When,
)
from outlast.model.records import Facts
from outlast.model.verdict import Verdict


@dataclass(frozen=True, slots=True)
class ActionVerdict:
    """The decision of a policy about one incident, and the reason.

    rule      the rule that matched; "" if none did
    reason    why, in words for people
    action    what is to be done; RETRY: nothing
    nodes     the nodes to which it is to be done; () if the action is not about nodes
    wanted    the rule's own action, which may have been held back
    held      the first gate that held an action back; "" if none did
    dry_run   the action is only reported
    blamed    the nodes that were blamed. Rules with `incidents` count incidents of each node
    met       the ids of all rules that matched, apart from `incidents`. Each counts this incident
    """

    action: Action
    rule: str
    reason: str
    nodes: tuple[str, ...] = ()
    dry_run: bool = False
    wanted: Action = Action.RETRY
    held: str = ""
    blamed: tuple[str, ...] = ()
    met: tuple[str, ...] = ()

    @property
    def acts(self) -> bool:
        """Return True if the action is to be carried out."""
        return self.action is not Action.RETRY and not self.dry_run

    def facts(self) -> dict[str, object]:
        """Return the verdict as plain data, for the ledger and for programs."""
        return {
            "rule": self.rule,
            "action": self.action.value,
            "nodes": list(self.nodes),
            "reason": self.reason,
            "dry_run": self.dry_run,
            "wanted": self.wanted.value,
            "held": self.held,
            "blamed": list(self.blamed),
            "met": list(self.met),
        }


@dataclass(frozen=True, slots=True)
class Past:
    """A decision that was taken at `at_s`."""

    at_s: float
    outage: int
    rule: str
    action: Action
    nodes: tuple[str, ...] = ()
    dry_run: bool = False
    blamed: tuple[str, ...] = ()
    met: tuple[str, ...] = ()

    @property
    def tokens(self) -> int:
        """Return how many tokens of a budget the decision took."""
        return len(self.nodes) if self.action in OF_NODES else 1


def past_of(decided: ActionVerdict, *, at_s: float, outage: int) -> Past:
    """Return a verdict as a decision of the past, taken at `at_s` in this outage."""
    return Past(
        at_s,
        outage,
        decided.rule,
        decided.action,
        decided.nodes,
        decided.dry_run,
        decided.blamed,
        decided.met,
    )


def past_from(facts: Facts, *, at_s: float) -> Past:
    """Return a decision from the ledger: `ActionVerdict.facts`, and "outage"."""

    def texts(key: str) -> tuple[str, ...]:
        said = facts[key]
        assert isinstance(said, list), said
        return tuple(str(one) for one in said)

    outage = facts["outage"]
    assert isinstance(outage, int), outage
    return Past(
        at_s,
        outage,
        str(facts["rule"]),
        Action(str(facts["action"])),
        texts("nodes"),
        bool(facts["dry_run"]),
        texts("blamed"),
        texts("met"),
    )


def blame(
    verdict: Verdict, *, home_of: Callable[[int], str], node_of: Callable[[str], str]
) -> dict[str, float]:
    """Return the nodes of the guilty ranks, each with the confidence that it is to blame.

    `home_of` returns the node of a rank, and `node_of` the node for a name in the evidence; "" if
    the node is not known. A node is to blame only if its rank is guilty and the class is right, so
    the lower of both confidences counts. Nodes of suspects are not blamed.
    """
    out: dict[str, float] = {}
    for one in verdict.ranks:
        if home := home_of(one.rank):
            out[home] = max(out.get(home, 0.0), min(one.confidence, verdict.confidence))
    for name in verdict.nodes:
        if (node := node_of(name)) and node not in out:
            out[node] = verdict.confidence
    return dict(sorted(out.items()))


def decide_action(
    *,
    now_s: float,
    verdict: Verdict,
    history: Sequence[Past],
    policy: Policy,
    outage: int = 0,
    blamed: Mapping[str, float] | None = None,
    codes: Sequence[int] = (),
) -> ActionVerdict:
    """Decide what is done about an incident, and why. The same input gives the same action.

    history   the earlier decisions, oldest first
    outage    the number of the outage. Incidents before training goes on share one number, and
              count once
    blamed    the nodes that are to blame, as `blame` returns them
    codes     exit codes of processes, in addition to those in the evidence
    """
    past = [replace(one, at_s=now_s) if one.at_s > now_s else one for one in history]
    named = dict(blamed or {})
    met = tuple(rule.id for rule in policy.rules if _applies(rule.when, verdict, codes))
    for rule in policy.rules:
        if rule.id not in met:
            continue
        counts = _counts(rule, now_s, outage, past, named)
        concerned = (
            named if rule.action in OF_NODES and (named or rule.when.incidents > 1) else [""]
        )
        if max((counts[node] for node in concerned), default=0) < rule.when.incidents:
            continue
        return replace(
            _Gates(now_s, policy, rule, past, named, counts).decide(), blamed=tuple(named), met=met
        )
    return ActionVerdict(Action.RETRY, "", "no rule matches", blamed=tuple(named), met=met)


def _applies(when: When, verdict: Verdict, codes: Sequence[int]) -> bool:
    """Return whether a rule matches, apart from its number of incidents."""
    if when.classes and verdict.failure_class not in when.classes:
        return False
    if when.mechanisms and verdict.mechanism not in when.mechanisms:
        return False
    if verdict.confidence < when.confidence:
        return False
    lines = lines_of(verdict)
    if when.xids and not xids(lines).intersection(when.xids):
        return False
    if when.exit_codes and not exit_codes(lines).union(map(as_signal, codes)).intersection(
        map(as_signal, when.exit_codes)
    ):
        return False
    return not when.logs or any(has(line, pattern) for pattern in when.logs for line in lines)


def _counts(
    rule: PolicyRule, now_s: float, outage: int, past: Sequence[Past], blamed: Mapping[str, float]
) -> dict[str, int]:
    """Count the outages for which the rule matched, this one included.

    The result has the number for each blamed node, and the total under "".
    """
    before = [
        one
        for one in past
        if rule.id in one.met and one.outage != outage and now_s - one.at_s < rule.when.within_s
    ]
    return {"": 1 + len({one.outage for one in before})} | {
        node: 1 + len({one.outage for one in before if node in one.blamed}) for node in blamed
    }


@dataclass(frozen=True, slots=True)
class _Gates:
    now_s: float
    policy: Policy
    rule: PolicyRule
    past: Sequence[Past]
    blamed: Mapping[str, float]
    counts: Mapping[str, int]

    @property
    def dry_run(self) -> bool:
        return self.policy.dry_run or self.rule.dry_run

    def decide(self) -> ActionVerdict:
        rule, first = self.rule, ""
        reasons: list[str] = []
        for action in dict.fromkeys((rule.action, rule.otherwise)):
            nodes = self._nodes(action)
            gate, why = self._held(action, nodes)
            if not gate:
                said = f"rule {rule.id}: {self._says(action, nodes)}"
                return ActionVerdict(
                    action,
                    rule.id,
                    "; ".join([*reasons, said]),
                    nodes,
                    self.dry_run,
                    rule.action,
                    first,
                )
            first = first or gate
            reasons.append(f"rule {rule.id} would {action.value}: {why}")
        return ActionVerdict(
            Action.RETRY, rule.id, "; ".join(reasons), (), self.dry_run, rule.action, first
        )

    def _says(self, action: Action, nodes: tuple[str, ...]) -> str:
        said = f"{action.value} {', '.join(nodes)}".strip()
        if action in MOVING:
            said += (
                " ("
                + ", ".join(
                    f"confidence {self.blamed[node]:.2f}, incident {self.counts[node]} there"
                    for node in nodes
                )
                + ")"
            )
        return f"{said} (dry run)" if self.dry_run and action is not Action.RETRY else said

    # --- gates ------------------------------------------------------------------------------------

    def _nodes(self, action: Action) -> tuple[str, ...]:
        """Return the nodes that the action would be done to."""
        if action not in OF_NODES:
            return ()
        needed = self.rule.when.incidents if self.rule.action in OF_NODES else 1
        there = [
            node
            for node in self.blamed
            if self.counts[node] >= needed and not self._is_out(node, action)
        ]
        return tuple(node for node in there if action not in MOVING or self._is_sure(node))

    def _is_sure(self, node: str) -> bool:
        return (
            self.blamed[node] >= self.policy.drain.confidence
            or self.counts[node] >= self.policy.drain.incidents
        )

    def _is_out(self, node: str, action: Action) -> bool:
        """Return whether this action, or a stronger one, was done to the node already."""
        done = MOVING if action in MOVING else OF_NODES
        return any(one.action in done and node in one.nodes for one in self._taken())

    def _taken(self) -> list[Past]:
        """Return the decisions that were carried out; in a dry run also those only reported."""
        return [one for one in self.past if self.dry_run or not one.dry_run]

    def _held(self, action: Action, nodes: tuple[str, ...]) -> tuple[str, str]:
        """Return the gate that holds the action back, and why; ("", "") if none does."""
        if action is Action.RETRY:
            return "", ""
        if action in OF_NODES and not nodes:
            return self._why_no_node(action)
        why = self._spent(
            self.policy.budgets.get(action),
            len(nodes) or 1,
            [one for one in self._taken() if one.action is action],
            f"of {action.value}s",
        )
        if not why and action is self.rule.action:
            why = self._spent(
                self.rule.budget, len(nodes) or 1, self._by_rule(action), "of this rule"
            )
        if why:
            return "budget", why
        if action is self.rule.action and (until_s := self._rests_until_s()) > self.now_s:
            return "backoff", f"it rests for {until_s - self.now_s:.0f} s more"
        if (
            action in DISRUPTIVE
            and (until_s := self._open_until_s(self.policy.breaker)) > self.now_s
        ):
            return (
                "breaker",
                (
                    f"the circuit breaker is open for {until_s - self.now_s:.0f} s more, after"
                    f" {self.policy.breaker.actions} actions in a short time"
                ),
            )
        return "", ""

    def _why_no_node(self, action: Action) -> tuple[str, str]:
        if not self.blamed:
            return "nobody", "the verdict names no node, nor a rank whose node is known"
        left = [
            confidence for node, confidence in self.blamed.items() if not self._is_out(node, action)
        ]
        if action not in MOVING or not left:
            return "done", f"{', '.join(self.blamed)} was taken out before"
        sure, best = self.policy.drain, max(left)
        return (
            "confidence",
            (
                f"confidence {best:.2f} is below {sure.confidence:g}, and there were fewer than"
                f" {sure.incidents} such incidents on one node"
            ),
        )

    def _by_rule(self, action: Action) -> list[Past]:
        return [one for one in self._taken() if one.rule == self.rule.id and one.action is action]

    def _spent(
        self, budget: ActionBudget | None, tokens: int, taken: Sequence[Past], whose: str
    ) -> str:
        """Return why the budget does not suffice; "" if enough is left."""
        if budget is None:
            return ""
        used = sum(one.tokens for one in taken if self.now_s - one.at_s < budget.within_s)
        return (
            f"the budget {whose}, {budget.times} in {budget.within_s:g} s, is spent"
            if used + tokens > budget.times
            else ""
        )

    def _rests_until_s(self) -> float:
        backoff = self.rule.backoff
        until_s, pause_s = float("-inf"), 0.0
        for one in self._by_rule(self.rule.action) if backoff is not None else ():
            assert backoff is not None
            pause_s = (
                min(backoff.most_s, pause_s * backoff.factor)
                if one.at_s < until_s + backoff.most_s
                else backoff.first_s
            )
            until_s = one.at_s + pause_s
        return until_s

    def _open_until_s(self, breaker: Breaker) -> float:
        """Return the time until which the newest action that opened the breaker keeps it open."""
        times_s = [one.at_s for one in self._taken() if one.action in DISRUPTIVE]
        for index in range(len(times_s) - 1, breaker.actions - 2, -1):
            if times_s[index] - times_s[index - breaker.actions + 1] < breaker.within_s:
                return times_s[index] + breaker.open_s
        return float("-inf")
