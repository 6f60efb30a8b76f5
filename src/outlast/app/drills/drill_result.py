"""What a drill has found: the score, and what the text and the page say beside it."""

from __future__ import annotations

import typing
from dataclasses import dataclass

from outlast.model.drills.drill_score import Outcome
from outlast.model.drills.drill_sides import SideRun


@dataclass(frozen=True, slots=True)
class Charted:
    """One of the runs that lie side by side, for the chart."""

    name: str
    run: SideRun


@dataclass(frozen=True, slots=True)
class Beside:
    """Other launchers under the same faults. `rows`: as `--json` prints them, outlast first."""

    rows: tuple[dict[str, typing.Any], ...]
    shown: tuple[Charted, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Result:
    """A drill that is over.

    facts   the score, as `--json` prints it
    found   what became of each fault
    wrong   what was lost, a sentence each
    notes   what was promised less than usual, and what was left out and why
    varies  the script gives other results each time, so states cannot be compared
    beside  the same faults under other launchers, if that was asked for
    """

    facts: dict[str, typing.Any]
    found: tuple[Outcome, ...]
    wrong: tuple[str, ...]
    notes: tuple[str, ...]
    folder: str
    varies: bool = False
    beside: Beside | None = None
