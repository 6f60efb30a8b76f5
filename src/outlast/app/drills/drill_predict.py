"""The prediction of a drill's ETTR, which is made before its first fault strikes.

Without `--predict` it comes from the calendar and from the undisturbed run (`drill_forecast.py`).
With it, the planner simulates runs with the rates and recoveries that were measured in an earlier
drill. Either way it is written to `prediction.json` before the run under fire begins.
"""

from __future__ import annotations

import typing
from dataclasses import dataclass

from outlast.app import words
from outlast.app.reports.report_facts import report_facts
from outlast.app.reports.report_predict import expected_of
from outlast.model.drills.drill_sides import FIRST_STEPS, SeenStep
from outlast.planner.drill_forecast import Undisturbed, forecast
from outlast.runtime.drill.drill_runs import DrilledRun
from outlast.runtime.ledger.view import look
from outlast.sim.drill_calendar import Calendar

TYPICAL = (
    "the calendar of faults, the undisturbed run and the time that recoveries took on another"
    " machine"
)
TYPICAL_RANGE = "recoveries that take a quarter of that time, and four times as long"
SIMULATED_RANGE = "95 and 5 % of single runs"


@dataclass(frozen=True, slots=True)
class DrillPrediction:
    """The ETTR that is expected, without start-up and shutdown.

    basis    where it comes from
    between  what the range from `low` to `high` stands for
    naive    what a predictor says that does not look at the kinds of faults; None: there is none
    """

    ettr: float
    low: float
    high: float
    basis: str
    between: str
    naive: float | None = None

    def facts(self) -> dict[str, typing.Any]:
        """Return it as `--json` prints it."""
        return {
            "ettr_training": self.ettr,
            "low": self.low,
            "high": self.high,
            "naive": self.naive,
            "basis": self.basis,
            "between": self.between,
        }

    def sentence(self) -> str:
        """Say it, before it is known what comes."""
        return (
            f"predicted: ETTR of {words.percent(self.ettr)} without start-up and shutdown"
            f" ({words.percent(self.low)} to {words.percent(self.high)}), from {self.basis}"
        )


def predict(
    calm: DrilledRun,
    calendar: Calendar,
    *,
    cluster: str | None,
    ranks: int,
    hosts: bool,
    steps: typing.Sequence[SeenStep],
) -> DrillPrediction:
    """Predict the run under fire.

    cluster   the cluster file of --predict
    ranks     of the run
    steps     when each step of the undisturbed run was seen
    """
    if cluster is not None:
        expected = expected_of(
            cluster, gpus=ranks, training_s=calm.trained_s, source=str(calm.path)
        )
        basis = f"{cluster}, by the planner's simulation"
        low, high = expected.ettr_low, expected.ettr_high
        return DrillPrediction(expected.ettr_mean, low, high, basis, SIMULATED_RANGE)
    ettr = report_facts(look(str(calm.path)))["ettr_training"]
    seen = Undisturbed(
        training_s=calm.trained_s,
        step_s=calm.pace_s,
        ettr=1.0 if ettr is None else ettr,
        hosts=hosts,
        restart_s=None if calm.ends else _start_s(steps),
    )
    found = forecast(calendar.faults, seen)
    return DrillPrediction(found.ettr, found.low, found.high, TYPICAL, TYPICAL_RANGE, found.naive)


def _start_s(steps: typing.Sequence[SeenStep]) -> float:
    """Return how long the run took until it trained. The first line is the launcher's start."""
    trains = next((one for one in steps if one.step >= FIRST_STEPS), steps[-1])
    return trains.at_s - steps[0].at_s
