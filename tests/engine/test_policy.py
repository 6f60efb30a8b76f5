"""What a policy decides: drains need confidence, budgets hold, an open breaker lets no action
through, and a dry run never acts.
"""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlast.engine.default_policy import TEXT, default_policy
from outlast.engine.policy import ActionVerdict, Past, blame, decide_action, past_from, past_of
from outlast.engine.symptoms import exit_codes, has, xids
from outlast.model.policy import (
    DISRUPTIVE,
    OF_NODES,
    Action,
    ActionBudget,
    Backoff,
    Breaker,
    DrainCondition,
    Policy,
    PolicyRule,
    When,
    parse,
)
from outlast.model.terms import FailureClass, Mechanism
from outlast.model.verdict import Blamed, Evidence, Role, Verdict

GPU = When(classes=(FailureClass.GPU,))


def verdict(
    kind: FailureClass = FailureClass.GPU,
    confidence: float = 0.9,
    *lines: str,
    role: Role = Role.ROOT,
) -> Verdict:
    return Verdict(
        kind,
        Mechanism.SIGNAL,
        confidence,
        "why",
        "what",
        evidence=tuple(Evidence("log", 1, line, role) for line in lines),
    )


def policy(*rules: PolicyRule, **more: object) -> Policy:
    return replace(Policy(rules, breaker=Breaker(actions=1000)), **more)


def decide(
    rules: Policy,
    *,
    now_s: float = 0.0,
    seen: Verdict | None = None,
    history: list[Past] | None = None,
    outage: int = 1,
    nodes: str = "a",
    confidence: float | None = None,
    codes: tuple[int, ...] = (),
) -> ActionVerdict:
    seen = seen or verdict()
    blamed = dict.fromkeys(nodes, seen.confidence if confidence is None else confidence)
    return decide_action(
        now_s=now_s,
        verdict=seen,
        history=history or [],
        policy=rules,
        outage=outage,
        blamed=blamed,
        codes=codes,
    )


def course(rules: Policy, *incidents: tuple[float, int, Verdict, str]) -> list[ActionVerdict]:
    """Decide on each incident (second, outage, verdict, nodes) in turn, with all earlier ones in
    the history.
    """
    history: list[Past] = []
    out = []
    for at_s, outage, seen, nodes in incidents:
        out.append(
            decide(rules, now_s=at_s, seen=seen, history=history, outage=outage, nodes=nodes)
        )
        history.append(past_of(out[-1], at_s=at_s, outage=outage))
    return out


# --- which rule -----------------------------------------------------------------------------------


def test_the_first_rule_that_matches_counts() -> None:
    rules = policy(
        PolicyRule("never", When(classes=(FailureClass.HBM,)), Action.STOP),
        PolicyRule("first", GPU, Action.PAGE),
        PolicyRule("second", When(), Action.STOP),
    )
    said = decide(rules)
    assert (said.rule, said.action, said.met) == ("first", Action.PAGE, ("first", "second"))


def test_an_incident_that_no_rule_matches_is_retried() -> None:
    said = decide(policy(PolicyRule("other", When(classes=(FailureClass.HBM,)), Action.STOP)))
    assert (said.action, said.rule, said.acts, said.reason) == (
        Action.RETRY,
        "",
        False,
        "no rule matches",
    )


