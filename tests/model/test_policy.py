"""A policy that is written and read again is the same. An error names the wrong word and the word
that was probably meant.
"""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlast.errors import UsageError
from outlast.model.policy import (
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

WHOLE = """
schema = 1
dry_run = true
drain = { confidence = 0.9, incidents = 3 }
breaker = { actions = 2, within_s = 60, open_s = 30 }

[budget]
drain = { times = 2, within_s = 86400 }
page = { times = 0, within_s = 1 }

[[rule]]
id = "broken"
when = { class = ["gpu", "hbm"], mechanism = "signal", confidence = 0.5, xid = 79, \
exit_code = [-9, 137], log = "Xid*: 79", incidents = 2, within_s = 60 }
action = "drain"
otherwise = "exclude"
budget = { times = 1, within_s = 3600 }
backoff = { first_s = 60, factor = 3, most_s = 3600 }
dry_run = true

[[rule]]
action = "page"
"""


def rule(text: str) -> str:
    return f'schema = 1\n[[rule]]\nid = "one"\n{text}'


def test_a_policy_is_read_as_it_is_written() -> None:
    when = When(
        (FailureClass.GPU, FailureClass.HBM),
        (Mechanism.SIGNAL,),
        0.5,
        (79,),
        (-9, 137),
        ("Xid*: 79",),
        2,
        60.0,
    )
    assert parse(WHOLE, source="p.toml") == Policy(
        rules=(
            PolicyRule(
                "broken",
                when,
                Action.DRAIN,
                Action.EXCLUDE,
                ActionBudget(1, 3600.0),
                Backoff(60.0, 3.0, 3600.0),
                dry_run=True,
            ),
            PolicyRule("2", When(), Action.PAGE),
        ),
        dry_run=True,
        drain=DrainCondition(0.9, 3),
        breaker=Breaker(2, 60.0, 30.0),
        budgets={Action.DRAIN: ActionBudget(2, 86_400.0), Action.PAGE: ActionBudget(0, 1.0)},
    )


def test_what_is_left_out_is_the_cautious_choice() -> None:
    policy = parse("schema = 1", source="p.toml")
    assert policy == Policy(rules=())
    assert (policy.drain.confidence, policy.drain.incidents, policy.dry_run) == (0.8, 2, False)


@pytest.mark.parametrize(
    ("text", "error", "hint"),
    [
        (
            "schema = 2",
            "p.toml: schema is 2; this version reads 1",
            "begin the file with `schema = 1`",
        ),
        ("schema = true", "schema is True", ""),
        ("schema = ", "p.toml is not TOML", ""),
        ("schema = 1\nrules = []", "p.toml: there is no key 'rules'", "did you mean 'rule'?"),
        ("schema = 1\nrule = 3", "p.toml: rules have to be tables", "[[rule]]"),
        (
            "schema = 1\n[budget]\ndrian = { times = 1, within_s = 1 }",
            "p.toml, budget: there is no key 'drian'",
            "did you mean 'drain'?",
        ),
        (
            "schema = 1\n[budget]\ndrain = { times = 1 }",
            "p.toml, budget of drain: within_s is missing",
            "",
        ),
        (
            "schema = 1\n[budget]\ndrain = { times = -1, within_s = 1 }",
            "budget of drain: times is -1; it is a whole number from 0",
            "",
        ),
        (
            "schema = 1\ndrain = { confidence = 0.5 }",
            "p.toml, drain: confidence is 0.5; no node is drained below 0.8",
            "exclude interrupts nothing",
        ),
        (
            "schema = 1\ndrain = { incidents = 1 }",
            "p.toml, drain: incidents is 1; it is a whole number from 2",
            "",
        ),
        (
            "schema = 1\nbreaker = { open_s = 0 }",
            "p.toml, breaker: open_s is 0; it has to be longer",
            "",
        ),
        ("schema = 1\ndry_run = 1", "p.toml: dry_run is 1; it is true or false", ""),
        (
            rule('acton = "page"'),
            "p.toml, rule one: there is no key 'acton'",
            "did you mean 'action'?",
        ),
        (
            rule(""),
            "p.toml, rule one: there is no action",
            "retry, page, exclude, drain, shrink, stop",
        ),
        (
            rule('action = "drian"'),
            "p.toml, rule one: action is 'drian', which is not known",
            "did you mean 'drain'?",
        ),
        (
            rule('action = "drain"\notherwise = "stop"'),
            "otherwise is 'stop'",
            "retry, page, exclude",
        ),
        (
            rule('action = "page"\nwhen = "gpu"'),
            "p.toml, rule one: when is 'gpu'; it is a table of class, mechanism",
            "",
        ),
        (
            rule('action = "page"\nwhen = { clas = "gpu" }'),
            "p.toml, rule one: when: there is no key 'clas'",
            "did you mean 'class'?",
        ),
        (
            rule('action = "page"\nwhen = { class = "gpus" }'),
            "when: class is 'gpus', which is not known",
            "did you mean 'gpu'?",
        ),
        (
            rule('action = "page"\nwhen = { class = [] }'),
            "when: class is an empty list",
            "leave it out",
        ),
        (
            rule('action = "page"\nwhen = { mechanism = "hung" }'),
            "when: mechanism is 'hung', which is not known",
            "did you mean 'hang'?",
        ),
        (
            rule('action = "page"\nwhen = { confidence = 80 }'),
            "when: confidence is 80; it is a number from 0 to 1",
            "",
        ),
        (
            rule('action = "page"\nwhen = { xid = "79" }'),
            "when: xid is '79'; it is a whole number from 1 to 999",
            "",
        ),
        (rule('action = "page"\nwhen = { exit_code = 999 }'), "when: exit_code is 999", ""),
        (
            rule('action = "page"\nwhen = { log = "*" }'),
            "when: log is '*'; it has to be a text to find in a line",
            "* stands for anything",
        ),
        (rule('action = "page"\nwhen = { incidents = 0 }'), "when: incidents is 0", ""),
        (
            rule('action = "page"\nwhen = { within_s = 60 }'),
            "when: within_s says how far back incidents are counted",
            "incidents = 3",
        ),
        (
            rule('action = "page"\nbackoff = { first_s = 60 }'),
            "rule one: backoff: most_s is missing",
            "",
        ),
        (
            rule('action = "page"\nbackoff = { first_s = 60, most_s = 6 }'),
            "rule one: backoff: first_s is more than most_s",
            "",
        ),
        (
            rule('action = "page"\nbackoff = { first_s = 6, most_s = 60, factor = 0.5 }'),
            "factor is 0.5; it is a number from 1",
            "",
        ),
        (
            rule('action = "page"\n[[rule]]\nid = "one"\naction = "stop"'),
            "several rules have the id 'one'",
            "",
        ),
        (
            rule('action = "page"\n[[rule]]\naction = "stop"'),
            "rule 2: it is never reached, because rule one before it matches everything",
            "put it before",
        ),
        (
            'schema = 1\n[[rule]]\nid = "\\u001b"\naction = "page"',
            "id is '\\x1b'; it is a name",
            "",
        ),
    ],
)
def test_what_is_wrong_is_named_with_its_place_and_what_was_meant(
    text: str, error: str, hint: str
) -> None:
    with pytest.raises(UsageError) as raised:
        parse(text, source="p.toml")
    assert error in raised.value.args[0]
    assert hint in raised.value.hint


@given(
    st.text(max_size=200)
    | st.sampled_from([WHOLE]).flatmap(
        lambda text: st.integers(0, len(text)).map(lambda at: text[:at] + "[" + text[at:])
    )
)
def test_whatever_is_in_a_file_it_is_a_policy_or_an_error_of_usage(text: str) -> None:
    with contextlib.suppress(UsageError):
        parse(text, source="p.toml")


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=5)
    | st.sampled_from(["gpu", "drain", "hang"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["class", "times", "within_s", "first_s", "log"]), inner, max_size=3
        )
    ),
    max_leaves=6,
)


