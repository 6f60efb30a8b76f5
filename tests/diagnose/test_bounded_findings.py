"""Findings in bounded memory."""

from __future__ import annotations

import pytest

from outlast.diagnose import bounded_findings
from outlast.diagnose.bounded_findings import BoundedFindings
from outlast.diagnose.findings import Finding
from outlast.model.limits import FINDINGS_FIRST_COUNT, FINDINGS_LAST_COUNT
from outlast.model.verdict import Evidence, Role


def finding(order: int, *, file: str = "a", rule: str = "r", rank: int | None = None) -> Finding:
    return Finding(Evidence(file, order, "text", Role.MESSENGER), rule, order=order, rank=rank)


def test_of_a_line_repeated_100000_times_first_and_last_are_kept() -> None:
    thinned = BoundedFindings()
    thinned.add(finding(order) for order in range(100_000))
    kept = [one.order for one in thinned.all()]
    assert kept == [*range(FINDINGS_FIRST_COUNT), *range(100_000 - FINDINGS_LAST_COUNT, 100_000)]
    assert len(kept) + thinned.dropped_count == 100_000


def test_what_says_something_else_is_kept_beside_it() -> None:
    thinned = BoundedFindings()
    thinned.add(
        finding(order, rank=order % 3, rule="ab"[order % 2], file="xy"[order // 3_000])
        for order in range(6_000)
    )
    assert {(one.evidence.file, one.rule, one.rank) for one in thinned.all()} == {
        (file, rule, rank) for file in "xy" for rule in "ab" for rank in range(3)
    }
    assert [one.evidence.file for one in thinned.all()] == sorted(
        one.evidence.file for one in thinned.all()
    )


def test_there_is_an_end_to_it_whatever_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounded_findings, "FINDINGS_MAX_COUNT", 100)
    thinned = BoundedFindings()
    thinned.add(finding(order, rule=f"r{order}") for order in range(5_000))
    thinned.add(finding(order, rule="r0") for order in range(5_000))
    assert (len(thinned.all()), thinned.dropped_count) == (200, 9_800)
