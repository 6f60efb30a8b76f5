"""The observations of one source: what was watched, for how long, and what failed.

Ledgers and tables of failures are both converted to this form before rates are fitted.

Units      Times are in seconds, on one time scale for each source. Exposure is in unit-seconds: 8
           GPUs for 2 hours are 57,600. Ages are seconds since a unit was put into service.

This module is pure: data only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from outlast.model.terms import FailureClass
from outlast.planner.fit.weibull import Lifetimes
from outlast.planner.scenario import Extent, Unit

# The usual unit of the rate of each class: classes that break in each GPU, in each node, or once in
# a run of any size.
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

# What is lost with a failure, if the source does not say it. These classes leave the node as it
# was. All others take it out for repair.
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
    """One failure. `at_s` is on the time scale of the source; `unit` is "" if it is not known."""

    at_s: float
    failure_class: FailureClass
    extent: Extent
    unit: str = ""


@dataclass(frozen=True, slots=True)
class Observed:
    """The observations of one source.

    exposure_s   unit-seconds for each kind of unit that was watched
    lives        for each class that was seen, the stretches of age in which units were watched;
                 empty if ages are not known
    age_s        mean age of the units that were still watched at the end of the record; None if
                 ages are not known
    units        the mean number of units of each kind that were watched at a time
    span_s       seconds from the beginning of the record to its end
    limits       what this record cannot tell, one sentence each
    assumptions  what is assumed because the record does not say it, one sentence each
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
        """Return the usual unit of such a failure; if it was not watched, a kind that was."""
        usual = Unit.RUN if extent is Extent.RUN else UNIT_OF[failure_class]
        return usual if usual in self.exposure_s else next(iter(self.exposure_s))
