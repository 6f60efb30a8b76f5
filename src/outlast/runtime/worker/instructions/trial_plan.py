"""What `outlast check` asks of the workers that it starts. This module imports no torch."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path

VARIABLE = "OUTLAST_TRIAL"


@dataclass(frozen=True, slots=True)
class TrialPlan:
    """The plan of one trial.

    folder      where workers write
    steps       the script ends after this step
    home        the script's folder
    spare_step  before this step the ranks wait for a spare; 0: they do not wait
    """

    folder: Path
    steps: int
    home: str
    spare_step: int = 0

    @property
    def parked(self) -> Path:
        """Return the file that is created once a spare stands ready."""
        return self.folder / "spare-parked"

    def as_text(self) -> str:
        given = (str(self.folder), self.steps, self.home, self.spare_step)
        return json.dumps(dict(zip(("folder", "steps", "home", "spare_step"), given, strict=True)))


def asked() -> TrialPlan | None:
    """Return the plan in this process's environment, or None if there is none."""
    text = os.environ.get(VARIABLE, "")
    if not text:
        return None
    value = json.loads(text)
    return TrialPlan(Path(value["folder"]), value["steps"], value["home"], value["spare_step"])


def note_parked() -> None:
    """Report that this spare stands ready, if a rank waits for it."""
    if (plan := asked()) is not None:
        plan.parked.touch()
