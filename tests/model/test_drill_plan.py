"""Plans of drills: plans that are read, plans that are refused, and faults that are left out."""

from __future__ import annotations

import pytest

from outlast.errors import UsageError
from outlast.model.drills import drill_plan
from outlast.model.drills.drill_faults import (
    HOST_KINDS,
    KINDS,
    LLAMA3,
    NOT_HERE,
    ON_ONE_HOST,
    PLANNED,
)
from outlast.model.fault_plan import KINDS as PLAN_KINDS
from outlast.model.terms import Mechanism

PLAN = """
schema = 1
name = "ours"
time_scale = 10
[draw]
count = 4
over_s = 600
waves = 0.5
[draw.kinds]
kill = 3
raise = 1
cut = 1
[[fault]]
kind = "segv"
target = { rank = 1 }
when = { at_s = 900.0 }
[[fault]]
kind = "stop"
target = { rank = 0 }
when = { at_step = 40 }
for_s = 2.5
[[fault]]
kind = "kill"
target = { spare = true }
when = { at_s = 1.0 }
[[fault]]
kind = "lose_node"
target = { node = 0 }
when = { at_s = 1.0 }
"""


def test_a_plan_is_read_and_what_one_host_cannot_have_is_left_out() -> None:
    plan = drill_plan.parse(PLAN, source="plan.toml")
    assert [(one.kind, one.rank, one.at_s, one.at_step) for one in plan.fixed] == [
        ("segv", 1, 900.0, None),
        ("stop", 0, None, 40),
        ("kill_spare", -1, 1.0, None),
    ]
    assert plan.fixed[1].for_s == 2.5
    assert dict(plan.left_out) == {"cut": 1, "lose_node": 1}
    assert plan.planned_count == 4 + 3
    assert plan.length_s == pytest.approx(90.0), "the last fault ends it, not the drawn ones"
    assert drill_plan.scaled(plan, 100.0).length_s == pytest.approx(9.0)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("name = 'x'", "schema"),
        ("schema = 1", "no fault"),
        ("schema = 1\n[draw]\ncount = 0\nover_s = 3", "draw.count"),
        ("schema = 1\n[draw]\ncount = 3", "over_s and over_steps"),
        ("schema = 1\n[draw]\ncount = 3\nover_s = 1\nover_steps = 50", "over_s and over_steps"),
        ("schema = 1\n[draw]\ncount = 3\nover_s = 0", "draw.over_s"),
        ("schema = 1\n[draw]\ncount = 3\nover_steps = 2", "draw.over_steps"),
        ("schema = 1\n[draw]\ncount = 3\nover_s = 1\nwaves = 1.5", "draw.waves"),
        ("schema = 1\n[draw]\ncount = 3\nover_s = 1\nkind = 4", "there is no key 'kind'"),
        ("schema = 1\n[draw]\ncount = 3\nover_s = 1\n[draw.kinds]\nkil = 1", "'kill'"),
        ("schema = 1\n[draw]\ncount = 3\nover_s = 1\n[draw.kinds]\nkill = -1", "kinds.kill"),
        ("schema = 1\ntime_scale = 0\n[draw]\ncount = 3\nover_s = 1", "time_scale"),
        ("schema = 1\n[[fault]]\nkind = 'sgv'\ntarget = {rank = 0}", "'segv'"),
        (
            "schema = 1\n[[fault]]\nkind = 'kill'\ntarget = {rank = 0}\n"
            "when = {on_mark = 'voting'}",
            "at_step",
        ),
        (
            "schema = 1\n[[fault]]\nkind = 'segv'\ntarget = {spare = true}\nwhen = {at_s = 1.0}",
            "spare",
        ),
    ],
)
def test_a_bad_plan_is_refused_with_its_place(text: str, said: str) -> None:
    with pytest.raises(UsageError) as refused:
        drill_plan.parse(text, source="plan.toml")
    assert "plan.toml" in str(refused.value)
    assert said.removeprefix("draw.") in str(refused.value)


def test_the_table_of_llama_3_is_whole() -> None:
    """Method: the published sums are 419 unplanned and 47 planned interruptions, with one row for
    each kind.
    """
    assert sum(one.count for one in LLAMA3) == 419
    assert PLANNED.count == 47
    assert len({one.stands_for for one in LLAMA3}) == len(LLAMA3)
    assert drill_plan.NAMED["llama3"].count == 466
    assert {kind for one in LLAMA3 for kind in one.kinds} <= set(KINDS)


