"""From a fit to a prediction of a run that was never run: a Scenario, and what the planner says of
it.

Units      seconds; ETTR in [0, 1].
Method     Two scenarios of the same run. By the books: phases as the ledger counts them, for ETTR.
           By the clock: fault to first new commit, for MTTR. The interval is that of one run: over
           strikes, over the luck of each recovery, over what another fit might have said (the fit's
           recoveries drawn again, RESAMPLES times), and over how far two runs on one machine lie
           apart: all phases of a run are longer or shorter together (log-normal, APART; RANKS_APART
           more where the ranks are others, for that model is coarse). The rate of strikes is given,
           not estimated. `ended`: the share of such runs that outlast itself ends, for a crash loop
           or a spent budget, by the engine's own decisions. `told`: the same with the strikes at
           the times that were drawn for the run. What is left of its error is the model's own, luck
           of the strikes apart.
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from benchmarks.validate_plan.fit import (
    Fit,
    Sampled,
    Samples,
    elsewhere,
    longer,
    lost_share,
    resampled,
)
from outlast.model.terms import FailureClass, Rung
from outlast.planner import decisions
from outlast.planner.histories import draw
from outlast.planner.runs import run
from outlast.planner.scenario import (
    Extent,
    FailureRate,
    Job,
    Recovery,
    Scenario,
    ScenarioTier,
    Unit,
)
from outlast.planner.spread import Spread, constant, measured
from outlast.planner.stops import Stoppage, run_with_stops

RESAMPLES, REPLICAS = 24, 256  # fits drawn again; runs of each
CLOCKED = 48  # runs whose single recoveries are looked at, for MTTR
QUANTILES = 200
APART, RANKS_APART = 0.15, 0.1  # both chosen beforehand, from runs that are not judged
LOW, HIGH = 5, 95


@dataclass(frozen=True, slots=True)
class Variant:
    """One run. `snapshot_every`: steps; `mttf_s`: of the whole run; `seed`: of its strikes."""

    name: str
    world_size: int
    mttf_s: float
    snapshot_every: int
    spares: int
    duration_s: float
    seed: int


@dataclass(frozen=True, slots=True)
class Prediction:
    """Lost time is 1 - ETTR. luck: standard deviation of one run's lost time, as a share of its
    mean. told_ettr: with the strikes of this run.
    """

    ettr: float
    low: float
    high: float
    luck: float
    mttr_median_s: float
    told_ettr: float
    spare_share: float
    ended: float


def predict(
    known: Fit, variant: Variant, *, cores: int, strikes_s: Sequence[float], seed: int
) -> Prediction:
    """Predict a run. `strikes_s`: when it will be struck; only `told_ettr` knows that."""

    def there(one: Fit) -> Fit:
        return elsewhere(one, world_size=variant.world_size, spares=variant.spares, cores=cores)

    here, chance = there(known), random.Random(seed)
    apart = APART if variant.world_size == known.world_size else math.hypot(APART, RANKS_APART)
    again = [
        longer(there(resampled(known, chance)), math.exp(chance.gauss(0.0, apart)))
        for _ in range(RESAMPLES)
    ]
    ettrs = np.concatenate(
        [_ettrs(one, variant, seed=seed + number) for number, one in enumerate(again)]
    )
    low, high = np.percentile(ettrs, [LOW, HIGH])
    mean = float(_ettrs(here, variant, seed=seed).mean())
    return Prediction(
        ettr=mean,
        low=float(low),
        high=float(high),
        luck=float(ettrs.std() / (1 - mean)),
        mttr_median_s=_mttr_median_s(here, variant, seed=seed),
        told_ettr=_told(here, variant, strikes_s, seed=seed),
        spare_share=1 - without_spare(here, variant),
        ended=_ended(here, variant, seed=seed),
    )


def _ettrs(known: Fit, variant: Variant, *, seed: int) -> NDArray[np.float64]:
    scenario = by_the_books(known, variant)
    outcomes = run(scenario, draw(scenario, seed=seed, replicas=REPLICAS))
    return known.share * outcomes.position_s / variant.duration_s


def _told(known: Fit, variant: Variant, strikes_s: Sequence[float], *, seed: int) -> float:
    """Simulate the strikes at these times, with many draws of their recoveries."""
    scenario = by_the_books(known, variant)
    at_s = np.tile(np.array(strikes_s, dtype=np.float64), (REPLICAS, 1))
    histories = replace(
        draw(scenario, seed=seed, replicas=REPLICAS),
        at_s=at_s,
        stream=np.zeros(at_s.shape, dtype=np.int16),
    )
    return known.share * float(run(scenario, histories).position_s.mean()) / variant.duration_s


def _mttr_median_s(known: Fit, variant: Variant, *, seed: int) -> float:
    scenario = by_the_clock(known, variant)
    histories = draw(scenario, seed=seed, replicas=CLOCKED)
    _, stops = run_with_stops(scenario, histories)
    return statistics.median([mttr_s for one in stops for mttr_s in mttrs_s(one)] or [0.0])


def _ended(known: Fit, variant: Variant, *, seed: int) -> float:
    """Return the share of such runs that the engine's budgets end.

    An image that is not there counts as steps that are executed again.
    """
    scenario = replace(by_the_clock(known, variant), tiers=by_the_books(known, variant).tiers)
    return decisions.estimate(scenario, draw(scenario, seed=seed, replicas=CLOCKED)).ended / CLOCKED


def mttrs_s(stops: Sequence[Stoppage]) -> list[float]:
    """Return how long each recovery took that ended before the run did.

    Failures that strike during a recovery are one family with it: all are over when training goes
    on.
    """
    return [one.end_s - one.begin_s for one in stops if one.end_s is not None]


# --- scenarios ------------------------------------------------------------------------------------


def by_the_books(known: Fit, variant: Variant) -> Scenario:
    """Return the scenario whose seconds are those that the ledger books.

    Where committed steps are done again, the slow start of the first of them is lost as well. That
    is so wherever images are rare. It is a step less than the clock says: ranks that are in place
    early have begun by then, and others still fetch their batch.
    """
    slow_s = (
        known.again_s
        if variant.snapshot_every == 1
        else max(known.again_s, known.first_mean_s - 2 * known.step_s - known.stall_s)
    )

    def booked(one: Sampled) -> Sampled:
        return replace(
            one,
            detect_s=tuple(known.booked * sample_s for sample_s in one.detect_s),
            regroup_s=tuple(known.booked * sample_s for sample_s in one.regroup_s),
            restore_s=tuple(known.booked * sample_s + slow_s for sample_s in one.restore_s),
        )

    phases = {rung: booked(one) for rung, one in known.phases.items()}
    return _scenario(
        replace(known, phases=phases),
        variant,
        stall_s=known.stall_s,
        interval_s=variant.snapshot_every * known.step_s,
    )


def by_the_clock(known: Fit, variant: Variant) -> Scenario:
    """Return the scenario in which an interruption is over with the first new commit.

    Its restore is over then, too. What is kept where does not matter for that.
    """
    phases = {
        rung: replace(
            one,
            restore_s=tuple(
                restore_s + first_s
                for restore_s, first_s in zip(one.restore_s, one.first_s, strict=True)
            ),
        )
        for rung, one in known.phases.items()
    }
    return _scenario(replace(known, phases=phases), variant, stall_s=0.0, interval_s=known.step_s)


def _scenario(known: Fit, variant: Variant, *, stall_s: float, interval_s: float) -> Scenario:
    def phase(name: str) -> Spread:
        return mixed(
            {rung: getattr(one, name) for rung, one in known.phases.items()},
            without_spare(known, variant),
        )

    source = f"a run of {known.world_size} ranks, struck each {known.mttf_s:g} s"
    return Scenario(
        name=variant.name,
        job=Job(
            gpus=variant.world_size,
            gpus_per_node=variant.world_size,
            duration_s=variant.duration_s,
            step_s=known.step_s,
        ),
        failures=(
            FailureRate(
                FailureClass.UNKNOWN, Unit.RUN, Extent.PROCESS, variant.mttf_s, source="drawn"
            ),
        ),
        tiers=(
            ScenarioTier(
                "images",
                interval_s,
                stall_s,
                0.0,
                Extent.PROCESS,
                phase("restore_s"),
                source=source,
            ),
        ),
        recovery=Recovery(phase("detect_s"), phase("regroup_s"), constant(0.0), source=source),
    )


def without_spare(known: Fit, variant: Variant) -> float:
    """Return the share of strikes that find no spare."""
    return lost_share(known.refill_s / variant.mttf_s, variant.spares)


def mixed(samples_s: Mapping[Rung, Samples], respawned: float) -> Spread:
    """Mix the samples of two rungs, where this share of recoveries respawns.

    As many quantiles as that are of the one rung, and the rest are of the other.
    """
    many = round(respawned * QUANTILES)
    return measured(
        np.concatenate(
            [
                _quantiles(samples_s[Rung.RESPAWN], many),
                _quantiles(samples_s[Rung.SPARE], QUANTILES - many),
            ]
        )
    )


def _quantiles(samples_s: Samples, count: int) -> NDArray[np.float64]:
    return np.quantile(samples_s, (np.arange(count) + 0.5) / max(1, count))
