"""The published figures that take a simulation: what it says, and what would have to hold for the
figure. None of them is predicted but FT-HSDP's.

Llama 3 405B   > 90 % effective time over 54 days at 16,384 GPUs, 419 unexpected and 47 planned
               interruptions (arXiv 2407.21783). The recovery time is not published: by bisection,
               through the same failures each time, the mean recovery that leaves 90 %, for three
               ways to save. Planned interruptions come evenly, lose no work, and take as long as
               the mean recovery. Recoveries are exponential.
FT-HSDP        44 -> 80 % at 100,000 GPUs, a failure each 18 min, stalls of 10 -> 3 min (arXiv
               2602.00277): predicted, with the error, for both readings of what a failure during a
               stall costs.
ByteRobust     97 % at 9,600 GPUs (SOSP 2025): the time that each interruption may cost, for MTTFs
               from 4,800 to 82,000 hours of one GPU.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Protocol

import numpy as np

from benchmarks.validate_plan.rows import Row, Verdict
from outlast.model.quantities import QuantityKind, echo
from outlast.model.reliability import mttf_s
from outlast.model.terms import FailureClass
from outlast.planner.histories import draw
from outlast.planner.scenario import (
    Extent,
    FailureRate,
    Job,
    Maintenance,
    Recovery,
    Scenario,
    ScenarioTier,
    Unit,
)
from outlast.planner.spread import constant, exponential

MIN_S, HOUR_S, DAY_S = 60.0, 3600.0, 86_400.0
SEED = 405
LLAMA_REPLICAS, HSDP_REPLICAS = 256, 64
ERRORS = 4.0  # standard errors by which a simulation may miss an exact form


class Estimated(Protocol):
    """Name what is read of the planner's estimate.

    low, high   the 5th and the 95th percentile of one run
    """

    ettr_mean: float
    ettr_mean_se: float
    ettr_low: float
    ettr_high: float


Estimate = Callable[[Scenario, int, int], Estimated]  # scenario, seed, replicas


# --- Llama 3 --------------------------------------------------------------------------------------

LLAMA = Job(gpus=16_384, duration_s=54 * DAY_S, nodes_per_rack=2, step_s=6.2)
UNEXPECTED_COUNT, PLANNED_COUNT = 419, 47
SAVES = (  # stall, interval, why
    (2.5, 234.0, "5 TB at 2 TB/s, at Young's interval"),
    (30.0, 15 * MIN_S, "A slower save"),
    (60.0, 20 * MIN_S, "A slower one still"),
)
RECOVERY_MAX_S = 2 * HOUR_S


def llama(recovery_s: float, stall_s: float, interval_s: float) -> Scenario:
    """Simulate Llama 3's run: each interruption loses the work since the last save.

    It takes `recovery_s` on average, and nodes are replaced at once.
    """
    strikes = FailureRate(
        FailureClass.UNKNOWN,
        Unit.GPU,
        Extent.PROCESS,
        LLAMA.duration_s * LLAMA.gpus / UNEXPECTED_COUNT,
        count=UNEXPECTED_COUNT,
    )
    storage = ScenarioTier("storage", interval_s, stall_s, 0.0, Extent.RUN, constant(0.0))
    recovery = Recovery(detect=constant(0.0), regroup=exponential(recovery_s))
    stops = (
        Maintenance(every_s=LLAMA.duration_s / PLANNED_COUNT, lasts_s=recovery_s)
        if recovery_s
        else Maintenance()
    )
    return Scenario("Llama 3 405B", LLAMA, (strikes,), (storage,), recovery, maintenance=stops)


def llama_rows(estimate: Estimate) -> Iterator[Row]:
    for stall_s, interval_s, why in SAVES:

        def at(
            recovery_s: float, stall_s: float = stall_s, interval_s: float = interval_s
        ) -> Estimated:
            return estimate(llama(recovery_s, stall_s, interval_s), SEED, LLAMA_REPLICAS)

        recovery_s = recovery_that_leaves(0.9, at)
        found = at(recovery_s or 0.0)
        if recovery_s is None:
            computed, where = (
                "none is short enough",
                "even where recoveries take no time: their saves must have cost less",
            )
        else:
            computed, where = (
                f"recovery <= {recovery_s / MIN_S:.1f} min",
                "where the mean recovery takes that long",
            )
        yield Row(
            f"Llama 3, saves of {echo(stall_s, QuantityKind.DURATION)} each"
            f" {echo(interval_s, QuantityKind.DURATION)}",
            "> 90 %",
            computed,
            "-",
            Verdict.IMPLIED,
            f"{why}: ETTR {found.ettr_mean:.2%} (error of the simulation {found.ettr_mean_se:.2%};"
            f" nine of ten such runs from {found.ettr_low:.1%} to {found.ettr_high:.1%}) {where}.",
        )


def recovery_that_leaves(ettr: float, at: Callable[[float], Estimated]) -> float | None:
    """Return the mean recovery time at which the mean ETTR is so much, to a second.

    Return None if that ETTR is not reached even with 0.
    """
    low_s, high_s = 0.0, RECOVERY_MAX_S
    if at(low_s).ettr_mean < ettr:
        return None
    while high_s - low_s > 1.0:
        middle_s = (low_s + high_s) / 2
        low_s, high_s = (middle_s, high_s) if at(middle_s).ettr_mean >= ettr else (low_s, middle_s)
    return low_s


# --- FT-HSDP --------------------------------------------------------------------------------------

HSDP_MTTF_S = 18 * MIN_S


def hsdp(stall_s: float) -> Scenario:
    """Simulate replicas that live on: nothing is repeated but the step.

    An interruption takes the stall alone, and one that is struck again starts over.
    """
    job = Job(gpus=100_000, duration_s=30 * DAY_S)
    strikes = FailureRate(FailureClass.UNKNOWN, Unit.RUN, Extent.PROCESS, HSDP_MTTF_S)
    alive = ScenarioTier("replicas", job.step_s, 0.0, 0.0, Extent.RUN, constant(0.0))
    return Scenario(
        "FT-HSDP",
        job,
        (strikes,),
        (alive,),
        Recovery(detect=constant(0.0), regroup=constant(stall_s)),
    )


def hsdp_rows(estimate: Estimate) -> Iterator[Row]:
    for stall_s, published in ((10 * MIN_S, 0.44), (3 * MIN_S, 0.80)):
        load = stall_s / HSDP_MTTF_S
        plain, exact = 1 - load, math.exp(-load)
        what = f"FT-HSDP, stalls of {stall_s / MIN_S:.0f} min"
        yield Row(
            f"{what}, by hand",
            f"{published:.0%}",
            f"{plain:.1%}",
            _points(plain - published),
            Verdict.STATED,
            f"(18 - {stall_s / MIN_S:.0f}) / 18: each failure costs its whole stall, also one that"
            " strikes during another's.",
        )
        mean, error = one_after_another(stall_s)
        yield Row(
            f"{what}, simulated, one after another",
            f"{published:.0%}",
            f"{mean:.1%}",
            _points(mean - published),
            Verdict.WRONG if abs(mean - plain) > ERRORS * error + 1e-3 else Verdict.STATED,
            "The reading of the inputs that the figure by hand has: failures at any time, each 18"
            " min on average, and a stall that another failure strikes is first finished. Equal to"
            f" that figure within {ERRORS} standard errors of the simulation ({error:.2%}) and 0.1"
            " %, whatever the times of failures.",
        )
        found = estimate(hsdp(stall_s), SEED, HSDP_REPLICAS)
        missed = abs(found.ettr_mean - exact) > ERRORS * found.ettr_mean_se + 1e-3
        yield Row(
            f"{what}, simulated, started over",
            f"{published:.0%}",
            f"{found.ettr_mean:.1%}",
            _points(found.ettr_mean - published),
            Verdict.WRONG if missed else Verdict.STATED,
            "The same failures as outlast's engine answers them: one that strikes during a stall"
            " begins it again, and the rest of the first one's is not stood through. Exact, but for"
            f" the step that is repeated: e^(-{stall_s / MIN_S:.0f}/18) = {exact:.1%}. The"
            f" {100 * (exact - plain):.1f} points to the figure by hand are these overlaps:"
            f" {1 - exact:.0%} of all failures strike during a stall. What the published figures"
            " count besides (repeated work, catching up) is not among the inputs. Their other"
            " input, 2.3 interruptions per 1,000 servers and day, does not agree with 18 min at"
            " 100,000 GPUs: by 1/N it gives 50 min.",
        )


def one_after_another(stall_s: float) -> tuple[float, float]:
    """Mean ETTR and its standard error where each failure's stall takes its whole time: a queue
    whose only server is the run, standing still.
    """
    scenario = hsdp(stall_s)
    over_s = scenario.job.duration_s
    free_s, stood_s = np.zeros((2, HSDP_REPLICAS))
    for at_s in draw(scenario, seed=SEED, replicas=HSDP_REPLICAS).at_s.T:
        begins_s = np.minimum(np.maximum(at_s, free_s), over_s)
        free_s = np.where(at_s < over_s, begins_s + stall_s, free_s)
        stood_s += np.minimum(begins_s + stall_s, over_s) - begins_s
    ettr = 1 - stood_s / over_s
    return float(ettr.mean()), float(ettr.std(ddof=1)) / math.sqrt(HSDP_REPLICAS)


def _points(difference: float) -> str:
    return f"{100 * difference:+.1f} points"


# --- ByteRobust -----------------------------------------------------------------------------------

GPU_MTTF_H = {"Llama 3": 50_677, "RSC-1": 29_538, "RSC-2": 82_051, "Aegis, H100": 4_800}


def byterobust_rows() -> Iterator[Row]:
    for source, hours in GPU_MTTF_H.items():
        run_mttf_s = mttf_s(9600, hours * HOUR_S)
        yield Row(
            f"ByteRobust, 9,600 GPUs that fail as {source}'s",
            "97 %",
            f"{0.03 * run_mttf_s / MIN_S:.1f} min each",
            "-",
            Verdict.IMPLIED,
            f"{hours:,} h for one GPU, an interruption each {run_mttf_s / HOUR_S:.2f} h: 3 % of it"
            " is what one may cost in all, repeated work included.",
        )


def simulated(estimate: Estimate) -> list[Row]:
    return [*llama_rows(estimate), *hsdp_rows(estimate), *byterobust_rows()]
