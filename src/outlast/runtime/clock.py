"""The clocks. Everybody else is told the time."""

from __future__ import annotations

import time


def now_s() -> float:
    """CLOCK_MONOTONIC seconds: one clock for all processes of a node; stands still while the
    machine sleeps.
    """
    return time.monotonic()


def wall_s() -> float:
    """Seconds since 1970 (UTC). May jump; only for people and for file names."""
    return time.time()
