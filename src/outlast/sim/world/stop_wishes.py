"""The requests to stop the run, with their times and exit codes."""

from __future__ import annotations

import math


class StopWishes:
    """All wishes to stop the run.

    `asked`: exit code and reason of each wish; `asked_s`: when the first was made.

    `first_stop_s`: when somebody outside the run first asked for it; the policy does not count.
    """

    def __init__(self) -> None:
        self.asked: list[tuple[int, str]] = []
        self.asked_s = 0.0
        self.first_stop_s = math.inf

    def add(self, wish: tuple[int, str], *, now_s: float) -> None:
        """Note a wish: its exit code and its reason."""
        self.asked_s = self.asked_s if self.asked else now_s
        self.asked.append(wish)
