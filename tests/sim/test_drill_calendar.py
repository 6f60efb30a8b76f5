"""The calendar of a drill: drawn with a seed, whole, and in the time of the plan."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from pathlib import Path

from outlast.model.drills.drill_faults import HOST_KINDS, KINDS, LLAMA3
from outlast.model.drills.drill_plan import NAMED, named, parse
from outlast.model.terms import FailureClass
from outlast.sim.drill_calendar import (
    draw,
    why_left_out,
    without_disks,
    without_hangs,
    without_hosts,
    without_loaders,
    without_slow_disk,
)


def test_the_same_seed_draws_the_same_calendar() -> None:
    for plan in NAMED.values():
        again = [draw(plan, seed=5, world_size=4, spares=1) for _ in range(2)]
        assert again[0] == again[1]
        assert again[0] != draw(plan, seed=6, world_size=4, spares=1)


def test_every_fault_comes_in_the_time_of_the_plan_and_in_order() -> None:
    for plan in NAMED.values():
        faults = draw(plan, seed=1, world_size=4, spares=1).faults
        times_s = [one.at_s for one in faults]
        assert len(faults) == plan.planned_count
        assert times_s == sorted(times_s)  # type: ignore[type-var]
        assert 0.0 <= min(times_s) <= max(times_s) <= plan.length_s  # type: ignore[type-var]
        assert len({one.id for one in faults}) == len(faults)
        assert {one.rank for one in faults if one.kind.struck == "rank"} <= set(range(4))
        assert {one.rank for one in faults if one.kind.struck != "rank"} <= {-1}


def test_llama_3_has_each_row_of_the_table_as_often_as_it_is_printed() -> None:
    faults = draw(NAMED["llama3"], seed=3, world_size=4, spares=1).faults
    counts = Counter(one.stands_for for one in faults)
    for row in LLAMA3:
        planned = 47 if row.stands_for is FailureClass.HOST_MAINTENANCE else 0
        assert counts[row.stands_for] == row.count + planned
    assert sum(bool(one.kind.classes) for one in faults) >= 150, "diagnosis has something to do"


def test_smoke_has_each_kind_once_and_apart() -> None:
    faults = draw(NAMED["smoke"], seed=9, world_size=2, spares=1).faults
    assert sorted(one.kind.name for one in faults) == sorted(KINDS)
    times_s = [one.at_s or 0.0 for one in faults]
    assert min(b - a for a, b in itertools.pairwise(times_s)) > 1.0


def test_without_spares_none_is_struck_and_that_is_counted() -> None:
    calendar = draw(NAMED["smoke"], seed=9, world_size=2, spares=0)
    assert calendar.left_out == {"kill_spare": 1}
    assert len(calendar.faults) == len(KINDS) - 1


def test_waves_lie_closer_than_chance() -> None:
    """Method: the same plan with and without waves; the median distance between neighbours."""
    text = "schema = 1\n[draw]\ncount = 400\nover_s = 4000\nwaves = {}\n"
    median_s = []
    for share in (0.0, 0.6):
        faults = draw(parse(text.format(share), source="x"), seed=2, world_size=4, spares=1).faults
        times_s = [one.at_s or 0.0 for one in faults]
        apart_s = sorted(b - a for a, b in itertools.pairwise(times_s))
        median_s.append(apart_s[len(apart_s) // 2])
    assert median_s[1] < 0.7 * median_s[0]


def test_a_lemon_is_struck_more_often() -> None:
    text = "schema = 1\n[draw]\ncount = 400\nover_s = 4000\nlemon = 0.5\n[draw.kinds]\nkill = 1\n"
    faults = draw(parse(text, source="x"), seed=2, world_size=4, spares=1).faults
    most = Counter(one.rank for one in faults).most_common(2)
    assert most[0][1] > 2 * most[1][1]


def test_faults_that_are_drawn_over_steps_have_a_step_each_and_no_time() -> None:
    text = "schema = 1\n[draw]\ncount = 40\nover_steps = 90\nwaves = 0.5\n"
    faults = draw(parse(text, source="x"), seed=2, world_size=4, spares=1).faults
    steps = [one.at_step or 0 for one in faults]
    assert {one.at_s for one in faults} == {None}
    assert steps == sorted(steps)
    assert min(steps) >= 4
    assert max(steps) <= 90


def test_where_no_hang_is_noticed_none_is_made_and_that_is_said() -> None:
    calendar = without_hangs(draw(NAMED["smoke"], seed=9, world_size=2, spares=1))
    assert calendar.left_out == {"deaf": 1, "hang": 1, "order": 1, "spin": 1}
    assert not {one.kind.name for one in calendar.faults} & set(calendar.left_out)
    assert "--hang-after" in why_left_out("spin")
    assert "more than one host" in why_left_out("lose_node")


def test_where_no_loader_has_workers_none_is_killed_and_that_is_said() -> None:
    calendar = without_loaders(draw(NAMED["smoke"], seed=9, world_size=2, spares=1))
    assert calendar.left_out == {"loader": 1}
    assert len(calendar.faults) == len(KINDS) - 1
    assert "DataLoader" in why_left_out("loader")


def test_a_slow_rank_keeps_5_to_50_percent_of_the_processor() -> None:
    """What is drawn for that changes nothing else of a calendar."""
    faults = draw(NAMED["everything"], seed=1, world_size=4, spares=1).faults
    shares = [one.share for one in faults if one.kind.name == "slow"]
    assert 0.05 <= min(shares) < 0.15
    assert 0.4 < max(shares) <= 0.5


def test_the_plan_of_make_run_ends_before_its_training_does() -> None:
    home = Path(__file__).parents[2]
    plan = parse((home / "examples" / "rehearse.toml").read_text(), source="rehearse.toml")
    faults = draw(plan, seed=7, world_size=4, spares=1).faults
    [steps] = re.findall(r"rehearse\.toml .*--steps (\d+)", (home / "Makefile").read_text())
    assert len(faults) == 12
    assert {one.kind.name for one in faults} == {"kill", "stop"}
    assert max(one.at_step or 0 for one in faults) <= int(steps) - 20


def test_a_host_is_struck_by_a_rank_that_lives_there_or_by_its_number() -> None:
    """The one that leads is struck whatever rank it has. Each is away for a while."""
    plan = named("llama3", hosts=True)
    assert plan is not None
    faults = [one for one in draw(plan, seed=1, world_size=4, spares=1).faults if one.kind.of_host]
    assert {one.kind.name for one in faults} == set(HOST_KINDS) - {"stop_agent", "slow_link"}
    for one in faults:
        assert one.rank == -1 if one.kind.struck == "leader" else 0 <= one.rank < 4
        assert one.for_s > 0
    text = "schema = 1\n[[fault]]\nkind='cut'\ntarget={node = 4}\nwhen={at_s = 1.0}"
    (fixed,) = draw(parse(text, source="x", hosts=True), seed=1, world_size=4, spares=1).faults
    assert (fixed.rank, fixed.node, fixed.for_s) == (-1, 4, 4.0)


def test_without_hosts_their_faults_are_counted_and_the_others_stay() -> None:
    plan = named("smoke", hosts=True)
    assert plan is not None
    calendar = without_hosts(draw(plan, seed=1, world_size=4, spares=1))
    assert calendar.left_out == dict.fromkeys(HOST_KINDS, 1)
    assert sorted(one.kind.name for one in calendar.faults) == sorted(KINDS)


def test_a_disk_is_full_or_slow_and_not_both() -> None:
    """A full disk takes the run's checkpoints into memory. A run without any has neither."""
    text = """
schema = 1
[draw]
count = 40
over_s = 60
[draw.kinds]
{kinds}
"""
    both, slow = (
        draw(parse(text.format(kinds=kinds), source="x"), seed=1, world_size=4, spares=1)
        for kinds in ("full_disk = 1\nslow_disk = 1\nkill = 1", "slow_disk = 1\nkill = 1")
    )
    counts = Counter(one.kind.name for one in both.faults)
    assert set(counts) == {"full_disk", "slow_disk", "kill"}
    assert {one.rank for one in both.faults if one.kind.struck == "disk"} == {-1}
    kept = without_slow_disk(both)
    assert kept.left_out == {"slow_disk": counts["slow_disk"]}
    assert without_slow_disk(slow) == slow
    left = without_disks(both).left_out
    assert left == {name: counts[name] for name in ("full_disk", "slow_disk")}
    for name in left:
        assert "writes no checkpoints" in why_left_out(name)
