"""Recorded verdicts are read as they were written. Anything else raises an error that names the
place.
"""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlast.errors import UsageError
from outlast.model.recorded import Recorded, read_recorded, read_verdict
from outlast.model.terms import FailureClass, Mechanism
from outlast.model.verdict import Blamed, Evidence, Role, Suspect, Verdict

TEXT = st.text(max_size=20)
SHARE = st.integers(0, 10_000).map(lambda share: share / 10_000)
NAMED = tuple(one for one in FailureClass if one is not FailureClass.UNKNOWN)
VERDICTS = st.builds(
    Verdict,
    st.sampled_from(NAMED),
    st.none() | st.sampled_from(Mechanism),
    SHARE,
    TEXT,
    TEXT,
    ranks=st.lists(st.builds(Blamed, st.integers(0, 99), SHARE), max_size=3).map(tuple),
    suspects=st.lists(st.builds(Suspect, st.integers(0, 99), TEXT), max_size=3).map(tuple),
    nodes=st.lists(TEXT, max_size=3).map(tuple),
    devices=st.lists(TEXT, max_size=3).map(tuple),
    evidence=st.lists(
        st.builds(Evidence, TEXT, st.none() | st.integers(0, 9), TEXT, st.sampled_from(Role)),
        max_size=3,
    ).map(tuple),
    refuted_by=TEXT,
    next_test=TEXT,
    others=st.lists(st.tuples(st.sampled_from(FailureClass), SHARE), max_size=2).map(tuple),
)


@given(VERDICTS)
def test_a_verdict_comes_back_as_it_was(verdict: Verdict) -> None:
    assert read_verdict(json.loads(json.dumps(verdict.public())), source="x") == verdict
    assert read_recorded(json.dumps(verdict.public(), indent=2), source="x") == [
        Recorded("x", verdict)
    ]


@given(st.lists(VERDICTS, min_size=2, max_size=4))
def test_one_on_each_line(verdicts: list[Verdict]) -> None:
    text = "\n\n".join(json.dumps(one.public()) for one in verdicts)
    assert [one.verdict for one in read_recorded(text, source="x")] == verdicts


def test_what_the_ledger_holds_has_its_interruption_beside_it() -> None:
    said = {
        "interruption": 7,
        "at_s": 3.5,
        "verdict": {"class": "gpu", "confidence": 0.5},
        "later": "more",
    }
    one = read_recorded(json.dumps(said), source="x")[0]
    assert (one.at_s, one.outage, one.verdict.failure_class) == (3.5, 7, FailureClass.GPU)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", "x is empty"),
        ("[]", "x: it is not a JSON object"),
        ("{}", "x: there is no verdict: it has no class"),
        ('{"class": "gpu"}', "x: confidence is None; it is a number from 0 to 1"),
        ('{"class": "gpu", "confidence": NaN}', "x: confidence is nan"),
        ('{"class": "gpus", "confidence": 1}', "x: class is 'gpus', which is not known"),
        ('{"class": "unknown", "confidence": 0.6}', "it is at most 0.5"),
        ('{"class": "gpu", "confidence": 1, "ranks": [3]}', "x: ranks is not a list of tables"),
        ('{"class": "gpu", "confidence": 1, "nodes": [3]}', "x: nodes is not a list of names"),
        ('{"class": "gpu", "confidence": 1}\n{"class": "gpu"', "x, line 2 is not JSON"),
        (
            '{"class": "gpu", "confidence": 1}\n{"class": "gpu", "confidence": 2}',
            "x, line 2: confidence is 2",
        ),
        ("[" * 100_000, "x, line 1 is not JSON"),
    ],
)
def test_what_is_no_verdict_is_said_with_its_place(text: str, error: str) -> None:
    with pytest.raises(UsageError) as raised:
        read_recorded(text, source="x")
    assert error in raised.value.args[0]


JSON: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | TEXT
    | st.sampled_from(["gpu", "unknown", "root"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["class", "confidence", "rank", "role", "line", "verdict"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=8,
)


@given(
    JSON
    | st.fixed_dictionaries(
        {"class": JSON, "confidence": JSON},
        optional=dict.fromkeys(("ranks", "nodes", "evidence", "others", "at_s"), JSON),
    )
)
def test_whatever_is_said_it_is_a_verdict_or_an_error_of_usage(said: Any) -> None:
    with contextlib.suppress(UsageError):
        read_recorded(json.dumps(said), source="x")