@pytest.mark.parametrize(
    ("when", "seen", "matches"),
    [
        (When(mechanisms=(Mechanism.HANG,)), verdict(), False),
        (When(mechanisms=(Mechanism.SIGNAL,)), verdict(), True),
        (When(confidence=0.9), verdict(confidence=0.9), True),
        (When(confidence=0.9), verdict(confidence=0.89), False),
        (
            When(xids=(79, 95)),
            verdict(
                FailureClass.GPU,
                0.9,
                "NVRM: Xid (PCI:0000:3b:00): 79, pid=7, GPU has fallen off the bus.",
            ),
            True,
        ),
        (
            When(xids=(79,)),
            verdict(FailureClass.GPU, 0.9, "NVRM: Xid (PCI:0000:3b:00): 95, pid=79"),
            False,
        ),
        (When(exit_codes=(3,)), verdict(FailureClass.GPU, 0.9, "  exitcode  : 3 (pid: 17)"), True),
        (
            When(exit_codes=(137,)),
            verdict(FailureClass.GPU, 0.9, "  exitcode  : -9 (pid: 17)"),
            True,
        ),
        (
            When(exit_codes=(-9,)),
            verdict(FailureClass.GPU, 0.9, "container exited with code 137"),
            True,
        ),
        (When(exit_codes=(3,)), verdict(FailureClass.GPU, 0.9, "took 3 s"), False),
        (
            When(logs=("fallen*bus",)),
            verdict(FailureClass.GPU, 0.9, "GPU has FALLEN off the bus."),
            True,
        ),
        (
            When(logs=("bus*fallen",)),
            verdict(FailureClass.GPU, 0.9, "GPU has fallen off the bus."),
            False,
        ),
        (
            When(logs=("blocking",)),
            verdict(FailureClass.GPU, 0.9, "consider CUDA_LAUNCH_BLOCKING=1", role=Role.ADVICE),
            False,
        ),
    ],
)
def test_a_rule_matches_only_if_all_that_it_names_does(
    when: When, seen: Verdict, matches: bool
) -> None:
    assert (decide(policy(PolicyRule("it", when, Action.PAGE)), seen=seen).rule == "it") is matches


def test_an_exit_code_may_be_known_without_evidence() -> None:
    assert (
        decide(policy(PolicyRule("it", When(exit_codes=(7,)), Action.PAGE)), codes=(7,)).rule
        == "it"
    )


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>'", {79}),
        ("Xid 48", {48}),
        ("XID error: 94 detected", {94}),
        ("SXid (PCI:0000:c4:00.0): 20034", set()),
        ("pid 79 of Xid", set()),
        ("nvidia-nvswitch3: SXid 12028", set()),
    ],
)
def test_xids_are_found_where_they_are_named(line: str, found: set[int]) -> None:
    assert xids((line,)) == found


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("rank 1 (pid 9) ended: exit code 3", {3}),
        ("rank 1 (pid 9) ended: signal 9", {-9}),
        ("exitcode  : -11 (pid: 4)", {-11}),
        ("exit status 139", {-11}),
        ("signal 900", set()),
        ("exit", set()),
        ("Exited with code 1", {1}),
    ],
)
def test_exit_codes_are_found_where_they_are_named(line: str, found: set[int]) -> None:
    assert exit_codes((line,)) == found


@given(st.text("ab*", min_size=1, max_size=6), st.text("abAB", max_size=12))
def test_a_pattern_means_what_a_regular_expression_would(pattern: str, line: str) -> None:
    like = ".*".join(map(re.escape, pattern.split("*")))
    assert has(line, pattern) is (re.search(like, line, re.IGNORECASE) is not None)


# --- counting -------------------------------------------------------------------------------------


def test_the_nth_incident_is_the_nth_on_that_node() -> None:
    rules = policy(PolicyRule("it", When(classes=(FailureClass.GPU,), incidents=2), Action.EXCLUDE))
    said = course(
        rules, (0.0, 1, verdict(), "a"), (1.0, 2, verdict(), "b"), (2.0, 3, verdict(), "a")
    )
    assert [(one.action, one.nodes) for one in said] == [
        (Action.RETRY, ()),
        (Action.RETRY, ()),
        (Action.EXCLUDE, ("a",)),
    ]


def test_incidents_of_one_outage_count_once() -> None:
    rules = policy(PolicyRule("it", GPU, Action.DRAIN))
    weak = verdict(confidence=0.5)
    assert [
        one.action
        for one in course(rules, (0.0, 1, weak, "a"), (1.0, 1, weak, "a"), (2.0, 2, weak, "a"))
    ] == [Action.PAGE, Action.PAGE, Action.DRAIN]


def test_an_incident_that_is_too_long_ago_does_not_count() -> None:
    rules = policy(PolicyRule("it", When(classes=(FailureClass.GPU,), within_s=60.0), Action.DRAIN))
    weak = verdict(confidence=0.5)
    assert course(rules, (0.0, 1, weak, "a"), (60.0, 2, weak, "a"))[-1].action is Action.PAGE
    assert course(rules, (0.0, 1, weak, "a"), (59.0, 2, weak, "a"))[-1].action is Action.DRAIN


