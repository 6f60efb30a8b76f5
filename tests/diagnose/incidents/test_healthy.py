"""What counts as healthy.

The run itself takes hours and is started by hand: `benchmarks/incidents/healthy.py`.
"""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.incidents.healthy import wrong_with

QUIET: dict[str, Any] = {
    "ranks": [],
    "suspects": [],
    "class": "unknown",
    "confidence": 0.0,
    "reason": "",
}
CALM: dict[str, Any] = {"interruptions": [], "steps": 40, "reason": ""}
HANG = {"mechanism": "hang", "ranks": [1], "step": 7, "reason": "overdue"}


@pytest.mark.parametrize("code", [0, 143])
def test_a_calm_run_is_healthy(code: int) -> None:
    assert wrong_with(code, CALM, QUIET) == []


@pytest.mark.parametrize(
    ("code", "report", "verdict", "said"),
    [
        (1, {}, {}, "exit code 1"),
        (0, {"interruptions": [HANG]}, {}, "hang"),
        (0, {"steps": 0}, {}, "no step"),
        (0, {}, {"ranks": [{"rank": 2, "confidence": 0.6}]}, "blamed"),
        (0, {}, {"suspects": [{"rank": 2, "reason": "no dump"}]}, "blamed"),
        (0, {}, {"class": "network", "confidence": 0.6}, "a cause for nothing"),
    ],
)
def test_a_run_is_not_healthy_for_any_one_of_these(
    code: int, report: dict[str, Any], verdict: dict[str, Any], said: str
) -> None:
    (wrong,) = wrong_with(code, CALM | report, QUIET | verdict)
    assert said in wrong
