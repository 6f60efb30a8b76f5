"""The results of many runs.

This module is pure: no clock, no files, no torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np

from outlast.model.terms import Cause
from outlast.planner.saves import Floats
from outlast.planner.strikes import Counts, Flags


@dataclass(frozen=True)
class Outcomes:
    """The results of R replicas. Each array has one entry, or one row, for each replica.

    position_s     productive seconds that were kept
    kept_s         the part of `position_s` that was reached when training last went on after an
                   interruption
    seconds        seconds by cause; they sum to the duration
    interruptions  number of failures that struck
    lost_s         (R, C): seconds that failures of each class cost: repeated work, and the recovery
                   until the next failure
    wait_s         seconds for which the run waited for nodes
    waits          number of recoveries that waited for nodes
    beyond_bound   True if there were more lemons than `Scenario.lemons_bound`
    """

    position_s: Floats
    kept_s: Floats
    seconds: dict[Cause, Floats]
    interruptions: Counts
    lost_s: Floats
    wait_s: Floats
    waits: Counts
    beyond_bound: Flags

    @staticmethod
    def joined(parts: Sequence[Outcomes]) -> Outcomes:
        """Return the outcomes of all replicas of these parts, one after the other."""
        if len(parts) == 1:
            return parts[0]
        by_name = {
            one.name: np.concatenate([getattr(part, one.name) for part in parts])
            for one in fields(Outcomes)
            if one.name != "seconds"
        }
        return Outcomes(
            **by_name,
            seconds={
                cause: np.concatenate([part.seconds[cause] for part in parts]) for cause in Cause
            },
        )
