"""Findings in bounded memory, because a log may repeat one line a hundred million times.

Findings are alike if they are of one rule, rank, node, device and process group in one file. Of
these the first FINDINGS_FIRST_COUNT and the last FINDINGS_LAST_COUNT are kept. Past
FINDINGS_MAX_COUNT findings in all, only the first of each new kind is kept. Past twice that number,
nothing is. `dropped_count` says how many were not kept.

This module is pure: no clock, no files, no torch.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from outlast.diagnose.findings import Finding
from outlast.model.limits import FINDINGS_FIRST_COUNT, FINDINGS_LAST_COUNT, FINDINGS_MAX_COUNT

_Key = tuple[object, ...]


@dataclass(slots=True)
class _Kept:
    first: list[Finding] = field(default_factory=list)
    last: deque[Finding] = field(default_factory=lambda: deque(maxlen=FINDINGS_LAST_COUNT))


class BoundedFindings:
    """Collect findings, and keep the first and the last of those that are alike."""

    def __init__(self) -> None:
        self._kept: dict[_Key, _Kept] = {}
        self._count = 0
        self.dropped_count = 0

    def add(self, findings: Iterable[Finding]) -> None:
        """Keep the findings as far as the limits allow, and count those that are dropped."""
        for one in findings:
            key = (
                one.evidence.file,
                one.rule,
                one.rank,
                one.node,
                one.device,
                getattr(one, "group", None),
            )
            kept = self._kept.get(key)
            if kept is None and self._count < 2 * FINDINGS_MAX_COUNT:
                kept = self._kept[key] = _Kept()
            if kept is None or (kept.first and self._count >= FINDINGS_MAX_COUNT):
                self.dropped_count += 1
            elif len(kept.first) < FINDINGS_FIRST_COUNT:
                kept.first.append(one)
                self._count += 1
            else:
                full = len(kept.last) == FINDINGS_LAST_COUNT
                kept.last.append(one)
                self._count += not full
                self.dropped_count += full

    def all(self) -> list[Finding]:
        """Return what was kept, in the order of the files as they came and of the lines in each."""
        out: list[Finding] = []
        for kept in self._kept.values():
            out += kept.first
            out += kept.last
        files = {
            name: place
            for place, name in enumerate(dict.fromkeys(one.evidence.file for one in out))
        }
        return sorted(out, key=lambda one: (files[one.evidence.file], one.order))
