"""Plans of made incidents, their truth, and what a verdict is worth beside it.

Nothing is started here.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.incidents.judge import judge, missing_of, reached, table
from benchmarks.incidents.plan import JUDGING, KINDS, MESHES, draw, seeds
from benchmarks.incidents.truth import CLASSES, HEDGED, MECHANISMS, MORE_CLASSES, truth_of
from outlast.model.terms import FailureClass, Mechanism


@pytest.mark.parametrize("seed", [0, 7, JUDGING + 5])
def test_the_same_seed_draws_the_same_incident(seed: int) -> None:
    assert draw(seed) == draw(seed)
    assert draw(seed) != draw(seed + len(KINDS))


def test_two_hundred_seeds_have_at_least_ten_of_each_kind_and_layout() -> None:
    for judging in (False, True):
        plans = [draw(seed) for seed in seeds(200, judging=judging)]
        assert {
            kind: sum(plan.kind == kind for plan in plans) >= 10 for kind in KINDS
        } == dict.fromkeys(KINDS, True)
        assert {
            layout: sum(plan.layout == layout for plan in plans) >= 30 for layout in MESHES
        } == dict.fromkeys(MESHES, True)
        assert any(len(plan.strikes) == 2 for plan in plans)
        assert all(
            4 <= plan.world <= 8 and set(plan.ranks) <= set(range(plan.world)) for plan in plans
        )


def test_development_and_judging_share_no_seed() -> None:
    assert not set(seeds(JUDGING, judging=False)) & set(seeds(1000, judging=True))


def test_every_kind_has_a_truth_in_the_words_of_verdicts() -> None:
    """The table of the README has a row for each, too."""
    readme = (Path(__file__).parents[3] / "benchmarks" / "incidents" / "README.md").read_text()
    assert set(CLASSES) == set(MECHANISMS) == set(KINDS)
    named = set().union(*CLASSES.values(), *MORE_CLASSES.values(), *HEDGED.values())
    assert named <= {one.value for one in FailureClass}
    assert set().union(*MECHANISMS.values()) <= {one.value for one in Mechanism}
    assert all(f"| {kind} |" in readme for kind in KINDS)
    assert all(truth_of(draw(seed)).ranks for seed in range(100))


def told(ranks: list[int], hidden: dict[str, str] | None = None, **truth: Any) -> dict[str, Any]:
    given = {
        "ranks": ranks,
        "classes": ["unknown"],
        "mechanisms": ["hang"],
        "hedged": ["host_memory"],
        **truth,
    }
    return {"plan": {"kind": "sleep"}, "truth": given, "hidden": hidden or {}}


def verdict(ranks: list[int], suspects: list[int] | None = None, **more: Any) -> dict[str, Any]:
    people = {
        "ranks": [{"rank": rank, "confidence": 0.9} for rank in ranks],
        "suspects": [{"rank": rank, "reason": "no dump"} for rank in suspects or []],
    }
    return {"class": "unknown", "mechanism": "hang", "confidence": 0.2, **people, **more}


def test_with_all_evidence_only_the_exact_ranks_count() -> None:
    assert judge("a", told([3, 5]), verdict([5, 3])).exact
    for ranks in ([3], [3, 4, 5], []):
        assert not judge("a", told([3, 5]), verdict(ranks)).exact
    assert judge("a", told([3, 5]), verdict([3, 4, 5])).innocents == (4,)


def test_with_lost_evidence_only_the_missing_are_suspected() -> None:
    """A suspect is a good enough answer where evidence was lost."""
    hidden = {"2": "cut", "3": "removed", "4": "anonymous", "6": "renamed"}
    missing = missing_of(told([3], hidden))
    assert missing == {2, 3, 4}
    assert judge("a", told([3], hidden), verdict([], [3, 2]), missing=missing).sound
    assert judge("a", told([3], hidden), verdict([3]), missing=missing).sound
    assert not judge("a", told([3], hidden), verdict([], [2]), missing=missing).sound, (
        "the guilty is not covered"
    )
    assert not judge("a", told([3], hidden), verdict([1], [3]), missing=missing).sound, (
        "an innocent is named"
    )
    assert not judge("a", told([3], hidden), verdict([3], [6]), missing=missing).sound, (
        "whose evidence is there is no suspect"
    )


def test_a_hedged_class_counts_only_when_it_is_not_sure() -> None:
    assert judge(
        "a", told([1]), verdict([1], **{"class": "host_memory", "confidence": 0.79})
    ).class_right
    sure = judge("a", told([1]), verdict([1], **{"class": "host_memory", "confidence": 0.8}))
    assert not sure.class_right
    assert sure.surely_wrong
    assert not judge("a", told([1]), verdict([1], mechanism=None)).mechanism_right


def test_the_table_has_a_line_for_each_kind_and_the_goal_is_both_shares() -> None:
    good, bad = judge("a", told([1]), verdict([1])), judge("b", told([1]), verdict([2]))
    text = table([good, bad], damaged=False)
    assert "sleep" in text
    assert "50.0 %" in text
    assert reached([good] * 98 + [bad] * 2, [good] * 95 + [bad] * 5)
    assert not reached([good] * 97 + [bad] * 3, [good] * 100)
    assert not reached([good] * 100, [good] * 94 + [bad] * 6)
    assert not reached([], [])
