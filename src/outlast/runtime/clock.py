"""The clocks. All other modules get the time as an argument."""

from __future__ import annotations

import time


def now_s() -> float:
    """Return CLOCK_MONOTONIC seconds.

    It is one clock for all processes of a node, and it stops while the machine sleeps.
    """
    return time.monotonic()


def thread_s() -> float:
    """Return how many seconds of processor time the calling thread has used."""
    return time.thread_time()


def wall_s() -> float:
    """Return seconds since 1970 (UTC), for people and for file names only: this clock may jump."""
    return time.time()
