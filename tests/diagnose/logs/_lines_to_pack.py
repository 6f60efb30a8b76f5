"""What the tests of packed lines pack: steps, and an exception behind them."""

from __future__ import annotations

STEPS = [f"step {n} loss 2.{n}" for n in range(12)]
RAISED = [
    "Traceback (most recent call last):",
    '  File "/srv/fit.py", line 31, in fit',
    "    check(batch)",
    '  File "/srv/batch.py", line 7, in check',
    "    raise ValueError",
    "ValueError: labels outside of the vocabulary",
]


def stamp(at: int) -> str:
    """Return the time of the line with this number."""
    return f"2026-11-24T02:41:{at:02}.5Z"
