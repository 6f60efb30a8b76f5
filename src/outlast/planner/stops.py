"""Return when failures stopped training in each simulated run, and until when.

`monte_carlo.py` sums up the results of many runs. Some questions need the times of each stop: how
power swings when all GPUs stop at once, and how long recoveries take when one follows another.
`run_with_stops` returns these times. It simulates the same runs as Monte Carlo.

Units      Times are seconds of wall-clock time, so maintenance is included.

This module is pure: no clock, no files, no torch.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from outlast.planner.histories import Histories
from outlast.planner.outcomes import Outcomes
from outlast.planner.runs import Runs
from outlast.planner.scenario import Scenario
from outlast.planner.strikes import Strikes


@dataclass(frozen=True, slots=True)
class Stoppage:
    """One time for which failures stopped training.

    A failure during a recovery prolongs the present stop, and does not begin another.

    begin_s  when the first failure struck
    end_s    when training went on; None if the run ended before that
    """

    begin_s: float
    end_s: float | None


def run_with_stops(
    scenario: Scenario, histories: Histories
) -> tuple[Outcomes, tuple[tuple[Stoppage, ...], ...]]:
    """Return the outcome of each replica, and the stops of each replica in their order."""
    strikes = Strikes(scenario, histories)
    runs = Runs(scenario, histories, strikes)
    stops: list[list[tuple[float, float]]] = [[] for _ in range(histories.replicas)]
    for strike in strikes:
        runs.fail(strike)
        struck = np.flatnonzero(strike.strikes)
        for replica, at_s, resumes_s in zip(
            strikes.order[struck].tolist(),
            strike.at_s[struck].tolist(),
            runs.resumes_s[struck].tolist(),
            strict=True,
        ):
            known = stops[replica]
            # If the stop before is still open, this failure belongs to it.
            begin_s = known.pop()[0] if known and at_s < known[-1][1] else at_s
            known.append((begin_s, resumes_s))
    return runs.ended(strikes), tuple(
        tuple(_on_the_wall(scenario, begin_s, end_s) for begin_s, end_s in one) for one in stops
    )


def _on_the_wall(scenario: Scenario, begin_s: float, end_s: float) -> Stoppage:
    """Return the stop in wall-clock time, with the maintenance stops put back in."""
    stops = scenario.maintenance
    is_over = end_s <= stops.worked_s(scenario.job.duration_s)
    return Stoppage(stops.wall_s(begin_s), stops.wall_s(end_s) if is_over else None)
