"""Scenarios and histories for tests of the planner.

Some are small and written by hand, and the others are drawn by Hypothesis.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from hypothesis import strategies as st

from outlast.model.terms import FailureClass
from outlast.planner.histories import History, Luck
from outlast.planner.scenario import (
    Extent,
    FailureRate,
    Job,
    Lemons,
    Maintenance,
    Recovery,
    Repair,
    Scenario,
    ScenarioTier,
    Unit,
    Wave,
)
from outlast.planner.spread import Spread, constant, exponential, lognormal, measured

CLASSES = tuple(FailureClass)


def process(mttf_s: float = 1e4) -> FailureRate:
    return FailureRate(FailureClass.SOFTWARE_BUG, Unit.RUN, Extent.PROCESS, mttf_s)


def node(mttf_s: float = 1e4) -> FailureRate:
    return FailureRate(FailureClass.GPU, Unit.NODE, Extent.NODE, mttf_s)


def rack(mttf_s: float = 1e4) -> FailureRate:
    return FailureRate(FailureClass.NETWORK, Unit.RACK, Extent.RACK, mttf_s)


def everything(mttf_s: float = 1e4) -> FailureRate:
    return FailureRate(FailureClass.STORAGE, Unit.RUN, Extent.RUN, mttf_s)


def tier(
    name: str,
    interval_s: float,
    *,
    stall_s: float = 0.0,
    write_s: float = 0.0,
    survives: Extent = Extent.RUN,
    restore_s: float = 3.0,
) -> ScenarioTier:
    return ScenarioTier(name, interval_s, stall_s, write_s, survives, constant(restore_s))


def recovery(
    detect_s: float = 5.0, regroup_s: float = 7.0, take_s: float = 0.0, *, shrinks: bool = False
) -> Recovery:
    return Recovery(constant(detect_s), constant(regroup_s), constant(take_s), shrinks=shrinks)


def world(
    *,
    duration_s: float = 300.0,
    gpus: int = 32,
    failures: tuple[FailureRate, ...] = (process(), node(), rack(), everything()),
    tiers: tuple[ScenarioTier, ...] = (tier("disk", 100.0, stall_s=10.0),),
    recovers: Recovery | None = None,
    repair: Repair | None = None,
    lemons: Lemons | None = None,
    maintenance: Maintenance | None = None,
    step_s: float = 1.0,
) -> Scenario:
    """Return a scenario of 4 nodes with 8 GPUs each, in racks of 2, with steps of one second."""
    job = Job(gpus=gpus, duration_s=duration_s, gpus_per_node=8, nodes_per_rack=2, step_s=step_s)
    return Scenario(
        "world",
        job,
        failures,
        tiers,
        recovers or recovery(),
        repair or Repair(),
        lemons or Lemons(),
        maintenance=maintenance or Maintenance(),
    )


def told(
    *failures: tuple[float, int], lemons: int = 0, extra: Sequence[bool] = (), **luck: float
) -> History:
    """Return a history that is written by hand.

    failures   the time and the index of the class of each failure
    luck       the random numbers of a column; all other columns are 1/2
    """
    numbers = np.full((len(failures), len(Luck)), 0.5)
    for column, number in luck.items():
        numbers[:, Luck[column.upper()]] = number
    at_s = np.array([at_s for at_s, _ in failures], dtype=np.float64)
    which = np.array([which for _, which in failures], dtype=np.int64)
    return History(
        at_s, which, np.array(extra or [False] * len(failures), dtype=np.bool_), numbers, lemons
    )


# --- any ------------------------------------------------------------------------------------------


def seconds(low: float, high: float) -> st.SearchStrategy[float]:
    return st.floats(low, high, allow_subnormal=False)


@st.composite
def spreads(draw: st.DrawFn, high_s: float) -> Spread:
    kind = draw(st.sampled_from(["none", "constant", "exponential", "lognormal", "measured"]))
    if kind == "none":
        return constant(0.0)
    if kind == "measured":
        return measured(draw(st.lists(seconds(0.0, high_s), min_size=1, max_size=5)))
    mean_s = draw(seconds(high_s / 1000, high_s))
    return (
        {"constant": constant, "exponential": exponential}[kind](mean_s)
        if kind != "lognormal"
        else lognormal(mean_s / 2, mean_s)
    )


@st.composite
def tier_lists(draw: st.DrawFn, step_s: float) -> tuple[ScenarioTier, ...]:
    """Draw tiers: nested or not, live ones, ones that stall for longer than their interval, and
    ones that are never written.
    """
    tiers = []
    for index in range(draw(st.integers(0, 4))):
        steps = draw(st.sampled_from([1, 2, 5, 7, 10, 60, 100, 120, 977]))
        alive = draw(st.booleans()) and steps == 1
        stall_s = 0.0 if alive else draw(st.sampled_from([0.0, 0.01, 1.0, 30.0, 400.0]))
        write_s = 0.0 if alive else draw(st.sampled_from([0.0, 0.0, 3.7, 55.5, 1000.0]))
        interval_s = draw(st.sampled_from([steps * step_s] * 9 + [float("inf")]))
        tiers.append(
            ScenarioTier(
                f"tier {index}",
                interval_s,
                stall_s,
                write_s,
                draw(st.sampled_from(list(Extent))),
                draw(spreads(60.0)),
            )
        )
    return tuple(tiers)


@st.composite
def failure_lists(draw: st.DrawFn, job: Job, *, waves: bool) -> tuple[FailureRate, ...]:
    """Draw rates that give at most about 60 failures in all."""
    rates = []
    for index in range(draw(st.integers(0, 4))):
        unit = draw(st.sampled_from(list(Unit)))
        expected = draw(st.sampled_from([0.5, 5.0, 15.0]))
        shape = draw(st.sampled_from([1.0, 1.0, 0.6, 2.5])) if waves else 1.0
        mttf_s = (
            job.units(unit) * job.duration_s / expected
            if shape == 1
            else job.duration_s * (job.units(unit) / expected) ** (1 / shape)
        )
        some = (
            (Wave(0.2 * job.duration_s, 0.5 * job.duration_s, 3.0),)
            if waves and draw(st.booleans())
            else ()
        )
        rates.append(
            FailureRate(
                CLASSES[index],
                unit,
                draw(st.sampled_from(list(Extent))),
                mttf_s,
                shape=shape,
                count=draw(st.sampled_from([0.0, 20.0])),
                waves=some,
            )
        )
    return tuple(rates)


@st.composite
def scenarios(draw: st.DrawFn, *, waves: bool = False) -> Scenario:
    step_s = draw(st.sampled_from([1.0, 0.3, 6.2]))
    duration_s = draw(seconds(50.0, 20_000.0))
    nodes = draw(st.integers(1, 12))
    job = Job(
        gpus=nodes * 2,
        duration_s=duration_s,
        gpus_per_node=2,
        nodes_per_rack=draw(st.integers(1, 4)),
        step_s=step_s,
    )
    share, factor = draw(st.sampled_from([(0.0, 1.0), (0.3, 4.0), (0.05, 20.0), (0.0, 5.0)]))
    chances = st.sampled_from([0.0, 0.0, 0.3, 1.0])
    return Scenario(
        "any",
        job,
        draw(failure_lists(job, waves=waves)),
        draw(tier_lists(step_s)),
        Recovery(
            draw(spreads(60.0)),
            draw(spreads(60.0)),
            draw(spreads(30.0)),
            shrinks=draw(st.booleans()),
        ),
        Repair(
            draw(st.integers(0, nodes)),
            draw(spreads(2_000.0)),
            wrong=draw(chances),
            missed=draw(chances),
        ),
        Lemons(share, factor, caught=draw(chances)),
        maintenance=Maintenance(
            *draw(st.sampled_from([(float("inf"), 0.0), (700.0, 60.0), (5_000.0, 1_800.0)]))
        ),
    )


@st.composite
def plain_scenarios(draw: st.DrawFn) -> Scenario:
    """Draw scenarios with one class of failures, one tier that survives it, and fixed durations."""
    step_s = draw(st.sampled_from([1.0, 0.3]))
    rate = FailureRate(
        FailureClass.GPU,
        draw(st.sampled_from([Unit.GPU, Unit.RUN])),
        Extent.PROCESS,
        draw(seconds(20.0, 20_000.0)),
        shape=draw(st.sampled_from([1.0, 0.6])),
    )
    fixed = st.sampled_from([0.0, 1.5, 40.0, 900.0])
    interval_s, stall_s = (
        draw(st.sampled_from([2 * step_s, 60.0, 977 * step_s, float("inf")])),
        draw(fixed),
    )
    return world(
        duration_s=draw(seconds(50.0, 20_000.0)),
        gpus=4,
        failures=(rate,),
        tiers=(tier("disk", interval_s, stall_s=stall_s, restore_s=draw(fixed)),),
        recovers=recovery(draw(fixed), draw(fixed)),
        step_s=step_s,
    )
