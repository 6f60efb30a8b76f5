"""The answer of `outlast plan`.

A plan says which ETTR to expect, how often the run fails, how often to save to each tier, how many
spares to keep, and what limits the run.

ETTR       mean, mean_se   mean over simulated runs, and its standard error
           low, high       5th and 95th percentile over runs of this length. Runs differ by luck,
                           and by the uncertainty of rates that were estimated from few failures
Overhead   seconds lost to saves and repeated work for each productive second, at the intervals of
           the plan. To first order it is stall / interval + seconds repeated per failure / MTTF.
           Restarts are not included, because they do not depend on the intervals.
Binding    the term that takes the largest share of wall-clock time (`sweep.Term`). The shares of
           all terms and the ETTR sum to 1.

This module is pure: data in, data out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from outlast.model.quantities import QuantityKind, echo, finite_or_none
from outlast.model.redundancy import Code, chance_within, copies, loss_of_group
from outlast.model.time_units import DAY_S, HOUR_S
from outlast.planner.cluster_file import Cluster, Input
from outlast.planner.readers import redundancy_numbers
from outlast.planner.resolve import Resolved, rate_per_s, rates_by_extent, resolve
from outlast.planner.scale import binding_of, durable, mttf_of
from outlast.planner.scenario import Extent, Scenario
from outlast.planner.sensitivity import EttrSwing, tornado
from outlast.planner.sweep import (
    FAILURES_MOST,
    REPAIRS_LEAST,
    Mapper,
    Summary,
    Term,
    at_known_rates,
    in_order,
    long_run,
    run_all,
    window,
)

REPLICAS = 1024
REPLICAS_LEAST = 256  # histories are drawn in blocks of this size
WORK_MOST = 400_000  # failures simulated for the answer; the fewer each run has, the more replicas
PLAN_FAILURES = 600  # failures simulated in each replica
SENSITIVITY_REPLICAS = 256
SENSITIVITY_FAILURES = 80  # failures simulated in each replica, if not every input was asked for


@dataclass(frozen=True, slots=True)
class Ettr:
    """The ETTR of a run: its mean and standard error, and the interval that holds 90 % of runs."""

    mean: float
    mean_se: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Plan:
    """A plan says what to expect of one run, and which choices were made for it.

    `plan` makes it from a cluster. The ETTR and the shares are means over simulated runs. The
    intervals and spares that were chosen are in `resolved.inputs`, each with its reason.

    mttf_s       mean time between failures of the whole run
    overhead     seconds lost for each productive second, by closed form
    lost         share of wall-clock time that each term takes
    by_class     share of wall-clock time that each class of failure takes
    sensitivity  the inputs that the ETTR depends on most
    notes        further sentences that a reader should know
    """

    resolved: Resolved
    ettr: Ettr
    mttf_s: float
    overhead: float
    lost: dict[Term, float]
    by_class: dict[str, float]
    interruptions: float
    redundancy: dict[str, dict[str, Any]]
    sensitivity: tuple[EttrSwing, ...]
    sensitivity_base: float
    simulated: dict[str, float]
    notes: tuple[str, ...]

    @property
    def scenario(self) -> Scenario:
        """The scenario that the plan is for."""
        return self.resolved.scenario

    @property
    def binding(self) -> str:
        return binding_of(self.lost)

    @property
    def interval_s(self) -> dict[str, float]:
        """Seconds between two saves, by the name of the tier."""
        return {tier.name: self.scenario.interval_s(tier) for tier in self.scenario.tiers}

    @property
    def save_s(self) -> float:
        """Return the seconds that a save to the most durable tier takes: stall and write."""
        tier = durable(self.scenario)
        return tier.stall_s + tier.write_s

    def facts(self) -> dict[str, Any]:
        """Return the JSON of `outlast plan`. A number that is infinite is null."""
        job = self.scenario.job
        return {
            "inputs": {path: input_facts(one) for path, one in self.resolved.inputs.items()},
            "ettr": {
                "mean": self.ettr.mean,
                "mean_se": self.ettr.mean_se,
                "low": self.ettr.low,
                "high": self.ettr.high,
            },
            "mttf_s": finite_or_none(self.mttf_s),
            "interval_s": {
                name: finite_or_none(seconds) for name, seconds in self.interval_s.items()
            },
            "save_s": self.save_s,
            "overhead": finite_or_none(self.overhead),
            "spares": self.scenario.repair.spare_nodes,
            "redundancy": self.redundancy,
            "binding": self.binding,
            "lost": {term.value: share for term, share in self.lost.items()},
            "lost_by_class": self.by_class,
            "interruptions": self.interruptions,
            "gpu_hours": gpu_hours(self.scenario),
            "money": money(self.scenario, self.ettr.mean),
            "samples_per_day": (
                samples_per_day(self.scenario, self.ettr.mean) if job.samples_per_step else None
            ),
            "sensitivity": [one.facts() for one in self.sensitivity],
            "sensitivity_base": self.sensitivity_base,
            "simulated": self.simulated,
            "notes": list(self.notes),
        }


def input_facts(one: Input) -> dict[str, Any]:
    value = one.value if isinstance(one.value, (int, float, str, bool)) else one.said
    return {
        "value": finite_or_none(value) if isinstance(value, float) else value,
        "said": one.said,
        "origin": one.origin.value,
        "source": one.source,
        **(
            {"range": [one.reader.say(end).strip('"') for end in one.range]}
            if one.range is not None
            else {}
        ),
    }


def plan(
    cluster: Cluster,
    *,
    seed: int,
    replicas: int | None = None,
    everything: bool = False,
    mapper: Mapper = in_order,
) -> Plan:
    """Make the plan of a cluster.

    everything  examine the sensitivity to every input
    replicas    number of simulated runs; None for as many as WORK_MOST allows
    """
    resolved = resolve(cluster)
    scenario = resolved.scenario
    part = window(scenario, PLAN_FAILURES)
    share = 1.0 if part is scenario else part.job.duration_s / scenario.job.duration_s / 2
    count = replicas or replicas_for(part)
    summary, ettr = _simulated(scenario, seed=seed, replicas=count, share=share, mapper=mapper)
    notes = list(_notes(scenario, part, summary))
    most = FAILURES_MOST if everything else SENSITIVITY_FAILURES
    base, swings = tornado(
        resolved,
        cluster,
        seed=seed,
        replicas=SENSITIVITY_REPLICAS,
        failures_most=most,
        everything=everything,
        mapper=mapper,
    )
    return Plan(
        resolved=resolved,
        ettr=ettr,
        mttf_s=mttf_of(scenario),
        overhead=overhead(scenario),
        lost=summary.shares,
        by_class=summary.by_class,
        interruptions=summary.interruptions / share,
        redundancy=redundancy(resolved),
        sensitivity=swings,
        sensitivity_base=base,
        simulated={"replicas": count, "seed": seed, "share_of_run": share},
        notes=tuple(notes),
    )


def replicas_for(scenario: Scenario) -> int:
    """Return how many replicas to simulate, in whole blocks of 256."""
    expected = scenario.job.duration_s / mttf_of(scenario)
    wanted = min(REPLICAS, WORK_MOST / max(1.0, expected))
    return max(REPLICAS_LEAST, int(wanted) // REPLICAS_LEAST * REPLICAS_LEAST)


def _simulated(
    scenario: Scenario, *, seed: int, replicas: int, share: float, mapper: Mapper
) -> tuple[Summary, Ettr]:
    both = (
        [scenario]
        if share == 1 or (known := at_known_rates(scenario)) == scenario
        else [scenario, known]
    )
    summary, *rest = run_all(
        both,
        seed=seed,
        replicas=replicas,
        failures_most=PLAN_FAILURES,
        uncertain=True,
        mapper=mapper,
    )
    low, high = (
        _percentiles(summary)
        if share == 1
        else long_run(rest[0] if rest else summary, summary, share=share)
    )
    return summary, Ettr(min(1.0, max(0.0, summary.mean)), summary.mean_se, low, high)


def _percentiles(summary: Summary) -> tuple[float, float]:
    ordered = sorted(summary.ettr.tolist())
    return ordered[round(0.05 * (len(ordered) - 1))], ordered[round(0.95 * (len(ordered) - 1))]


def _notes(scenario: Scenario, part: Scenario, summary: Summary) -> list[str]:
    notes = []
    job = scenario.job
    if part is not scenario:
        notes.append(
            f"about {_many(job.duration_s / mttf_of(scenario))} failures are expected; only the"
            " first part of the run was simulated:"
            f" {echo(float(f'{part.job.duration_s:.3g}'), QuantityKind.DURATION)}"
        )
        loses_nodes = any(scenario.nodes_lost(one.extent) for one in scenario.failures)
        if loses_nodes and part.job.duration_s < REPAIRS_LEAST * scenario.repair.time.mean_s:
            notes.append("that is too short for a repair: the figures leave out waiting for nodes")
    largest = max((one.extent for one in scenario.failures), default=Extent.PROCESS)
    if not any(
        tier.survives >= largest and math.isfinite(tier.interval_s) for tier in scenario.tiers
    ):
        notes.append(
            f"no tier survives the loss of a {largest.name.lower()}: after such a failure the"
            " run starts from the beginning"
        )
    if not scenario.failures or not any(math.isfinite(one.mttf_s) for one in scenario.failures):
        notes.append("nothing fails here")
    if 0 < summary.mean < 1e-3 or summary.mean == 0:
        notes.append("the run makes no progress: it fails faster than it recovers and saves")
    return notes


def _many(number: float) -> str:
    return f"{number:,.0f}" if number < 1e9 else f"{number:.2g}"


# --- figures without simulation -------------------------------------------------------------------


def overhead(scenario: Scenario) -> float:
    """Return the seconds that stalls and repeated work take per productive second.

    A failure repeats half the interval of the tier that serves it, and the time of its write.
    """
    stalls = math.fsum(tier.stall_s / scenario.interval_s(tier) for tier in scenario.tiers)
    repeated = []
    for extent, per_s in rates_by_extent(scenario.failures, scenario.job).items():
        usable = [
            scenario.interval_s(tier) / 2 + tier.write_s
            for tier in scenario.tiers
            if tier.survives >= extent and not scenario.is_live(tier)
        ]
        live = any(tier.survives >= extent and scenario.is_live(tier) for tier in scenario.tiers)
        lost_s = scenario.job.step_s / 2 if live else min([*usable, scenario.job.duration_s / 2])
        repeated.append(per_s * lost_s)
    return stalls + math.fsum(repeated)


def redundancy(resolved: Resolved) -> dict[str, dict[str, Any]]:
    """Describe each tier that keeps state in the memory of nodes.

    scheme          the kind of redundancy, as in the cluster file
    survives        the largest extent of a failure that it survives
    memory          the memory that it takes, as a multiple of the state
    lost_with_next  the probability, after the loss of one node, that more nodes are lost than the
                    scheme survives before training goes on
    """
    scenario, out = resolved.scenario, {}
    for tier in scenario.tiers:
        one = resolved.inputs.get(f"tier.{tier.name}.redundancy")
        if one is None:
            continue
        copied, k, m = redundancy_numbers(str(one.value))
        code = copies(1 + copied) if copied else Code(k, m) if k else Code(1, 0)
        out[tier.name] = {
            "scheme": str(one.value),
            "survives": tier.survives.name.lower(),
            "memory": code.memory,
            "lost_with_next": _lost_with_next(scenario, code),
        }
    return out


def _lost_with_next(scenario: Scenario, code: Code) -> float:
    """Return the probability that a group which has lost a node loses more than it survives.

    The further nodes are lost before training goes on. Nodes are taken to fail independently.
    """
    job, recovery = scenario.job, scenario.recovery
    window_s = recovery.detect.mean_s + recovery.regroup.mean_s + recovery.take.mean_s
    per_s = (
        math.fsum(rate_per_s(one, job) for one in scenario.failures if one.extent is Extent.NODE)
        / job.nodes
    )
    return loss_of_group(code, chance_within(window_s, 1 / per_s) if per_s else 0.0, lost=1)


def gpu_hours(scenario: Scenario) -> dict[str, float]:
    """Return the GPU hours of the job: those of training, and those of spare nodes."""
    job = scenario.job
    hours = job.duration_s / HOUR_S
    return {
        "training": job.gpus * hours,
        "spares": scenario.repair.spare_nodes * job.gpus_per_node * hours,
    }


def money(scenario: Scenario, ettr: float) -> dict[str, float] | None:
    """Return the cost in the currency of the price. Return None if no price is given.

    lost   the cost of the unproductive time of the training GPUs, and of the spares
    """
    price, hours = scenario.job.gpu_hour_price, gpu_hours(scenario)
    if not price:
        return None
    return {
        "total": price * (hours["training"] + hours["spares"]),
        "lost": price * (hours["training"] * (1 - ettr) + hours["spares"]),
    }


def samples_per_day(scenario: Scenario, ettr: float) -> float:
    """Return the samples per day, with the mean throttling of a day and with stragglers."""
    return scenario.job.samples_per_step / scenario.job.step_s * DAY_S * ettr * speed(scenario)


def speed(scenario: Scenario) -> float:
    """Return the mean speed of training, as a share of the undisturbed speed.

    Throttling follows a sine over the day, so its mean is half of its largest value. The run is
    slower while there is any straggler.
    """
    job, slow = scenario.job, scenario.stragglers
    any_slow = (
        -math.expm1(-job.nodes * slow.lasts.mean_s / slow.mttf_s)
        if math.isfinite(slow.mttf_s)
        else 0.0
    )
    return (1 - job.throttle / 2) * (1 - any_slow + any_slow / slow.slowdown)