def test_two_incidents_of_other_kinds_drain_nothing() -> None:
    """A node on which user code raised twice is not broken."""
    rules = policy(
        PolicyRule("code", When(classes=(FailureClass.USER_CODE,)), Action.PAGE),
        PolicyRule("it", GPU, Action.DRAIN),
    )
    code = verdict(FailureClass.USER_CODE, 0.9)
    assert (
        course(
            rules, (0.0, 1, code, "a"), (1.0, 2, code, "a"), (2.0, 3, verdict(confidence=0.5), "a")
        )[-1].held
        == "confidence"
    )


def test_no_node_is_touched_if_none_is_blamed() -> None:
    said = decide(policy(PolicyRule("it", GPU, Action.DRAIN)), nodes="")
    assert (said.action, said.held, said.nodes) == (Action.PAGE, "nobody", ())
    assert decide(policy(PolicyRule("it", When(incidents=2), Action.EXCLUDE)), nodes="").rule == ""


def test_of_several_nodes_only_those_with_enough_confidence_are_drained() -> None:
    said = decide_action(
        now_s=0.0,
        verdict=verdict(),
        history=[],
        policy=policy(PolicyRule("it", GPU, Action.DRAIN)),
        blamed={"a": 0.9, "b": 0.3},
    )
    assert (said.action, said.nodes) == (Action.DRAIN, ("a",))


def test_a_node_that_is_out_is_not_taken_out_again() -> None:
    said = course(
        policy(PolicyRule("it", GPU, Action.DRAIN)),
        (0.0, 1, verdict(), "a"),
        (1.0, 2, verdict(), "a"),
    )
    assert [(one.action, one.held) for one in said] == [(Action.DRAIN, ""), (Action.PAGE, "done")]


def test_an_excluded_node_can_still_be_drained() -> None:
    rules = policy(
        PolicyRule("slow", When(classes=(FailureClass.STRAGGLER,)), Action.EXCLUDE),
        PolicyRule("it", GPU, Action.DRAIN),
    )
    said = course(
        rules,
        (0.0, 1, verdict(FailureClass.STRAGGLER), "a"),
        (1.0, 2, verdict(), "a"),
        (2.0, 3, verdict(FailureClass.STRAGGLER), "a"),
    )
    assert [one.action for one in said] == [Action.EXCLUDE, Action.DRAIN, Action.PAGE]


# --- who is blamed --------------------------------------------------------------------------------


def test_a_node_is_blamed_as_surely_as_the_least_sure_of_class_and_rank() -> None:
    seen = replace(
        verdict(confidence=0.9),
        ranks=(Blamed(0, 0.6), Blamed(1, 0.95), Blamed(2, 1.0)),
        nodes=("b", "c.long"),
    )
    homes = {0: "a", 1: "b"}
    assert blame(
        seen,
        home_of=lambda rank: homes.get(rank, ""),
        node_of={"b": "b", "c.long": "c"}.__getitem__,
    ) == {"a": 0.6, "b": 0.9, "c": 0.9}


def test_a_rank_without_evidence_of_its_own_is_not_blamed() -> None:
    assert blame(verdict(), home_of=lambda _: "a", node_of=lambda name: name) == {}


# --- gates ----------------------------------------------------------------------------------------


def test_a_budget_is_held_over_its_window() -> None:
    rules = policy(PolicyRule("it", GPU, Action.STOP), budgets={Action.STOP: ActionBudget(1, 60.0)})
    said = course(
        rules, (0.0, 1, verdict(), ""), (59.0, 2, verdict(), ""), (60.0, 3, verdict(), "")
    )
    assert [(one.action, one.held) for one in said] == [
        (Action.STOP, ""),
        (Action.PAGE, "budget"),
        (Action.STOP, ""),
    ]


