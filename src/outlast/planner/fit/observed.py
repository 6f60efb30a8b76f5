"""What was watched, for how long, and what failed.

Ledgers and tables of failures are both brought into this shape before rates are fitted.

Units      seconds on one line of time per source; unit-seconds of exposure (8 GPUs for 2 hours are
           57,600). Ages are since a unit was put into service.

This module is pure: data only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from outlast.model.terms import FailureClass
from outlast.planner.fit.weibull import Lifetimes
from outlast.planner.scenario import Extent, Unit

# What a rate is of, where one can choose: what breaks in each GPU, in each node, or once in a run
# however large it is.
UNIT_OF: Mapping[FailureClass, Unit] = {
    **dict.fromkeys(FailureClass, Unit.GPU),
    **dict.fromkeys(
        (
            FailureClass.NIC,
            FailureClass.SSD,
            FailureClass.HOST_MEMORY,
            FailureClass.CPU,
            FailureClass.SYSTEM_MEMORY,
            FailureClass.POWER_SUPPLY,
            FailureClass.CHASSIS,
            FailureClass.IO_BOARD,
            FailureClass.HOST_MAINTENANCE,
            FailureClass.NETWORK,
        ),
        Unit.NODE,
    ),
    **dict.fromkeys(
        (
            FailureClass.STORAGE,
            FailureClass.DEPENDENCY,
            FailureClass.SOFTWARE_BUG,
            FailureClass.USER_CODE,
            FailureClass.USER_DATA,
        ),
        Unit.RUN,
    ),
}

# What is lost with a failure, if nothing tells: these leave the node as it was, and all others take
# it out for repair.
_PROCESS_ONLY = (
    FailureClass.GPU_OOM,
    FailureClass.HOST_MEMORY,
    FailureClass.DEPENDENCY,
    FailureClass.SOFTWARE_BUG,
    FailureClass.USER_CODE,
    FailureClass.USER_DATA,
    FailureClass.STORAGE,
    FailureClass.UNKNOWN,
)
EXTENT_OF: Mapping[FailureClass, Extent] = {
    one: Extent.PROCESS if one in _PROCESS_ONLY else Extent.NODE for one in FailureClass
}


@dataclass(frozen=True, slots=True)
class ObservedFailure:
    """One failure. `at_s` is on the source's line of time. `unit` is "" if it is not known."""

    at_s: float
    failure_class: FailureClass
    extent: Extent
    unit: str = ""


@dataclass(frozen=True, slots=True)
class Observed:
    """One source's observations. `exposure_s`: unit-seconds by kind of unit, for those watched.

    lives        of each class that was seen, the ages through which units were watched for it;
                 empty where ages are not known
    age_s        mean age at the end of the record of the units that were still watched then; None
                 where ages are not known
    units        how many of each kind were watched at a time (the mean)
    span_s       from the beginning of the record to its end
    limits       what this record cannot tell, a sentence each
    assumptions  what was taken though the record does not say it
    """

    source: str
    failures: tuple[ObservedFailure, ...]
    exposure_s: Mapping[Unit, float]
    span_s: float
    units: Mapping[Unit, float] = field(default_factory=dict)
    lives: Mapping[FailureClass, Lifetimes] = field(default_factory=dict)
    age_s: float | None = None
    limits: tuple[str, ...] = ()
    assumptions: tuple[str, ...] = ()

    def unit_of(self, failure_class: FailureClass, extent: Extent) -> Unit:
        """Return the usual unit of such a failure if it was watched, else the kind that was."""
        usual = Unit.RUN if extent is Extent.RUN else UNIT_OF[failure_class]
        return usual if usual in self.exposure_s else next(iter(self.exposure_s))