@given(
    st.dictionaries(
        st.sampled_from(["id", "when", "action", "otherwise", "budget", "backoff", "dry_run"]),
        VALUES,
        max_size=4,
    )
)
def test_values_of_any_type_are_refused_by_name(given_rule: dict[str, object]) -> None:
    """The values are written as inline TOML. Values that TOML cannot write (None) are left out."""
    lines = [f"{key} = {_toml(value)}" for key, value in given_rule.items() if value is not None]
    with contextlib.suppress(UsageError):
        parse("schema = 1\n[[rule]]\n" + "\n".join(lines), source="p.toml")


def _toml(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return "[" + ", ".join(_toml(one) for one in value if one is not None) + "]"
    if isinstance(value, dict):
        return (
            "{ "
            + ", ".join(f"{key} = {_toml(one)}" for key, one in value.items() if one is not None)
            + " }"
        )
    if isinstance(value, str):
        return (
            "'"
            + "".join(letter for letter in value if letter.isprintable() and letter != "'")
            + "'"
        )
    return repr(value)


def test_nothing_older_than_its_memory_changes_a_decision_of_a_policy() -> None:
    policy = parse(WHOLE, source="p.toml")
    assert policy.memory_s >= 86_400.0
    backoff = Backoff(60.0, 3.0, 3600.0)
    assert backoff.memory_s >= 2 * 3600.0 * 5  # 60, 180, 540, 1620, 3600
