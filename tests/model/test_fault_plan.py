"""A fault plan that is written and read again is the same. An error names the wrong word and the
word that was probably meant.
"""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlast.errors import UsageError
from outlast.model.fault_plan import (
    DISK_KINDS,
    KINDS,
    LINK_KINDS,
    MARKS,
    NODE_KINDS,
    PASSING,
    SAVE_MARKS,
    STAGES,
    PlannedFault,
    parse,
    render,
)

WHOLE = """
schema = 1

[[fault]]
id = "first"
kind = "kill"
target = { rank = 1 }
when = { on_mark = "voting", nth = 2 }
after_s = 0.02
times = 3

[[fault]]
kind = "stop"
target = { spare = true }
when = { at_s = 3 }
for_s = 2.5
needs = "both"

[[fault]]
kind = "lose_store"
target = { store = true }
when = { at_step = 4 }
"""

LINK = """
schema = 1

[[fault]]
kind = "part"
target = { link = [0, 1] }
when = { at_s = 3 }
for_s = 2.5

[[fault]]
kind = "stop"
target = { agent = 2 }
when = { at_s = 3 }
"""


def test_links_and_agents_are_targets() -> None:
    assert parse(LINK, source="plan.toml") == (
        PlannedFault("1", "part", None, at_s=3.0, for_s=2.5, node=0, peer=1),
        PlannedFault("2", "stop", None, at_s=3.0, node=2, agent=True),
    )


def test_a_plan_is_read_as_it_is_written() -> None:
    assert parse(WHOLE, source="plan.toml") == (
        PlannedFault("first", "kill", 1, "voting", 2, after_s=0.02, times=3),
        PlannedFault("2", "stop", -1, at_s=3.0, for_s=2.5),
        PlannedFault("3", "lose_store", None, at_step=4),
    )


def a_fault(number: int) -> st.SearchStrategy[PlannedFault]:
    seconds = st.floats(0, 1e6, allow_nan=False)
    when = st.one_of(
        st.builds(
            lambda mark, nth, times: {"mark": mark, "nth": nth, "times": times},
            st.sampled_from((*MARKS, *SAVE_MARKS, *STAGES)),
            st.integers(1, 9),
            st.integers(1, 3),
        ),
        st.builds(lambda at_s: {"at_s": at_s}, seconds),
        st.builds(lambda step: {"at_step": step}, st.integers(1, 9)),
    )

    def make(
        name: str, kind: str, rank: int, when: dict[str, Any], after_s: float, for_s: float
    ) -> PlannedFault:
        whom: dict[str, Any] = {
            "rank": None if kind in ("lose_store", "lose_coordinator") else rank
        }
        if kind in NODE_KINDS:  # a node by its number, or the one that a rank lives on
            whom = {"rank": None, "node": -rank} if rank <= 0 else {"rank": rank}
        elif kind in LINK_KINDS:
            whom = {"rank": None, "node": abs(rank), "peer": abs(rank) + 1}
        elif kind in DISK_KINDS:
            whom = {"rank": None, "disk": abs(rank)}
        elif kind == "stop" and rank == 0:
            whom = {"rank": None, "node": 3, "agent": True}
        return PlannedFault(
            f"{number}{name}",
            kind,
            **whom,
            **when,
            after_s=after_s,
            **({"for_s": for_s} if kind in PASSING else {}),
        )

    return st.builds(
        make,
        st.text(st.characters(exclude_categories=["Cs"]), max_size=4),
        st.sampled_from(sorted(KINDS)),
        st.integers(-1, 5),
        when,
        seconds,
        seconds,
    )


@given(
    st.integers(0, 3).flatmap(
        lambda count: st.tuples(*(a_fault(number) for number in range(count)))
    )
)
def test_what_is_rendered_is_read_again(faults: tuple[PlannedFault, ...]) -> None:
    assert parse(render(faults), source="plan.toml") == faults


def changed(old: str, new: str) -> str:
    assert old in WHOLE
    return WHOLE.replace(old, new, 1)


