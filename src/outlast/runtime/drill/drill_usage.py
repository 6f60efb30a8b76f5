"""Measure the resources of a drill's launchers: the maximum of the first minute, and later use.

A launcher that leaks uses more and more. A look counts only if the run goes on afterwards, because
a launcher releases resources at its end.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from outlast.runtime.drill.striking import Usage

SETTLED_S = 60.0  # what a launcher uses at its end is compared with what it used until then


@dataclass(slots=True)
class _Seen:
    """The looks at one launcher. `last`: the newest one, and the step after which it was."""

    since_s: float
    most: Usage
    last: tuple[Usage, int] | None = None
    counts: Usage | None = None


class UsageWatch:
    """Look at launchers while they run. `look` gets what each uses, by its pid."""

    def __init__(self) -> None:
        self._seen: dict[int, _Seen] = {}

    def look(self, now_s: float, step: int, usages: Mapping[int, Usage]) -> None:
        """Note what is used now. `step`: the newest committed step."""
        for pid, usage in usages.items():
            seen = self._seen.setdefault(pid, _Seen(now_s, usage))
            if now_s - seen.since_s < SETTLED_S:
                seen.most = seen.most.most(usage)
                continue
            if seen.last is not None:
                before, at_step = seen.last
                if step <= at_step:
                    continue
                seen.counts = before
            seen.last = (usage, step)

    @property
    def result(self) -> tuple[Usage, Usage] | None:
        """Return the first minute's maximum, and the last look, of the launcher that lived longest.

        Return None if no launcher lived for longer than that minute.
        """
        lived = [one for one in self._seen.values() if one.counts is not None]
        first = min(lived, key=lambda one: one.since_s, default=None)
        if first is None or first.counts is None:
            return None
        return first.most, first.counts