def test_several_nodes_take_several_tokens_and_all_or_none_go() -> None:
    rules = policy(
        PolicyRule("it", GPU, Action.DRAIN), budgets={Action.DRAIN: ActionBudget(2, 60.0)}
    )
    assert decide(rules, nodes="ab").nodes == ("a", "b")
    assert decide(rules, nodes="abc").held == "budget"


def test_a_rule_rests_longer_each_time_it_acts_in_a_row() -> None:
    rules = policy(
        PolicyRule("it", GPU, Action.PAGE, backoff=Backoff(10.0, 2.0, 25.0), otherwise=Action.RETRY)
    )
    # it rests for 10, 20, 25, 25 and 25 s; the count starts anew after another 25 s
    seconds = (0, 9, 10, 29, 30, 54, 55, 79, 80, 200, 210)
    said = course(rules, *((float(at_s), at_s, verdict(), "") for at_s in seconds))
    assert [at_s for at_s, one in zip(seconds, said, strict=True) if one.action is Action.PAGE] == [
        0,
        10,
        30,
        55,
        80,
        200,
        210,
    ]


def test_a_breaker_opens_at_one_action_too_many_and_closes_in_time() -> None:
    rules = policy(PolicyRule("it", GPU, Action.STOP), breaker=Breaker(2, 10.0, 100.0))
    said = course(
        rules, *((float(at_s), at_s, verdict(), "") for at_s in (0, 9, 10, 108, 109, 110))
    )
    assert [one.action for one in said] == [
        Action.STOP,
        Action.STOP,
        Action.PAGE,
        Action.PAGE,
        Action.STOP,
        Action.STOP,
    ]
    assert said[2].held == "breaker"


def test_a_breaker_that_opens_at_once_lets_one_through_at_a_time() -> None:
    rules = policy(PolicyRule("it", GPU, Action.STOP), breaker=Breaker(1, 10.0, 100.0))
    assert [
        one.action
        for one in course(rules, *((float(at_s), at_s, verdict(), "") for at_s in (0, 99, 100)))
    ] == [Action.STOP, Action.PAGE, Action.STOP]


def test_pages_get_through_an_open_breaker() -> None:
    rules = policy(
        PolicyRule("stop", GPU, Action.STOP),
        PolicyRule("rest", When(), Action.PAGE),
        breaker=Breaker(1, 10.0, 100.0),
    )
    assert (
        course(rules, (0.0, 1, verdict(), ""), (1.0, 2, verdict(FailureClass.HBM), ""))[-1].held
        == ""
    )


def test_where_the_other_action_is_held_back_too_nothing_is_done() -> None:
    rules = policy(
        PolicyRule("it", GPU, Action.DRAIN), budgets={Action.PAGE: ActionBudget(0, 60.0)}
    )
    said = decide(rules, confidence=0.1)
    assert (said.action, said.held) == (Action.RETRY, "confidence")
    assert "the budget of pages" in said.reason


def test_a_dry_run_says_what_would_have_been_done_and_counts_it() -> None:
    rules = policy(
        PolicyRule("it", GPU, Action.DRAIN),
        dry_run=True,
        budgets={Action.DRAIN: ActionBudget(1, 60.0)},
    )
    said = course(rules, (0.0, 1, verdict(), "a"), (1.0, 2, verdict(), "b"))
    assert [(one.action, one.dry_run, one.acts) for one in said] == [
        (Action.DRAIN, True, False),
        (Action.PAGE, True, False),
    ]
    wet = decide(
        policy(PolicyRule("it", GPU, Action.DRAIN), budgets={Action.DRAIN: ActionBudget(1, 60.0)}),
        now_s=2.0,
        history=[past_of(said[0], at_s=0.0, outage=1)],
    )
    assert wet.action is Action.DRAIN, "what was only said takes nothing from what is done"


# --- whatever comes -------------------------------------------------------------------------------