def test_every_kind_of_the_simulator_is_had_or_left_out_by_name() -> None:
    assert set(PLAN_KINDS) <= set(ON_ONE_HOST) | set(NOT_HERE)
    assert not set(ON_ONE_HOST) & set(NOT_HERE)


def test_every_kind_says_how_it_shows() -> None:
    for one in ON_ONE_HOST.values():
        assert one.how
        assert set(one.shows) <= {mechanism.value for mechanism in Mechanism}
        assert one.interrupts or one.passes or one.struck != "rank"


def test_a_plan_may_name_disks_and_damaged_images() -> None:
    """There is one disk. A disk is no process, so no rank is struck."""
    text = """
schema = 1
[[fault]]
kind = "full_disk"
target = { disk = 0 }
when = { at_s = 1.0 }
for_s = 2.0
[[fault]]
kind = "torn_image"
target = { rank = 1 }
when = { at_step = 9 }
"""
    plan = drill_plan.parse(text, source="x")
    assert [(one.kind, one.rank, one.for_s) for one in plan.fixed] == [
        ("full_disk", None, 2.0),
        ("torn_image", 1, 4.0),
    ]
    with pytest.raises(UsageError, match="there is no disk 1"):
        drill_plan.parse(text.replace("disk = 0", "disk = 1"), source="x")
    with pytest.raises(UsageError, match="full_disk cannot strike rank"):
        drill_plan.parse(text.replace("disk = 0", "rank = 0"), source="x")
    drawn = "schema = 1\n[draw]\ncount = 4\nover_s = 9\n[draw.kinds]\nslow_disk = 1"
    assert drill_plan.parse(drawn, source="x").count == 4


def test_on_several_hosts_a_plan_keeps_the_faults_of_hosts() -> None:
    """`stop` of an agent has a kind of its own. What no drill can have is left out as ever."""
    more = """
[[fault]]
kind = "stop"
target = { agent = 1 }
when = { at_s = 3.0 }
for_s = 1.5
[[fault]]
kind = "maintenance"
target = { rank = 1 }
when = { at_s = 4.0 }
[[fault]]
kind = "part"
target = { link = [0, 1] }
when = { at_s = 5.0 }
"""
    plan = drill_plan.parse(PLAN + more, source="plan.toml", hosts=True)
    assert [(one.kind, one.rank, one.node) for one in plan.fixed[3:]] == [
        ("lose_node", None, 0),
        ("stop_agent", None, 1),
        ("maintenance", 1, None),
    ]
    assert plan.fixed[4].for_s == 1.5
    assert "cut" in {name for one in plan.portions for name in one.kinds}
    assert dict(plan.left_out) == {"part": 1}
    here = drill_plan.parse(PLAN + more, source="plan.toml")
    assert dict(here.left_out) == {
        "cut": 1,
        "lose_node": 1,
        "maintenance": 1,
        "part": 1,
        "stop_agent": 1,
    }


def test_a_plan_of_hosts_alone_says_how_to_have_them() -> None:
    text = "schema = 1\n[[fault]]\nkind = 'cut'\ntarget = {node = 1}\nwhen = {at_s = 1.0}"
    with pytest.raises(UsageError, match="no fault that this host can have") as refused:
        drill_plan.parse(text, source="x")
    assert "--hosts" in str(refused.value)
    assert drill_plan.parse(text, source="x", hosts=True).planned_count == 1


@pytest.mark.parametrize("name", list(drill_plan.NAMED))
def test_each_named_plan_strikes_hosts_where_there_are_several(name: str) -> None:
    """As many faults come, by the same classes, and on one host no host is struck.

    Only flipped bits have nothing to do with hosts.
    """
    one, several = drill_plan.named(name), drill_plan.named(name, hosts=True)
    assert one is not None
    assert several is not None
    kinds = {kind for portion in one.portions for kind in portion.kinds} | set(one.each)
    more = {kind for portion in several.portions for kind in portion.kinds} | set(several.each)
    assert not kinds & set(HOST_KINDS)
    assert bool(more & set(HOST_KINDS)) == (name != "silent-corruption")
    assert several.count == one.count
    if name.startswith("llama3"):
        rows = [[(row.stands_for, row.count) for row in plan.portions] for plan in (one, several)]
        assert rows[0] == rows[1]