@pytest.mark.parametrize(
    ("text", "said", "hint"),
    [
        ("schema = ", "plan.toml is not TOML", ""),
        ("[[fault]]", "plan.toml: schema is None", "begin the file with `schema = 1`"),
        (
            changed("schema = 1", "schema = 2"),
            "plan.toml: schema is 2; this version reads 1",
            "begin the file",
        ),
        (
            changed("schema = 1", "schema = 1\nfaults = 3"),
            "plan.toml: there is no key 'faults'",
            "did you mean 'fault'?",
        ),
        ("schema = 1\nfault = 3", "plan.toml: faults have to be tables", "[[fault]]"),
        (
            changed('"kill"', '"kil"'),
            "plan.toml, fault first: there is no fault kind 'kil'",
            "did you mean 'kill'?",
        ),
        (changed('"kill"', "3"), "there is no fault kind 3", "one of kill, exit"),
        (changed("after_s", "afters"), "there is no key 'afters'", "did you mean 'after_s'?"),
        (
            changed("{ rank = 1 }", "{ rank = -1 }"),
            "fault first: rank is -1; it is a whole number from 0",
            "",
        ),
        (
            changed("{ rank = 1 }", "{ store = true }"),
            "kill cannot strike store",
            "it strikes rank or spare",
        ),
        (
            changed("{ rank = 1 }", "{ node = 1 }"),
            "kill cannot strike node",
            "it strikes rank or spare",
        ),
        (
            changed("{ rank = 1 }", "{ agent = 1 }"),
            "kill cannot strike agent",
            "it strikes rank or spare",
        ),
        (
            changed("{ rank = 1 }", "{ link = [0, 1] }"),
            "kill cannot strike link",
            "it strikes rank or spare",
        ),
        (
            LINK.replace("[0, 1]", "[1, 1]"),
            "link is [1, 1]; it is two different nodes",
            "as in { link = [0, 1] }",
        ),
        (LINK.replace("[0, 1]", "3"), "link is 3; it is two different nodes", ""),
        (LINK.replace("[0, 1]", "[0, 'x']"), "link is 'x'; it is a whole number from 0", ""),
        (LINK.replace("link = [0, 1]", "node = 1"), "part cannot strike node", "it strikes link"),
        (changed("{ rank = 1 }", "{ rank = 1, spare = true }"), "target is", "as in { rank = 1 }"),
        (
            changed("{ spare = true }", "{ spare = false }"),
            "spare has to be true, or to be left out",
            "",
        ),
        (
            changed('on_mark = "voting"', 'on_mark = "votign"'),
            "there is no mark 'votign'",
            "did you mean 'voting'?",
        ),
        (changed("nth = 2", "nth = 0"), "nth is 0; it is a whole number from 1", ""),
        (
            changed("at_s = 3", "at_s = -3"),
            "fault 2: at_s is -3; it is a number of seconds, not below 0",
            "",
        ),
        (changed("at_s = 3", "at_s = nan"), "at_s is nan", ""),
        (changed("{ at_s = 3 }", "{ at_s = 3, at_step = 1 }"), "when is", "one of { on_mark"),
        (changed("{ at_s = 3 }", "{ at_s = 3, nth = 1 }"), "nth counts visits of a mark", ""),
        (
            changed("for_s = 2.5", "for_s = 2.5\ntimes = 2"),
            "times counts visits of a mark",
            "use when = { on_mark",
        ),
        (
            changed("after_s = 0.02", "for_s = 1"),
            "kill does not end by itself, so it has no for_s",
            "",
        ),
        (changed('needs = "both"', 'needs = "none"'), "needs is 'none'", ""),
        (
            changed('"stop"', '"deaf"'),
            "deaf is possible only in the simulated world",
            'needs = "sim"',
        ),
        (
            changed("target = { spare", 'id = "first"\ntarget = { spare'),
            "several faults have the id 'first'",
            "",
        ),
    ],
)
def test_what_is_wrong_is_named(text: str, said: str, hint: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse(text, source="plan.toml")
    assert said in str(caught.value)
    assert hint in caught.value.hint


@given(st.text())
def test_no_text_is_more_than_an_error_of_usage(text: str) -> None:
    with contextlib.suppress(UsageError):
        parse("schema = 1\n" + text, source="plan.toml")
