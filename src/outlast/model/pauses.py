"""Pauses between tries of something that fails again and again."""

from __future__ import annotations


def growing_pause_s(failures: int, *, first_s: float, most_s: float) -> float:
    """Return how long to wait after a number of failures in a row: twice as long each time.

    After no failure or one it is `first_s`. It is never more than `most_s`.
    """
    return min(most_s, first_s * 2.0 ** min(max(0, failures - 1), 30))
