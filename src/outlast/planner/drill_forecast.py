"""Predict the ETTR of a drill from its calendar, before the first fault strikes.

A drill knows its faults in advance: which kinds, and when. So nothing has to be drawn here. Each
fault costs the step that it cuts short, the time until it is noticed, and the recovery. A fault
during a recovery makes the recovery begin again, as in the planner's model of a run (scenario.py).

Units      seconds of wall-clock time, in which all ranks stand still.
Known      the calendar; the length of a step and the ETTR of the undisturbed run, which the drill
           has just made; the deadlines after which outlast gives a silent rank or host up
           (model/limits.py).
Assumed    how long a recovery takes: `RECOVERY_S`, in seconds, measured on two busy cores in the
           drills of benchmarks/results/drills.md (2026-11-27). Another machine, a larger state
           and a higher load change that. So the prediction has a range: recoveries that take a
           quarter of it, and four times as long.
Naive      the same, as if every fault ended a process. This is what a predictor says that counts
           faults and ignores their kinds.
Limits     A rank that is slow costs throughput, and no ETTR. Steps that a script without outlast
           calls does again from its own checkpoint are not counted.

This module is pure: no clock, no files, no torch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from outlast.model.drills.drill_faults import FaultKind, Leaves
from outlast.model.limits import DEADLINE_FACTOR, PING_DEADLINE_S, STEP_FLOOR_S, STOPPED_FLOOR_S

LOW, HIGH = 0.25, 4.0  # of the assumed recovery, for the range
LEASE_S = 2.0  # of a drill's hosts (`--lease`)
REFUSED_S = 0.25  # until a launcher that is gone is noticed, if its machine lives on
# how long a recovery takes once it is noticed what happened, by what has to be done
RECOVERY_S: Mapping[str, float] = {
    "repeat": 0.1,  # every process goes on
    "replace": 0.13,  # a spare or a fork takes the rank
    "repeat, hosts": 0.4,
    "replace, hosts": 0.7,
    "move, hosts": 1.0,  # the ranks of a host move to another one
}


class ForeseenFault(Protocol):
    """A fault of a calendar (`sim/drill_calendar.py`)."""

    @property
    def kind(self) -> FaultKind: ...
    @property
    def at_s(self) -> float | None: ...
    @property
    def at_step(self) -> int | None: ...
    @property
    def for_s(self) -> float: ...


@dataclass(frozen=True, slots=True)
class Undisturbed:
    """The facts that the undisturbed run has shown.

    training_s  from its third step to its last
    ettr        its ETTR without start-up and shutdown
    hosts       it ran on several hosts
    restart_s   seconds that a script without outlast calls takes to start again as a whole; None:
                the script calls outlast
    """

    training_s: float
    step_s: float
    ettr: float
    hosts: bool = False
    restart_s: float | None = None


@dataclass(frozen=True, slots=True)
class DrillForecast:
    """The ETTR that is expected, without start-up and shutdown.

    low, high  for recoveries that take four times, and a quarter, of what is assumed
    naive      as if every fault ended a process
    lost_s     the seconds that all faults cost together
    """

    ettr: float
    low: float
    high: float
    naive: float
    lost_s: float


def forecast(faults: Sequence[ForeseenFault], calm: Undisturbed) -> DrillForecast:
    """Return what is expected of the training, if these faults strike it."""

    def ettr(lost_s: float) -> float:
        whole_s = calm.training_s + lost_s
        return calm.ettr * calm.training_s / whole_s if whole_s > 0.0 else calm.ettr

    lost_s = _lost_s(faults, calm, [cost_s(one, calm) for one in faults])
    dear_s = _lost_s(faults, calm, [cost_s(one, calm, factor=HIGH) for one in faults])
    cheap_s = _lost_s(faults, calm, [cost_s(one, calm, factor=LOW) for one in faults])
    alike_s = _replacing(calm) + calm.step_s / 2
    return DrillForecast(
        ettr=ettr(lost_s),
        low=ettr(dear_s),
        high=ettr(cheap_s),
        naive=ettr(_lost_s(faults, calm, [alike_s] * len(faults))),
        lost_s=lost_s,
    )


def cost_s(one: ForeseenFault, calm: Undisturbed, *, factor: float = 1.0) -> float:
    """Return how long the run stands still for a fault, the step that it repeats included.

    factor   how much longer a recovery takes than is assumed
    """
    kind = one.kind
    if kind.struck in ("spare", "store", "zygote", "disk") or kind.is_silent:
        return 0.0
    if kind.of_host:
        return _host_s(one, calm, factor)
    if kind.name == "slow":
        return 0.0
    half_s = calm.step_s / 2
    if kind.name == "stop":
        if one.for_s <= STOPPED_FLOOR_S:
            return one.for_s
        return STOPPED_FLOOR_S + half_s + factor * _replacing(calm)
    if kind.leaves is Leaves.STACK:
        deadline_s = max(STEP_FLOOR_S, DEADLINE_FACTOR * calm.step_s) + PING_DEADLINE_S
        return deadline_s + half_s + factor * _replacing(calm)
    if kind.leaves is Leaves.TRACEBACK and calm.restart_s is None:
        return half_s + factor * RECOVERY_S["repeat, hosts" if calm.hosts else "repeat"]
    return half_s + factor * _replacing(calm)


def _replacing(calm: Undisturbed) -> float:
    if calm.restart_s is not None:
        return calm.restart_s
    return RECOVERY_S["replace, hosts" if calm.hosts else "replace"]


def _host_s(one: ForeseenFault, calm: Undisturbed, factor: float) -> float:
    half_s, move_s = calm.step_s / 2, factor * RECOVERY_S["move, hosts"]
    match one.kind.name:
        case "slow_link":
            return 0.0  # steps are slower
        case "cut" | "flap" | "stop_agent" if one.for_s < LEASE_S:
            return one.for_s  # messages wait
        case "lose_agent":
            return REFUSED_S + half_s + move_s
        case "maintenance":
            return half_s + move_s
        case _:
            return LEASE_S + half_s + move_s


def _lost_s(faults: Sequence[ForeseenFault], calm: Undisturbed, costs_s: Iterable[float]) -> float:
    """Return the seconds in which the run stands still. Recoveries that overlap count once."""
    struck = sorted((_time_s(one, calm), cost) for one, cost in zip(faults, costs_s, strict=True))
    lost_s = until_s = 0.0
    for at_s, cost in struck:
        ends_s = max(until_s, at_s + cost)
        lost_s += ends_s - max(until_s, at_s)
        until_s = ends_s
    return lost_s


def _time_s(one: ForeseenFault, calm: Undisturbed) -> float:
    return one.at_s if one.at_s is not None else (one.at_step or 0) * calm.step_s
