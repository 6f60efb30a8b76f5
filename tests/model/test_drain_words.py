"""One module writes and reads the reason of a drain, and people are shown what it reads."""

from __future__ import annotations

from typing import Any

import pytest

from outlast.app import words
from outlast.app.page.failed import failed
from outlast.model.drain_words import drain_of, drain_reason

DRAINED = drain_reason("node-b", "asked for by ana: a fan; and dust")
PLAN = "ranks [1] are taken by spares"


@pytest.mark.parametrize(
    ("mechanism", "reason", "found"),
    [
        ("lost_node", f"{DRAINED}; {PLAN}", ("node-b", "asked for by ana: a fan, and dust")),
        ("lost_node", f"no power; {DRAINED}", None),
        ("signal", DRAINED, None),
        ("lost_node", "", None),
    ],
)
def test_a_drain_is_told_from_a_node_that_was_lost(
    mechanism: str, reason: str, found: tuple[str, str] | None
) -> None:
    assert drain_of(mechanism, reason) == found
    one: dict[str, Any] = {"id": 1, "ranks": [1], "mechanism": mechanism, "reason": reason}
    one |= {"detected_s": 1.0, "fault_s": None}
    assert ("drained" in words.began(one)) is (found is not None)
    assert ("moved off node-b, which was drained" in failed(one)) is (found is not None)
