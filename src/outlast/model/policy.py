"""A policy says what outlast does about an interruption with a verdict, besides recovering.

A policy is data. Live runs, the simulated world and replays read the same policies.

    schema = 1
    # true: decide and record everything, but do nothing (default false)
    dry_run = false
    # a drain needs one of these two; neither may be lower than here
    drain = { confidence = 0.8, incidents = 2 }
    # after this many exclusions, drains, shrinks and stops, there are none for open_s
    breaker = { actions = 3, within_s = 3600, open_s = 3600 }

    [budget]                            # of each action, for all rules together
    drain = { times = 2, within_s = 86400 }

    [[rule]]                            # the first rule that matches counts; if none does: retry
    id = "broken"                       # optional; by default its number
    # see WHEN: all keys have to match, and one value of a list; without `when`, it always matches
    when = { class = ["gpu", "hbm"], confidence = 0.5 }
    action = "drain"                    # see Action
    # retry, page or exclude: what is done if `action` is held back (default "page")
    otherwise = "page"
    budget = { times = 1, within_s = 3600 }                    # of this rule
    # after an action, the rule rests for this long, and longer each time
    backoff = { first_s = 60, factor = 2, most_s = 3600 }
    dry_run = true                      # for this rule only

Times are in seconds, and each window ends now. Each drained node counts as one of `times`. This
module is pure: text in, data out.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from outlast.errors import UsageError
from outlast.model.strict import choice, known, seconds, share, toml, whole
from outlast.model.terms import FailureClass, Mechanism
from outlast.model.time_units import DAY_S

SCHEMA = 1
CONFIDENCE_LEAST, INCIDENTS_LEAST = 0.8, 2  # the lowest values allowed for an automatic drain
EXIT_CODES = range(-64, 256)
XIDS = range(1, 1000)


class Action(str, Enum):
    """The actions of a policy, the mildest first."""

    RETRY = "retry"  # do nothing: the run has already gone on
    PAGE = "page"  # tell a person
    EXCLUDE = "exclude"  # give the node no more work; the ranks on it stay
    DRAIN = "drain"  # the same, and the ranks on it move away after the step in flight
    SHRINK = "shrink"  # go on with fewer ranks, without the node
    STOP = "stop"  # end the run after the step in flight


OF_NODES = (Action.EXCLUDE, Action.DRAIN, Action.SHRINK)
MOVING = (Action.DRAIN, Action.SHRINK)  # these interrupt training to leave a node
DISRUPTIVE = (*OF_NODES, Action.STOP)
MILD = (Action.RETRY, Action.PAGE, Action.EXCLUDE)

WHEN: Mapping[str, str] = {
    "class": "the class of the verdict",
    "mechanism": "the mechanism of the interruption",
    "confidence": "the confidence of the verdict is at least this",
    "xid": "a line of evidence names one of these NVIDIA Xids",
    "exit_code": (
        "a process ended with this code; signal 9 is -9 (minus its number) or 137 (128 more)"
    ),
    "log": "a line of evidence contains this text, in upper or lower case; * stands for anything",
    "incidents": (
        "it is at least the n-th incident that matches the rest; for exclude, drain and shrink: the"
        " n-th on that node"
    ),
    "within_s": "incidents are counted so many seconds back (86400)",
}


@dataclass(frozen=True, slots=True)
class When:
    """The condition of a rule. A field that is empty or None matches everything.

    With `incidents` 1, the first incident matches.
    """

    classes: tuple[FailureClass, ...] = ()
    mechanisms: tuple[Mechanism, ...] = ()
    confidence: float = 0.0
    xids: tuple[int, ...] = ()
    exit_codes: tuple[int, ...] = ()
    logs: tuple[str, ...] = ()
    incidents: int = 1
    within_s: float = DAY_S


@dataclass(frozen=True, slots=True)
class ActionBudget:
    """A limit on how often something may be done: `times` in any `within_s` seconds."""

    times: int
    within_s: float


@dataclass(frozen=True, slots=True)
class Backoff:
    """The time for which a rule rests after it has acted.

    After the n-th action in a row it rests for first_s * factor^(n-1), but at most for most_s. If
    an action comes at least most_s after the end of the rest, a new row begins.
    """

    first_s: float
    factor: float
    most_s: float

    @property
    def memory_s(self) -> float:
        """Return how far back actions matter: after this time, any row rests for most_s."""
        growing = (
            0.0
            if self.factor == 1
            else math.log(self.most_s / self.first_s) / math.log(self.factor)
        )
        return 2 * self.most_s * (2 + math.ceil(growing))


@dataclass(frozen=True, slots=True)
class Breaker:
    """While the breaker is open, no disruptive action is taken.

    It opens with the `actions`-th disruptive action within `within_s`, and closes after `open_s`.
    """

    actions: int = 3
    within_s: float = 3_600.0
    open_s: float = 3_600.0


@dataclass(frozen=True, slots=True)
class DrainCondition:
    """The two conditions of an automatic drain. One of them has to hold."""

    confidence: float = CONFIDENCE_LEAST
    incidents: int = INCIDENTS_LEAST


@dataclass(frozen=True, slots=True)
class PolicyRule:
    """One rule of a policy: when it applies, and what is done then.

    otherwise  what is done if the action is held back, for example because its budget is spent
    """

    id: str
    when: When
    action: Action
    otherwise: Action = Action.PAGE
    budget: ActionBudget | None = None
    backoff: Backoff | None = None
    dry_run: bool = False


@dataclass(frozen=True, slots=True)
class Policy:
    """The rules for what outlast does when an interruption has a verdict.

    `parse` reads a policy from TOML. The rules are tried in their order, and the first one that
    matches decides (`engine.policy.decide_action`). The policy itself does nothing: it is data.

    dry_run  decide and record, but take no action
    drain    how sure a verdict must be before a node is drained
    breaker  stops disruptive actions when there were too many
    budgets  how often each action may be taken
    """

    rules: tuple[PolicyRule, ...]
    dry_run: bool = False
    drain: DrainCondition = DrainCondition()
    breaker: Breaker = Breaker()
    budgets: Mapping[Action, ActionBudget] = field(default_factory=dict)

    @property
    def memory_s(self) -> float:
        """Return how far back a decision looks. Older incidents and actions change nothing."""
        spans = [
            self.breaker.within_s + self.breaker.open_s,
            *(one.within_s for one in self.budgets.values()),
        ]
        for rule in self.rules:
            spans.append(rule.when.within_s)
            spans += [rule.budget.within_s] if rule.budget is not None else []
            spans += [rule.backoff.memory_s] if rule.backoff is not None else []
        return max(spans)


def parse(text: str, *, source: str) -> Policy:
    """Read a policy. Raises UsageError, which names `source`, the rule and the key."""
    given = toml(text, source=source, schema=SCHEMA)
    known(given, ("schema", "dry_run", "drain", "breaker", "budget", "rule"), source)
    rules = given.get("rule", [])
    if not isinstance(rules, list) or not all(isinstance(one, dict) for one in rules):
        raise UsageError(f"{source}: rules have to be tables", hint="write each as `[[rule]]`")
    out = tuple(
        _rule(one, number, f"{source}, rule {one.get('id', number)}")
        for number, one in enumerate(rules, 1)
    )
    _check_order(out, source)
    budgets = _table(
        given.get("budget", {}),
        tuple(action.value for action in Action if action is not Action.RETRY),
        f"{source}, budget",
    )
    return Policy(
        rules=out,
        dry_run=_yes_or_no(given.get("dry_run", False), f"{source}: dry_run"),
        drain=_drain_condition(given.get("drain", {}), f"{source}, drain"),
        breaker=_breaker(given.get("breaker", {}), f"{source}, breaker"),
        budgets={
            Action(name): _budget(one, f"{source}, budget of {name}")
            for name, one in budgets.items()
        },
    )


def _check_order(rules: tuple[PolicyRule, ...], source: str) -> None:
    twice = {one.id for one in rules if sum(other.id == one.id for other in rules) > 1}
    if twice:
        raise UsageError(f"{source}: several rules have the id {min(twice)!r}")
    for before, rule in itertools.pairwise(rules):
        if before.when == When(within_s=before.when.within_s):
            raise UsageError(
                f"{source}, rule {rule.id}: it is never reached, because rule {before.id} before it"
                " matches everything",
                hint="put it before that rule",
            )


def _rule(given: Mapping[str, Any], number: int, where: str) -> PolicyRule:
    known(given, ("id", "when", "action", "otherwise", "budget", "backoff", "dry_run"), where)
    name = given.get("id", str(number))
    if not isinstance(name, str) or not name or not name.isprintable():
        raise UsageError(f"{where}: id is {name!r}; it is a name")
    if "action" not in given:
        raise UsageError(
            f"{where}: there is no action",
            hint=f"one of {', '.join(action.value for action in Action)}",
        )
    otherwise = choice(Action, given.get("otherwise", "page"), f"{where}: otherwise")
    if otherwise not in MILD:
        raise UsageError(
            f"{where}: otherwise is {otherwise.value!r}",
            hint=f"in place of an action: {', '.join(one.value for one in MILD)}",
        )
    return PolicyRule(
        id=name,
        when=_when(given.get("when", {}), f"{where}: when"),
        action=choice(Action, given["action"], f"{where}: action"),
        otherwise=otherwise,
        budget=_budget(given["budget"], f"{where}: budget") if "budget" in given else None,
        backoff=_backoff(given["backoff"], f"{where}: backoff") if "backoff" in given else None,
        dry_run=_yes_or_no(given.get("dry_run", False), f"{where}: dry_run"),
    )


def _when(given: object, where: str) -> When:
    table = _table(given, tuple(WHEN), where)
    if "within_s" in table and "incidents" not in table and len(table) == 1:
        raise UsageError(
            f"{where}: within_s says how far back incidents are counted",
            hint='as in { class = "gpu", incidents = 3, within_s = 3600 }',
        )
    return When(
        classes=tuple(
            choice(FailureClass, one, f"{where}: class")
            for one in _several(table.get("class"), f"{where}: class")
        ),
        mechanisms=tuple(
            choice(Mechanism, one, f"{where}: mechanism")
            for one in _several(table.get("mechanism"), f"{where}: mechanism")
        ),
        confidence=share(table.get("confidence", 0.0), f"{where}: confidence"),
        xids=tuple(
            _number(one, XIDS, f"{where}: xid")
            for one in _several(table.get("xid"), f"{where}: xid")
        ),
        exit_codes=tuple(
            _number(one, EXIT_CODES, f"{where}: exit_code")
            for one in _several(table.get("exit_code"), f"{where}: exit_code")
        ),
        logs=tuple(
            _pattern(one, f"{where}: log") for one in _several(table.get("log"), f"{where}: log")
        ),
        incidents=whole(table.get("incidents", 1), f"{where}: incidents"),
        within_s=_span(table.get("within_s", DAY_S), f"{where}: within_s"),
    )


def _budget(given: object, where: str) -> ActionBudget:
    table = _table(given, ("times", "within_s"), where, all_of_them=True)
    return ActionBudget(
        whole(table["times"], f"{where}: times", least=0),
        _span(table["within_s"], f"{where}: within_s"),
    )


def _backoff(given: object, where: str) -> Backoff:
    table = {"factor": 2} | _table(given, ("first_s", "factor", "most_s"), where)
    _need(table, ("first_s", "most_s"), where)
    first_s, most_s, factor = (
        _span(table["first_s"], f"{where}: first_s"),
        _span(table["most_s"], f"{where}: most_s"),
        table["factor"],
    )
    if type(factor) not in (int, float) or not 1 <= factor <= 1000:
        raise UsageError(f"{where}: factor is {factor!r}; it is a number from 1 to 1000")
    if first_s > most_s:
        raise UsageError(f"{where}: first_s is more than most_s")
    return Backoff(first_s, float(factor), most_s)


def _breaker(given: object, where: str) -> Breaker:
    table, usual = _table(given, ("actions", "within_s", "open_s"), where), Breaker()
    return Breaker(
        whole(table.get("actions", usual.actions), f"{where}: actions"),
        _span(table.get("within_s", usual.within_s), f"{where}: within_s"),
        _span(table.get("open_s", usual.open_s), f"{where}: open_s"),
    )


def _drain_condition(given: object, where: str) -> DrainCondition:
    table = _table(given, ("confidence", "incidents"), where)
    confidence = share(table.get("confidence", CONFIDENCE_LEAST), f"{where}: confidence")
    if confidence < CONFIDENCE_LEAST:
        raise UsageError(
            f"{where}: confidence is {confidence:g}; no node is drained below {CONFIDENCE_LEAST:g}",
            hint="exclude interrupts nothing",
        )
    return DrainCondition(
        confidence,
        whole(
            table.get("incidents", INCIDENTS_LEAST), f"{where}: incidents", least=INCIDENTS_LEAST
        ),
    )


# --- values ---------------------------------------------------------------------------------------


def _several(value: object, where: str) -> tuple[object, ...]:
    """Read one value or a list of them; none where it is left out."""
    if value == []:
        raise UsageError(
            f"{where} is an empty list: nothing would match",
            hint="leave it out if it does not matter",
        )
    return () if value is None else tuple(value) if isinstance(value, list) else (value,)


def _table(
    given: object, keys: tuple[str, ...], where: str, *, all_of_them: bool = False
) -> dict[str, Any]:
    if not isinstance(given, dict):
        raise UsageError(f"{where} is {given!r}; it is a table of {', '.join(keys)}")
    known(given, keys, where)
    if all_of_them:
        _need(given, keys, where)
    return given


def _need(table: Mapping[str, Any], keys: tuple[str, ...], where: str) -> None:
    for key in keys:
        if key not in table:
            raise UsageError(f"{where}: {key} is missing")


def _yes_or_no(value: object, where: str) -> bool:
    if not isinstance(value, bool):
        raise UsageError(f"{where} is {value!r}; it is true or false")
    return value


def _span(value: object, where: str) -> float:
    span_s = seconds(value, where)
    if not span_s:
        raise UsageError(f"{where} is 0; it has to be longer")
    return span_s


def _number(value: object, numbers: range, where: str) -> int:
    if type(value) is not int or value not in numbers:
        raise UsageError(
            f"{where} is {value!r}; it is a whole number from {numbers[0]} to {numbers[-1]}"
        )
    return value


def _pattern(value: object, where: str) -> str:
    if not isinstance(value, str) or not value.replace("*", "").strip():
        raise UsageError(
            f"{where} is {value!r}; it has to be a text to find in a line",
            hint='* stands for anything, as in log = "Xid*: 79"',
        )
    return value
