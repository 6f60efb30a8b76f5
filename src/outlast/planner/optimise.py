"""Search in simulation for the best parameters: intervals, tiers in use, spares, redundancy.

The result is compared with fixed intervals, Young's and Daly's.

Goal          The best parameters have the largest productive share of all GPUs, spares included:
              ETTR x gpus / (gpus + spare GPUs). A budget limits the spares: a share of the GPUs, or
              money for the GPU-hours of the spares. The memory that redundancy takes is reported,
              but does not count.
Method        The search goes through the parameters twice. Each one is varied over its candidates
              while the others stay as they are. All candidates have the same failures (common
              random numbers). The search begins with the values of the closed forms. It leaves a
              value only if a candidate is better by more than the noise. At the end, the best
              parameters and the others are compared on new failures, on which nothing was chosen.
Intervals     First a grid around the closed form (x 1/8 to x 8) is tried, then a finer grid around
              the best of these.
Spares        From none to twice the closed form.
Tiers         Every set of tiers with a tier that survives as much as any tier does. The loss of
              everything at once has no rate, but has to be survived anyway. So the interval of the
              tier that survives it is at most one day.
Redundancy    none, copies=1, copies=2, parity=4+1, parity=8+2. If no tier is in the memory of
              nodes, `PEERS` is added as a candidate, with its assumptions among the inputs.
Comparison    Fixed intervals, Young's and Daly's are tried for the tier that serves most failures.
              Everything else is as in the best parameters.
Limits        This is a local search. It may miss parameters that are better only together.
              Differences below the standard error (`behind_se`) say nothing.

This module is pure: data in, data out.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

import numpy as np

from outlast.errors import UsageError
from outlast.model import intervals
from outlast.model.quantities import QuantityKind, echo
from outlast.planner.cluster_file import Cluster, Origin
from outlast.planner.histories import BLOCK
from outlast.planner.readers import AUTO
from outlast.planner.resolve import INTERVAL_MOST_S, rates_by_extent, resolve
from outlast.planner.scenario import Scenario, ScenarioTier
from outlast.planner.schema import LISTS
from outlast.planner.sweep import Mapper, Summary, in_order, run_all

FIXED_S = (900.0, 1800.0, 3600.0)
COARSE = tuple(2.0**power for power in (-3, -2, -1.5, -1, -0.5, 0, 0.5, 1, 1.5, 2, 3))
FINE = (0.8, 0.9, 1.0, 1.1, 1.25)
REDUNDANCIES = ("none", "copies=1", "copies=2", "parity=4+1", "parity=8+2")
# the inputs of the tier that the search adds if no tier is in the memory of nodes
PEERS: Mapping[str, tuple[object, str]] = {
    "redundancy": ("copies=1", "assumption: added by the search"),
    "bandwidth_per_gpu": (
        "50GB/s",
        (
            "assumption: a link of 400 Gb/s for each GPU, as Llama 3 405B, arXiv 2407.21783 [P],"
            " which nothing else uses"
        ),
    ),
    "blocking": (False, "assumption: copied beside training"),
    "stall": ("40ms", "assumption: as ByteRobust's saves into memory, 10 to 40 ms [S]"),
}
SPARE_FACTORS = (0.0, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0)
ROUNDS = 2
NOISE = 2.0  # a candidate has to be better by this many standard errors of the difference
REPLICAS_MOST = 2048
SEARCH_WORK = 50_000  # failures that are simulated for each candidate
# failures that are simulated in each replica: in the search, and in the final comparison
SEARCH_FAILURES, JUDGE_FAILURES = 200, 1_000
JUDGES_SEED = 1_000_003  # added to the seed, so that the final comparison has new failures


class Parameter(str, Enum):
    """The inputs that the search may choose (`--optimise`)."""

    INTERVAL = "interval"
    TIERS = "tiers"
    SPARES = "spares"
    REDUNDANCY = "redundancy"


@dataclass(frozen=True, slots=True)
class SpareBudget:
    """The budget for spares: `share` of the GPUs, or `money` in all. inf stands for no limit."""

    share: float = math.inf
    money: float = math.inf

    def spares_most(self, scenario: Scenario) -> int:
        job = scenario.job
        by_share = self.share * job.gpus / job.gpus_per_node
        if math.isfinite(self.money) and not job.gpu_hour_price:
            raise UsageError(
                "a budget in money needs the price of a GPU-hour",
                hint="give --price 2.5/h, or a budget as a share of the GPUs: --budget 2%",
            )
        one_node = job.gpus_per_node * job.duration_s / 3600 * job.gpu_hour_price
        by_money = self.money / one_node if one_node else math.inf
        return int(min(job.nodes, by_share + 1e-9, by_money + 1e-9))


@dataclass(frozen=True, slots=True)
class Option:
    """A named set of parameters, and its result under failures that were not used to choose it.

    behind     the `value` of the best parameters minus that of this option, as a mean over replicas
    behind_se  the standard error of `behind`
    """

    name: str
    value: float
    ettr: float
    ettr_se: float
    behind: float
    behind_se: float
    interval_s: dict[str, float]
    spares: int
    redundancy: dict[str, str]

    def facts(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "value": self.value,
            "ettr": self.ettr,
            "ettr_se": self.ettr_se,
            "behind": self.behind,
            "behind_se": self.behind_se,
            "interval_s": {
                name: seconds if math.isfinite(seconds) else None
                for name, seconds in self.interval_s.items()
            },
            "spares": self.spares,
            "redundancy": self.redundancy,
        }


@dataclass(frozen=True, slots=True)
class ParameterCurve:
    """The result for each value of one parameter when it was last varied, and the chosen value.

    The results are from the failures on which the value was chosen.
    """

    parameter: str
    chosen: float
    x: tuple[float, ...]
    value: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Optimum:
    """The result of the search.

    cluster      the cluster with the chosen parameters
    options      the best parameters, and those that they are compared with
    curves       how the result depends on each parameter
    simulations  the number of runs that were simulated in the search
    """

    cluster: Cluster
    options: tuple[Option, ...]
    curves: tuple[ParameterCurve, ...]
    simulations: int

    def facts(self) -> dict[str, Any]:
        return {
            "options": [one.facts() for one in self.options],
            "simulations": self.simulations,
            "curves": [
                {
                    "parameter": one.parameter,
                    "chosen": one.chosen,
                    "x": list(one.x),
                    "value": list(one.value),
                }
                for one in self.curves
            ],
        }


def replicas_for_search(scenario: Scenario) -> int:
    """Return how many replicas are needed to compare candidates, in whole blocks of 256.

    The fewer failures a run has, the more replicas are needed.
    """
    expected = (
        math.fsum(rates_by_extent(scenario.failures, scenario.job).values())
        * scenario.job.duration_s
    )
    wanted = min(REPLICAS_MOST, SEARCH_WORK / max(1.0, min(expected, SEARCH_FAILURES)))
    return max(BLOCK, int(wanted) // BLOCK * BLOCK)


def value_of(scenario: Scenario, ettr: float) -> float:
    """Return the productive share of all GPUs, spares included."""
    job = scenario.job
    return ettr * job.gpus / (job.gpus + scenario.repair.spare_nodes * job.gpus_per_node)


def optimise(
    cluster: Cluster,
    parameters: Sequence[Parameter],
    *,
    seed: int,
    replicas: int,
    budget: SpareBudget = SpareBudget(),
    mapper: Mapper = in_order,
) -> Optimum:
    """Search for the best values of these parameters.

    Raises UsageError for a budget in money without a price.
    """
    search = _Search(
        _with_peers(cluster) if Parameter.REDUNDANCY in parameters else cluster,
        seed,
        replicas,
        budget,
        mapper,
    )
    for _ in range(ROUNDS):
        for parameter in parameters:
            search.improve(parameter)
    options = _judged(
        cluster,
        search.best,
        parameters,
        search.spares_most,
        seed=seed + JUDGES_SEED,
        replicas=replicas,
        mapper=mapper,
    )
    return Optimum(search.best, options, tuple(search.curves.values()), search.simulations)


class _Search:
    """A search. `best` is the cluster with the best parameters so far; none of them is `auto`."""

    def __init__(
        self, cluster: Cluster, seed: int, replicas: int, budget: SpareBudget, mapper: Mapper
    ) -> None:
        self.best = _settled(cluster)
        self.curves: dict[str, ParameterCurve] = {}
        self.simulations = 0
        self._seed, self._replicas, self._mapper = seed, replicas, mapper
        self.spares_most = budget.spares_most(resolve(self.best).scenario)
        if self.best.value("repair.spares") > self.spares_most:
            self.best = _spares(self.best, self.spares_most)

    def improve(self, parameter: Parameter) -> None:
        """Vary one parameter, and keep its best value in `best`."""
        if parameter is Parameter.INTERVAL:
            for name in self.best.tiers:
                self._intervals(name)
        elif parameter is Parameter.SPARES:
            self._spares()
        else:
            self._choose(
                list(
                    _tier_sets(self.best)
                    if parameter is Parameter.TIERS
                    else _redundancies(self.best)
                )
            )

    def _intervals(self, name: str) -> None:
        path = f"tier.{name}.interval"
        seen: dict[float, float] = {}
        for factors in (COARSE, FINE):
            middle_s = self.best.value(path)
            if not math.isfinite(middle_s):
                return
            steps = self.best.value("job.step")
            candidates = {
                max(steps, round(min(INTERVAL_MOST_S, middle_s * factor) / steps) * steps)
                for factor in factors
            }
            seconds = sorted({one for one in candidates if one not in seen} | {middle_s})
            clusters = [
                _interval(self.best, name, one, "searched in simulation") for one in seconds
            ]
            seen |= zip(seconds, self._choose(clusters), strict=True)
        x = tuple(sorted(seen))
        self.curves[path] = ParameterCurve(
            path, self.best.value(path), x, tuple(seen[one] for one in x)
        )

    def _spares(self) -> None:
        usual = max(
            4,
            _settled(self.best.put("repair.spares", AUTO, origin=Origin.DEFAULT, source="")).value(
                "repair.spares"
            ),
        )
        seen: dict[int, float] = {}
        for factors in (SPARE_FACTORS, FINE):
            middle = usual if not seen else self.best.value("repair.spares")
            wanted = {min(self.spares_most, round(middle * factor)) for factor in factors}
            counts = sorted(
                {one for one in wanted if one not in seen} | {self.best.value("repair.spares")}
            )
            seen |= zip(
                counts, self._choose([_spares(self.best, count) for count in counts]), strict=True
            )
        x = tuple(sorted(seen))
        self.curves["repair.spares"] = ParameterCurve(
            "repair.spares",
            self.best.value("repair.spares"),
            tuple(map(float, x)),
            tuple(seen[one] for one in x),
        )

    def _choose(self, clusters: list[Cluster]) -> list[float]:
        """Simulate these clusters, and return the result of each.

        The best of them becomes `best`, if it is better than the present one by more than the
        noise.
        """
        scenarios = [resolve(one).scenario for one in [self.best, *clusters]]
        summaries = run_all(
            scenarios,
            seed=self._seed,
            replicas=self._replicas,
            failures_most=SEARCH_FAILURES,
            mapper=self._mapper,
        )
        self.simulations += len(scenarios) * self._replicas
        values = [
            summary.ettr * value_of(scenario, 1.0)
            for scenario, summary in zip(scenarios, summaries, strict=True)
        ]
        means = [float(one.mean()) for one in values]
        best = int(np.argmax(means[1:]))
        gain = values[best + 1] - values[0]
        if gain.mean() > NOISE * gain.std(ddof=1) / math.sqrt(len(gain)):
            self.best = clusters[best]
        return means[1:]


# --- candidates -----------------------------------------------------------------------------------


def _settled(cluster: Cluster) -> Cluster:
    """Replace each `auto` by the value of the closed forms. The search begins there."""
    for path, one in resolve(cluster).inputs.items():
        if one.origin is Origin.PLAN:
            cluster = cluster.put_value(path, one.value, origin=Origin.PLAN, source=one.source)
    return cluster


def _interval(cluster: Cluster, name: str, seconds: float, source: str) -> Cluster:
    return cluster.put_value(f"tier.{name}.interval", seconds, origin=Origin.PLAN, source=source)


def _spares(cluster: Cluster, count: int) -> Cluster:
    return cluster.put_value(
        "repair.spares", count, origin=Origin.PLAN, source="searched in simulation"
    )


def _with_peers(cluster: Cluster) -> Cluster:
    """Return the cluster with a tier in the memory of nodes, if it has none."""
    if any(f"tier.{name}.redundancy" in cluster.inputs for name in cluster.tiers):
        return cluster
    name = next(one for one in ("peers", "memory-of-peers", "peers-2") if one not in cluster.tiers)
    out = replace(cluster, tiers=(name, *cluster.tiers))
    for key, field in LISTS["tier"].items():
        value, source = PEERS.get(key, (field.default, field.why))
        if value is not None:
            out = out.put(f"tier.{name}.{key}", value, origin=Origin.DEFAULT, source=source)
    return out


def _tier_sets(cluster: Cluster) -> Iterator[Cluster]:
    """Yield the cluster with each set of tiers in which one survives as much as any tier does.

    Nothing is saved to a tier that is not in use. Intervals are chosen again for each set.
    """
    scenario = resolve(cluster).scenario
    survives = {tier.name: tier.survives for tier in scenario.tiers}
    for size in range(1, len(cluster.tiers) + 1):
        for names in itertools.combinations(cluster.tiers, size):
            if max(survives[name] for name in names) == max(survives.values()):
                yield _only(cluster, names)


def _only(cluster: Cluster, names: tuple[str, ...]) -> Cluster:
    used = replace(cluster, tiers=names)
    for name in names:
        used = used.put(f"tier.{name}.interval", AUTO, origin=Origin.PLAN, source="")
    used = replace(_settled(used), tiers=cluster.tiers)
    for name in cluster.tiers:
        if name not in names:
            used = _interval(used, name, math.inf, "not in use: the run is better without it")
    return used


def _redundancies(cluster: Cluster) -> Iterator[Cluster]:
    """Yield the cluster with each redundancy to try. All tiers that have one get the same.

    The duration of a save, and what it survives, are calculated again.
    """
    names = [name for name in cluster.tiers if f"tier.{name}.redundancy" in cluster.inputs]
    for redundancy in REDUNDANCIES:
        out = cluster
        for name in names:
            follows = [f"tier.{name}.{key}" for key in ("survives", "stall", "write", "restore")]
            out = out.without(
                *(
                    path
                    for path in follows
                    if path in out.inputs
                    and out.inputs[path].origin in (Origin.WORKED_OUT, Origin.PLAN)
                )
            )
            out = out.put(
                f"tier.{name}.redundancy",
                redundancy,
                origin=Origin.PLAN,
                source="searched in simulation",
            )
            out = out.put(f"tier.{name}.interval", AUTO, origin=Origin.PLAN, source="")
        yield _settled(out)


# --- the comparison -------------------------------------------------------------------------------


def _judged(
    cluster: Cluster,
    best: Cluster,
    parameters: Sequence[Parameter],
    spares_most: int,
    *,
    seed: int,
    replicas: int,
    mapper: Mapper,
) -> tuple[Option, ...]:
    """Return the best parameters first, and then the others by their value.

    They are compared on new failures, on which nothing was chosen.
    """
    named = [("searched", best), *_others(cluster, best, parameters, spares_most)]
    scenarios = [resolve(one).scenario for _, one in named]
    summaries = run_all(
        scenarios, seed=seed, replicas=replicas, failures_most=JUDGE_FAILURES, mapper=mapper
    )
    options = [
        _option(name, one, scenario, summary, scenarios[0], summaries[0])
        for (name, one), scenario, summary in zip(named, scenarios, summaries, strict=True)
    ]
    return (options[0], *sorted(options[1:], key=lambda one: -one.value))


def _option(
    name: str,
    cluster: Cluster,
    scenario: Scenario,
    summary: Summary,
    best_scenario: Scenario,
    best: Summary,
) -> Option:
    behind = best.ettr * value_of(best_scenario, 1.0) - summary.ettr * value_of(scenario, 1.0)
    redundancy = {
        tier: str(cluster.value(f"tier.{tier}.redundancy"))
        for tier in cluster.tiers
        if f"tier.{tier}.redundancy" in cluster.inputs
    }
    return Option(
        name=name,
        value=value_of(scenario, summary.mean),
        ettr=summary.mean,
        ettr_se=summary.mean_se,
        behind=float(behind.mean()),
        behind_se=float(behind.std(ddof=1) / math.sqrt(len(behind))),
        interval_s={tier.name: scenario.interval_s(tier) for tier in scenario.tiers},
        spares=scenario.repair.spare_nodes,
        redundancy=redundancy,
    )


def _others(
    cluster: Cluster, best: Cluster, parameters: Sequence[Parameter], spares_most: int
) -> Iterator[tuple[str, Cluster]]:
    """Yield the options to compare with, each with its name.

    The first is the cluster as it was given. If intervals are searched, the others are the best
    parameters with another interval for the busiest tier.
    """
    given = _settled(cluster)
    yield (
        "as given" if given.value("repair.spares") <= spares_most else "as given, over the budget",
        given,
    )
    if Parameter.INTERVAL not in parameters:
        return
    tier, per_s = _busiest(resolve(best).scenario)
    for seconds in FIXED_S:
        yield (
            f"{tier.name} every {echo(seconds, QuantityKind.DURATION)}",
            _interval(best, tier.name, seconds, "fixed"),
        )
    if per_s and tier.stall_s:
        rules = {
            "Young": intervals.young_s,
            "Daly, first order": intervals.daly_first_s,
            "Daly, higher order": intervals.daly_higher_s,
        }
        for name, rule in rules.items():
            yield (
                f"{tier.name} by {name}",
                _interval(best, tier.name, rule(tier.stall_s, 1 / per_s), name),
            )


def _busiest(scenario: Scenario) -> tuple[ScenarioTier, float]:
    """Return the tier that serves most failures, and how many it serves per second.

    A tier serves the failures that no cheaper tier in use survives.
    """
    in_use = sorted(
        (tier for tier in scenario.tiers if math.isfinite(tier.interval_s)),
        key=lambda tier: tier.survives,
    )
    rates = rates_by_extent(scenario.failures, scenario.job)
    served: list[tuple[ScenarioTier, float]] = []
    below = -1
    for tier in in_use:
        served.append(
            (
                tier,
                math.fsum(
                    per_s for extent, per_s in rates.items() if below < extent <= tier.survives
                ),
            )
        )
        below = tier.survives
    return max(served, key=lambda pair: pair[1])