NODES = "abc"
CLASSES = (FailureClass.GPU, FailureClass.HBM, FailureClass.USER_CODE, FailureClass.UNKNOWN)
SPANS = st.sampled_from((1.0, 5.0, 20.0, 100.0))
BUDGETS = st.builds(ActionBudget, st.integers(0, 3), SPANS)
RULES = st.builds(
    PolicyRule,
    st.just(""),
    st.builds(
        When,
        st.lists(st.sampled_from(CLASSES), max_size=2).map(tuple),
        confidence=st.sampled_from((0.0, 0.5)),
        incidents=st.integers(1, 3),
        within_s=SPANS,
    ),
    st.sampled_from(Action),
    st.sampled_from((Action.RETRY, Action.PAGE, Action.EXCLUDE)),
    st.none() | BUDGETS,
    st.none() | st.builds(Backoff, st.just(1.0), st.sampled_from((1.0, 2.0)), SPANS),
    st.sampled_from((False, False, True)),
)
POLICIES = st.builds(
    Policy,
    st.lists(RULES, min_size=1, max_size=4).map(
        lambda rules: tuple(replace(one, id=str(number)) for number, one in enumerate(rules))
    ),
    st.sampled_from((False, False, True)),
    st.builds(DrainCondition, st.sampled_from((0.8, 0.95)), st.sampled_from((2, 3))),
    st.builds(Breaker, st.integers(1, 4), SPANS, SPANS),
    st.dictionaries(st.sampled_from(Action), BUDGETS, max_size=3),
)
INCIDENTS = st.lists(
    st.tuples(
        st.sampled_from((0.0, 0.5, 1.0, 4.0, 30.0)),
        st.booleans(),
        st.sampled_from(CLASSES),
        st.sampled_from((0.3, 0.5, 0.79, 0.8, 0.95)),
        st.sets(st.sampled_from(NODES), max_size=3),
    ),
    max_size=25,
)
Course = list[tuple[float, int, float, set[str], ActionVerdict]]


def lived(
    rules: Policy, incidents: list[tuple[float, bool, FailureClass, float, set[str]]]
) -> Course:
    """Decide on drawn incidents in turn. Return second, outage, confidence, nodes and decision of
    each.
    """
    out: Course = []
    history: list[Past] = []
    now_s, outage = 0.0, 0
    for wait_s, same, kind, sure, nodes in incidents:
        now_s, outage = now_s + wait_s, outage if same else outage + 1
        confidence = min(sure, 0.5) if kind is FailureClass.UNKNOWN else sure
        seen = verdict(kind, confidence)
        said = decide(
            rules,
            now_s=now_s,
            seen=seen,
            history=history,
            outage=outage,
            nodes="".join(sorted(nodes)),
        )
        again = decide(
            rules,
            now_s=now_s,
            seen=seen,
            history=list(history),
            outage=outage,
            nodes="".join(sorted(nodes)),
        )
        assert said == again, "same input, same action"
        history.append(past_from(said.facts() | {"outage": outage}, at_s=now_s))
        assert history[-1] == past_of(said, at_s=now_s, outage=outage), (
            "what the ledger holds is what was decided"
        )
        out.append((now_s, outage, confidence, nodes, said))
    return out


@given(POLICIES, INCIDENTS)
def test_no_node_is_drained_below_the_confidence_without_two_outages_on_it(
    rules: Policy, incidents: list[tuple[float, bool, FailureClass, float, set[str]]]
) -> None:
    """The test counts all incidents that blamed the node. A rule never counts more than these."""
    outages: dict[str, set[int]] = {}
    for _, outage, confidence, nodes, said in lived(rules, incidents):
        for node in nodes:
            outages.setdefault(node, set()).add(outage)
        if said.action in (Action.DRAIN, Action.SHRINK):
            assert said.nodes
            assert all(
                node in nodes and (confidence >= 0.8 or len(outages[node]) >= 2)
                for node in said.nodes
            )
            assert all(
                confidence >= rules.drain.confidence or len(outages[node]) >= rules.drain.incidents
                for node in said.nodes
            )


