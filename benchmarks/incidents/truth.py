"""What a made incident's evidence supports: the classes that count as right, how it ended, and
which ranks. README.md has it as a table, with the reasons.
"""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.incidents.plan import Plan

SURE = 0.8


@dataclass(frozen=True, slots=True)
class Truth:
    """`hedged`: classes that count only below the confidence SURE."""

    ranks: tuple[int, ...]
    classes: frozenset[str]
    mechanisms: frozenset[str]
    hedged: frozenset[str] = frozenset()

    def public(self) -> dict[str, object]:
        return {
            "ranks": list(self.ranks),
            "classes": sorted(self.classes),
            "mechanisms": sorted(self.mechanisms),
            "hedged": sorted(self.hedged),
        }


CLASSES: dict[str, set[str]] = {
    "sleep": {"user_code", "unknown"},
    "stopped": {"unknown"},
    "interpreter_lock": {"user_code", "software_bug", "unknown"},
    "shape": {"user_code", "software_bug"},
    "order": {"user_code", "software_bug"},
    "uneven": {"user_data", "user_code", "software_bug", "unknown"},
    "loader": {"unknown", "user_code"},
    "disk": {"storage"},
    "killed": {"unknown"},
    "exception": {"user_code"},
}
# Where the variant shows less, or more
MORE_CLASSES: dict[tuple[str, str], set[str]] = {
    ("disk", "full_torch"): {"unknown"},
    ("disk", "limit"): {"user_code", "unknown"},
    ("disk", "limit_torch"): {"user_code", "unknown"},
    ("exception", "data"): {"user_data"},
    ("exception", "code"): {"software_bug"},
}
HEDGED: dict[str, set[str]] = {"loader": {"host_memory"}}
MECHANISMS: dict[str, set[str]] = {
    "sleep": {"hang"},
    "stopped": {"hang", "signal"},
    "interpreter_lock": {"hang"},
    "shape": {"exception", "signal", "hang"},
    "order": {"hang"},
    "uneven": {"exit", "exception", "hang"},
    "loader": {"exception", "signal"},
    "disk": {"exception"},
    "killed": {"signal"},
    "exception": {"exception"},
}


def truth_of(plan: Plan) -> Truth:
    mechanisms = MECHANISMS[plan.kind] | ({"exception"} if plan.timeout_s is not None else set())
    classes = CLASSES[plan.kind] | MORE_CLASSES.get((plan.kind, plan.variant), set())
    return Truth(
        plan.ranks,
        frozenset(classes),
        frozenset(mechanisms),
        frozenset(HEDGED.get(plan.kind, set())),
    )
