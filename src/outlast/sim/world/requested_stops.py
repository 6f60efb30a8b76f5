"""The requests to stop the simulated run, with their times and exit codes."""

from __future__ import annotations

import math


class RequestedStops:
    """All requests to stop the run so far.

    asked         exit code and reason of each request
    asked_s       when the first request was made; 0.0 if there is none
    first_stop_s  when the first request from outside the run was made (the policy does not count);
                  infinite if there is none
    """

    def __init__(self) -> None:
        self.asked: list[tuple[int, str]] = []
        self.asked_s = 0.0
        self.first_stop_s = math.inf

    def add(self, request: tuple[int, str], *, now_s: float) -> None:
        """Note a request: its exit code and its reason."""
        self.asked_s = self.asked_s if self.asked else now_s
        self.asked.append(request)