@given(POLICIES, INCIDENTS)
def test_no_budget_is_ever_exceeded(
    rules: Policy, incidents: list[tuple[float, bool, FailureClass, float, set[str]]]
) -> None:
    """Method: for each action and each rule, check every window that ends with an action. Dry runs
    do not count.
    """
    done = [(at_s, said) for at_s, _, _, _, said in lived(rules, incidents) if said.acts]
    by_id = {rule.id: rule for rule in rules.rules}
    for index, (at_s, said) in enumerate(done):
        taken = [
            (before_s, one) for before_s, one in done[: index + 1] if one.action is said.action
        ]
        if (budget := rules.budgets.get(said.action)) is not None:
            assert (
                sum(_tokens(one) for before_s, one in taken if at_s - before_s < budget.within_s)
                <= budget.times
            )
        rule = by_id[said.rule]
        if rule.budget is not None and rule.action is said.action:
            assert (
                sum(
                    _tokens(one)
                    for before_s, one in taken
                    if one.rule == rule.id and at_s - before_s < rule.budget.within_s
                )
                <= rule.budget.times
            )


def _tokens(said: ActionVerdict) -> int:
    return len(said.nodes) if said.action in OF_NODES else 1


@given(POLICIES, INCIDENTS)
def test_a_dry_run_never_acts(
    rules: Policy, incidents: list[tuple[float, bool, FailureClass, float, set[str]]]
) -> None:
    dry = {rule.id for rule in rules.rules if rule.dry_run or rules.dry_run}
    assert not [
        said
        for *_, said in lived(rules, incidents)
        if said.acts and (rules.dry_run or said.rule in dry)
    ]


@given(POLICIES, INCIDENTS)
def test_an_open_breaker_lets_nothing_through_until_its_time(
    rules: Policy, incidents: list[tuple[float, bool, FailureClass, float, set[str]]]
) -> None:
    """The breaker is open from the n-th action within its window on."""
    times_s = [
        at_s
        for at_s, _, _, _, said in lived(rules, incidents)
        if said.acts and said.action in DISRUPTIVE
    ]
    breaker, open_until_s = rules.breaker, float("-inf")
    for index, at_s in enumerate(times_s):
        assert at_s >= open_until_s
        if (
            sum(at_s - before_s < breaker.within_s for before_s in times_s[: index + 1])
            >= breaker.actions
        ):
            open_until_s = at_s + breaker.open_s


@given(POLICIES, INCIDENTS)
def test_a_rule_never_acts_while_it_rests(
    rules: Policy, incidents: list[tuple[float, bool, FailureClass, float, set[str]]]
) -> None:
    """Two actions of a rule are at least first_s apart, whatever came before."""
    by_id = {rule.id: rule for rule in rules.rules}
    newest: dict[str, float] = {}
    for at_s, _, _, _, said in lived(rules, incidents):
        if (
            said.acts
            and (rule := by_id[said.rule]).backoff is not None
            and said.action is rule.action
        ):
            assert at_s - newest.get(rule.id, float("-inf")) >= rule.backoff.first_s
            newest[rule.id] = at_s


def test_a_clock_that_was_set_back_gives_no_budget_back() -> None:
    rules = policy(PolicyRule("it", GPU, Action.STOP), budgets={Action.STOP: ActionBudget(1, 60.0)})
    history = [Past(1_000.0, 1, "it", Action.STOP)]
    assert decide(rules, now_s=10.0, history=history, outage=2).held == "budget"


# --- the default ----------------------------------------------------------------------------------


def test_the_default_is_what_its_text_says() -> None:
    assert default_policy() == parse(TEXT, source="x")
    assert not default_policy().dry_run


def test_the_default_policy_does_nothing_for_a_first_unsure_verdict() -> None:
    rules = default_policy()
    assert not [rule for rule in rules.rules if rule.action in (Action.STOP, Action.SHRINK)]
    for kind in FailureClass:
        said = decide(rules, seen=verdict(kind, 0.5), nodes="a")
        assert said.action not in (Action.DRAIN, Action.STOP, Action.SHRINK), kind


def test_the_default_has_a_rule_for_each_class() -> None:
    named = {kind for rule in default_policy().rules for kind in rule.when.classes}
    assert named == set(FailureClass)


def test_the_default_policy_drains_at_most_two_broken_nodes_a_day() -> None:
    said = course(
        default_policy(),
        *((3_600.0 * number, number, verdict(), node) for number, node in enumerate("abc", 1)),
    )
    assert [one.action for one in said] == [Action.DRAIN, Action.DRAIN, Action.PAGE]
