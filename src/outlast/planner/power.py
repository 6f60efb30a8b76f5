"""Calculate how the power that a run draws swings: how far, how fast and how often.

The module also calculates what would reduce the swings. It uses runs that were simulated before.

Units      watts, watts per second, seconds, hertz.
Model      All GPUs draw `gpu_w` while they train, and the share `idle` of it while training has
           stopped or pauses. They stop together, and begin together, within `edge_s`.
Swings     failure   Power falls when a failure stops training, and rises when training goes on. In
                     between lies the whole interruption.
           save      Power falls and rises around each stall. In a stall that is shorter than the
                     edge, it falls only in part.
           step      Compute and communication take turns in each step. Only the frequency is
                     calculated.
Remedies   A floor keeps every GPU at a share of its power at all times, by work whose result is
           dropped or by a feature of the GPU. A staggered restart lets nodes begin one after
           another over some seconds. Then power rises more slowly. Each restart costs the run these
           seconds, because the run is as fast as its last node.
Sources    arXiv 2508.14318: swings are a risk by their amplitude, ramp and frequency (0.1 to 20
           Hz).
Limits     Amplitudes follow from the given power of the GPUs. The effects of capacitors, power
           supplies and hosts are not known here.

This module is pure: data in, data out.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from outlast.model.time_units import DAY_S
from outlast.planner.scenario import Scenario
from outlast.planner.stops import Stoppage

BAND_HZ = (0.1, 20.0)
STAGGERS_S = (10.0, 60.0)
FLOORS = (0.5, 0.8)


@dataclass(frozen=True, slots=True)
class Draw:
    """The power that GPUs draw.

    gpu_w    watts of a GPU that trains
    idle     the share of these watts that a GPU draws while training has stopped or pauses
    edge_s   the seconds in which all GPUs stop, or begin
    """

    gpu_w: float
    idle: float
    edge_s: float


@dataclass(frozen=True, slots=True)
class Swing:
    """One kind of synchronous swing.

    ramp_w_per_s  how steep it is; None for steps, of which only the frequency is calculated
    longest_s     the longest time for which power stays down; None for steps
    frequency_hz  how often the swings come, if they are regular
    """

    kind: str
    count: int
    per_day: float
    amplitude_w: float
    ramp_w_per_s: float | None
    longest_s: float | None
    frequency_hz: float | None = None

    @property
    def in_band(self) -> bool:
        return self.frequency_hz is not None and BAND_HZ[0] <= self.frequency_hz <= BAND_HZ[1]


@dataclass(frozen=True, slots=True)
class Remedy:
    """A way to reduce a swing.

    amplitude_w, ramp_w_per_s   amplitude and ramp of the swing with this remedy
    ettr_cost                   the share of the run's time that the remedy takes
    energy_cost                 the energy that the remedy adds, as a share of the run's energy
    """

    what: str
    amplitude_w: float
    ramp_w_per_s: float
    ettr_cost: float
    energy_cost: float


@dataclass(frozen=True, slots=True)
class Power:
    """This says how power swings when all GPUs stop or begin at once, and what reduces that."""

    training_w: float
    swings: tuple[Swing, ...]
    remedies: tuple[Remedy, ...]

    def facts(self) -> dict[str, Any]:
        return {
            "training_w": self.training_w,
            "swings": [asdict(one) | {"in_band": one.in_band} for one in self.swings],
            "remedies": [asdict(one) for one in self.remedies],
        }


def power(scenario: Scenario, stops: Sequence[Stoppage], *, draw: Draw, ettr: float) -> Power:
    """Return the swings of one simulated run, and what would reduce them.

    stops  when failures stopped training, and until when (`stops.run_with_stops`)
    ettr   the share of the time that the run spent in steps
    """
    training_w = scenario.job.gpus * draw.gpu_w
    amplitude_w = training_w * (1 - draw.idle)
    spans_s = [
        (scenario.job.duration_s if one.end_s is None else one.end_s) - one.begin_s for one in stops
    ]
    swings = [
        _failures(spans_s, scenario.job.duration_s, amplitude_w, draw),
        *_saves(scenario, ettr, amplitude_w, draw),
    ]
    step_s = scenario.job.step_s
    swings.append(Swing("step", 0, DAY_S * ettr / step_s, amplitude_w, None, None, 1 / step_s))
    saves_s = sum(
        one.count * (one.longest_s or 0.0) for one in swings if one.kind.startswith("save")
    )
    down_s = sum(spans_s) + saves_s
    down = min(1.0, down_s / scenario.job.duration_s)
    remedies = [
        _stagger(seconds, len(stops), scenario.job.duration_s, amplitude_w, draw)
        for seconds in STAGGERS_S
    ]
    remedies += [_floor(floor, down, training_w, draw) for floor in FLOORS if floor > draw.idle]
    return Power(training_w, tuple(swings), tuple(remedies))


def _failures(spans_s: Sequence[float], duration_s: float, amplitude_w: float, draw: Draw) -> Swing:
    return Swing(
        "failure",
        len(spans_s),
        len(spans_s) / duration_s * DAY_S,
        amplitude_w if spans_s else 0.0,
        amplitude_w / draw.edge_s if spans_s else 0.0,
        max(spans_s, default=0.0),
    )


def _saves(scenario: Scenario, ettr: float, amplitude_w: float, draw: Draw) -> Iterable[Swing]:
    for tier in scenario.tiers:
        interval_s = scenario.interval_s(tier)
        if tier.stall_s > 0 and math.isfinite(interval_s):
            count = int(ettr * scenario.job.duration_s / interval_s)
            # a shorter stall ends before power has fallen to the bottom
            depth_w = amplitude_w * min(1.0, tier.stall_s / draw.edge_s)
            per_day = count / scenario.job.duration_s * DAY_S
            yield Swing(
                f"save to {tier.name}",
                count,
                per_day,
                depth_w,
                amplitude_w / draw.edge_s,
                tier.stall_s,
                1 / (interval_s + tier.stall_s),
            )


def _stagger(
    seconds: float, count: int, duration_s: float, amplitude_w: float, draw: Draw
) -> Remedy:
    ramp_w_per_s = amplitude_w / max(seconds, draw.edge_s)
    return Remedy(
        f"restarts staggered over {seconds:g} s",
        amplitude_w,
        ramp_w_per_s,
        min(1.0, count * seconds / duration_s),
        0.0,
    )


def _floor(floor: float, down: float, training_w: float, draw: Draw) -> Remedy:
    amplitude_w = training_w * (1 - floor)
    without = (1 - down) + down * draw.idle
    return Remedy(
        f"a floor at {floor:.0%} of the power",
        amplitude_w,
        amplitude_w / draw.edge_s,
        0.0,
        down * (floor - draw.idle) / without,
    )
