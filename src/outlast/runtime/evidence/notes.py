"""What was left out, and why. It is counted by reason, and a few examples are named."""

from __future__ import annotations

from collections.abc import Sequence

NAMED_COUNT = 3


class Notes:
    """Collect the notes about what was read: what was left out, and what was never there."""

    def __init__(self) -> None:
        self._names: dict[str, list[str]] = {}
        self._counts: dict[str, int] = {}
        self._said: list[str] = []
        self._lacking: list[str] = []

    def skip(self, why: str, name: str) -> None:
        """Note what was left out. `why` completes the sentence "not read: ..."."""
        self._counts[why] = self._counts.get(why, 0) + 1
        names = self._names.setdefault(why, [])
        if len(names) < NAMED_COUNT:
            names.append(name)

    def say(self, text: str) -> None:
        """Add a sentence of its own to the notes."""
        if text not in self._said:
            self._said.append(text)

    def lack(self, what: str) -> None:
        """Note what did not exist and so could not be read.

        The verdict's sentence does not mention it.
        """
        if what not in self._lacking:
            self._lacking.append(what)

    @property
    def said(self) -> tuple[str, ...]:
        return tuple(self._said)

    @property
    def skipped(self) -> tuple[str, ...]:
        skipped = [
            f"not read, {why}: {some(self._names[why], count)}"
            for why, count in sorted(self._counts.items())
        ]
        return (*(f"not collected: {one}" for one in self._lacking), *skipped)


def some(names: Sequence[str], count: int) -> str:
    """Return the first few of `count` names."""
    named = names[:NAMED_COUNT]
    more = count - len(named)
    return ", ".join(named) + (f" and {more:,} more" if more else "")
