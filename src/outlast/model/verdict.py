"""A verdict, the result of a diagnosis.

It names the guilty ranks and nodes, the class and its confidence, and the evidence. It also says
what would refute it, and what to do.

Confidence is the probability, in [0, 1], that the class is right given all evidence that was read.
For the class `unknown` it is the confidence of the best named class (the first one in `others`),
and at most 0.5.

This module is pure: no clock, no files, no torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from outlast.model.terms import FailureClass, Mechanism

# The version of `Verdict.public()`. Keys may be added within a version. If a key is removed, or its
# meaning changes, there is a new version.
SCHEMA = "outlast.verdict/1"


class Role(str, Enum):
    """The role of a piece of evidence."""

    ROOT = "root"  # it can be the cause
    EFFECT = "effect"  # it follows from something else: teardown, peers of a dead rank
    MESSENGER = "messenger"  # it reports that something failed elsewhere, or earlier
    ADVICE = "advice"  # a hint that is printed beside a failure, and shows nothing by itself


@dataclass(frozen=True, slots=True)
class Evidence:
    """A place in a file of evidence.

    `line` counts from 1, and is None if the file has no lines. `text` is unchanged, so code that
    prints it has to escape it.
    """

    file: str
    line: int | None
    text: str
    role: Role

    def public(self) -> dict[str, object]:
        return {"file": self.file, "line": self.line, "text": self.text, "role": self.role.value}


@dataclass(frozen=True, slots=True)
class Blamed:
    """A rank that the evidence shows as guilty, and the probability that it is."""

    rank: int
    confidence: float


@dataclass(frozen=True, slots=True)
class Suspect:
    """A rank that others wait for and that left no evidence of its own."""

    rank: int
    reason: str


@dataclass(frozen=True, slots=True)
class RankStack:
    """The stack of a guilty rank: its frames as "function (file:line)", innermost first."""

    rank: int
    frames: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Moment:
    """One event of the decisive minute. `at_s` is in Unix seconds."""

    at_s: float
    rank: int | None
    node: str | None
    text: str


@dataclass(frozen=True, slots=True)
class Cleared:
    """Ranks that are taken as innocent, and a sentence that says why."""

    ranks: tuple[int, ...]
    why: str


def summary(verdict: Mapping[str, object]) -> str:
    """Return a verdict (from `Verdict.public`) as one line: class, confidence and reason.

    If the class is not known, the line is only the reason, which says what is known instead.
    """
    name, reason = str(verdict.get("class", "unknown")), str(verdict.get("reason", ""))
    if name == "unknown":
        return reason or "why is unknown"
    sure = verdict.get("confidence")
    how = f" ({sure * 100:.0f} % sure)" if isinstance(sure, (int, float)) else ""
    return f"{name.replace('_', ' ')}{how}: {reason}"


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of a diagnosis.

    reason      the sentence that people read first
    action      what to do now
    next_test   the cheapest test that would tell more
    commands    lines to paste
    stacks      of the guilty ranks
    timeline    the minute around the first sign of failure
    cleared     why other ranks are innocent
    """

    failure_class: FailureClass
    mechanism: Mechanism | None
    confidence: float
    reason: str
    action: str
    ranks: tuple[Blamed, ...] = ()
    suspects: tuple[Suspect, ...] = ()
    nodes: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    evidence: tuple[Evidence, ...] = ()
    refuted_by: str = ""
    next_test: str = ""
    others: tuple[tuple[FailureClass, float], ...] = ()
    commands: tuple[str, ...] = ()
    stacks: tuple[RankStack, ...] = ()
    timeline: tuple[Moment, ...] = ()
    cleared: tuple[Cleared, ...] = ()

    def __post_init__(self) -> None:
        assert 0.0 <= self.confidence <= 1.0, self.confidence
        assert self.failure_class is not FailureClass.UNKNOWN or self.confidence <= 0.5, (
            self.confidence
        )

    def public(self) -> dict[str, object]:
        """Return what `outlast diagnose --json` prints: docs/reference/verdict.schema.json."""
        return {
            "class": self.failure_class.value,
            "mechanism": None if self.mechanism is None else self.mechanism.value,
            "confidence": round(self.confidence, 4),
            "ranks": [{"rank": r.rank, "confidence": round(r.confidence, 4)} for r in self.ranks],
            "suspects": [{"rank": s.rank, "reason": s.reason} for s in self.suspects],
            "nodes": list(self.nodes),
            "devices": list(self.devices),
            "evidence": [e.public() for e in self.evidence],
            "refuted_by": self.refuted_by,
            "next_test": self.next_test,
            "action": self.action,
            "reason": self.reason,
            "others": [{"class": c.value, "confidence": round(p, 4)} for c, p in self.others],
            "commands": list(self.commands),
            "stacks": [{"rank": s.rank, "frames": list(s.frames)} for s in self.stacks],
            "timeline": [
                {"at_s": m.at_s, "rank": m.rank, "node": m.node, "text": m.text}
                for m in self.timeline
            ],
            "cleared": [{"ranks": list(c.ranks), "why": c.why} for c in self.cleared],
            "schema": SCHEMA,
        }
