"""Rare branches name themselves, so that a test can show that simulated lives have been there.

    if member.dead:
        rare("an end is said twice")

Counting is all that this does: it decides nothing, and costs a dictionary's entry.
"""

from __future__ import annotations

from collections import Counter

reached: Counter[str] = Counter()  # of this process; a simulated life begins by clearing it


def rare(name: str) -> None:
    """The branch `name` was taken.

    A name is written once in the source, in quotes, so that it can be listed.
    """
    reached[name] += 1
