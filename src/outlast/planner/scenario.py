"""A scenario to plan for: the job, how its parts fail, what recovery takes, where state is kept.

This module holds data only. All depths of the planner read it (docs/explanation/depths.md).

Units      seconds of wall-clock time, unless a name says otherwise. Counts are of GPUs, nodes or
           racks.

All depths compute the same model of a run, which is described here. `tests/planner/course.py`
computes it in plain Python, and the others must agree with it.

Position   `p` is the productive time that is kept, in seconds at full speed. The ETTR of a run of
           length T is p(T) / T, which is `ettr_training` of the ledger. What a run has done since
           its newest save counts as kept when the run's time is up.
Saves      A save to tier j is due whenever p reaches a multiple of the tier's interval (p > 0).
           Training pauses for the tier's stall. The position can be restored `write` seconds
           after the end of the stall. If several saves are due, their stalls come one after
           another, in the order of the list of tiers. An interval is rounded to whole steps, and is
           at least one step. A tier with an interval of one step and without a stall is the live
           state of replicas: it always holds the newest whole step. Writes to one tier may overlap.
           The position from which training goes on after a failure is not saved again. When the run
           begins, every tier holds position 0, the state that the run begins with.
Failure    A failure has a wall-clock time and an extent: what is lost with it. The run falls back
           to the newest position that a tier surviving this extent can restore, and the work since
           then is repeated. If no such tier holds a position, p falls to 0, and nothing is
           restored. If several tiers hold the position, the one that restores fastest this time is
           used; if these are equally fast, the first in the list. Tiers that do not survive the
           extent are empty until they save again, but a live tier holds the restored position at
           once. If a failure cuts off a write or a stall, that save is lost.
Recovery   It consists of detection, regroup, replacement of lost nodes (if any), and restoring from
           the tier. A failure during a recovery starts the recovery again, with the larger of both
           extents, and the nodes of this failure are lost too. Failures come at the rate of the
           whole job at all times, even while it recovers or lacks nodes.
Nodes      A lost node is replaced by a spare. If there is none, the run waits for the first
           repaired node, and takes that. A recovery that takes any nodes spends `take` once. Lost
           nodes are in repair from the failure on, all nodes of one failure for the same time, and
           come back as spares. So a run that waits goes on as soon as no more nodes are in repair
           than it had spares at the beginning. With `shrinks`, the run does not wait, but goes on
           at (n - missing) / n of its speed. When a node returns, training stops for a regroup
           that lasts as long as that of the last failure. A node that returns during a
           regroup or a recovery is taken in at the end of this one. A regroup for a node cuts off
           writes and stalls, as a failure does, but no position is lost. With all nodes missing,
           the speed is 0.
Diagnosis  If one node is lost, a healthy node is taken out as well with probability `wrong`, and is
           in repair for the same time. `missed` and `caught` apply to failures of one node, too. A
           healthy node that fails and is repaired badly is a lemon from its failure on. A lemon
           that is caught is replaced by a sound node, which comes back in its place. A rack fails
           by what its nodes share, so its failure says nothing about any of its nodes.
Lemons     Lemons are a share of all nodes. Their number is rounded up or down at random, so that
           its mean is right. A lemon in service fails at the usual rate, and in addition at
           (factor - 1) times this rate. `lemons_bound` is the largest number of lemons that is
           computed with: more lemons do not fail more often, and the output counts the runs that
           have more. Any failure of a GPU or node strikes a lemon with a probability that is the
           lemons' share of all nodes.
Stops      A maintenance stop begins at every multiple of `every`, after a save. Everything is
           suspended for its duration: training, writing, recovery and repair go on afterwards where
           they were. Failures during a stop are found and repaired within the stop. The seconds of
           a stop are booked as `other`.
Seconds    Training at full speed is booked as productive, or as repeated if it is lost later. While
           the run is shrunk, the missing share of its speed is booked as degraded. Stalls are
           booked as stall, also those that were cut off. Regrouping, waiting for nodes and taking
           them are booked as regroup. All seconds sum to the duration.
Luck       Each failure has random numbers in (0, 1) of its own, drawn in advance (`histories.py`).
           Its times of detection, regroup, take, repair and restore are the quantiles at these
           numbers. So the same luck holds when an interval or the number of spares is changed.

This module is pure: no clock, no files, no torch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import IntEnum

from outlast.errors import UsageError
from outlast.model.terms import FailureClass
from outlast.planner.spread import Spread, constant


class Extent(IntEnum):
    """All that a failure takes with it. A tier survives failures up to one of these extents."""

    PROCESS = 0  # the process restarts on the same node
    NODE = 1
    RACK = 2
    RUN = 3  # the whole run: power, the file system, a bug that strikes every rank


class Unit(IntEnum):
    """The unit that a rate of failures refers to: the rate is that of one such unit."""

    GPU = 0
    NODE = 1
    RACK = 2
    RUN = 3


@dataclass(frozen=True, slots=True)
class Wave:
    """A time of many failures: from `begins_s` to `ends_s`, the rate is `factor` times as high."""

    begins_s: float
    ends_s: float
    factor: float


@dataclass(frozen=True, slots=True)
class FailureRate:
    """This says how often one class of failure strikes, and what it takes with it.

    mttf_s       mean time to failure of one unit if the shape is 1; otherwise the scale of the
                 Weibull law (the time at which 63 % of the units have failed)
    shape        Weibull shape k: below 1 infant mortality, 1 constant, above 1 wear-out. The hazard
                 at age a is k/mttf (a/mttf)^(k-1)
    age_s        age of every unit when the run begins; it matters only if the shape is not 1
    count        number of failures from which the rate was estimated; 0 if the rate is known. The
                 posterior is Gamma(count + 1/2, exposure) (Jeffreys), where mttf is exposure /
                 count. So the mean of the drawn rates is (count + 1/2) / count times the rate. If
                 the shape is not 1, the drawn factor multiplies the hazard

    A unit that failed and was repaired is as old as before. This matters only if the shape is not
    1.
    """

    failure_class: FailureClass
    unit: Unit
    extent: Extent
    mttf_s: float
    shape: float = 1.0
    age_s: float = 0.0
    count: float = 0.0
    waves: tuple[Wave, ...] = ()
    source: str = ""


@dataclass(frozen=True, slots=True)
class ScenarioTier:
    """A place where state is kept.

    `survives` is the largest extent of a failure after which the state can still be restored.
    """

    name: str
    interval_s: float
    stall_s: float
    write_s: float
    survives: Extent
    restore: Spread
    source: str = ""


@dataclass(frozen=True, slots=True)
class Recovery:
    """The durations of a recovery.

    If `shrinks` is True, a run without a spare goes on with fewer nodes. Otherwise it waits.
    """

    detect: Spread
    regroup: Spread
    take: Spread = field(default_factory=lambda: constant(0.0))
    shrinks: bool = False
    source: str = ""


@dataclass(frozen=True, slots=True)
class Repair:
    """Spares and the repair pipeline.

    spare_nodes  number of spares that are ready when the run begins
    time         how long it takes from the loss of a node until it is a spare again
    wrong        share of node losses at which a healthy node is taken out as well (misdiagnosis)
    missed       share of repairs after which the node comes back as faulty as before (a lemon)
    """

    spare_nodes: int = 0
    time: Spread = field(default_factory=lambda: constant(0.0))
    wrong: float = 0.0
    missed: float = 0.0
    source: str = ""


@dataclass(frozen=True, slots=True)
class Lemons:
    """Nodes that fail more often.

    share   share of all nodes that are lemons when the run begins
    factor  a lemon's rate of failures of GPUs and nodes, as a multiple of the usual rate
    caught  probability that a lemon is removed for good after a failure that took its node
    """

    share: float = 0.0
    factor: float = 1.0
    caught: float = 0.0
    source: str = ""


@dataclass(frozen=True, slots=True)
class Stragglers:
    """Slow but healthy nodes.

    mttf_s    mean time until a node becomes a straggler
    slowdown  a step takes this many times as long while there is a straggler. Several stragglers
              slow the run down no more than one, since all ranks wait for the slowest
    lasts     how long a node stays a straggler

    Stragglers cost throughput, not ETTR.
    """

    mttf_s: float = math.inf
    slowdown: float = 1.0
    lasts: Spread = field(default_factory=lambda: constant(0.0))
    source: str = ""


@dataclass(frozen=True, slots=True)
class Maintenance:
    """Planned stops: every `every_s` seconds, everything is suspended for `lasts_s` seconds.

    A stop comes after a save, so nothing is repeated.
    """

    every_s: float = math.inf
    lasts_s: float = 0.0
    source: str = ""

    def worked_s(self, wall_s: float) -> float:
        """Return the seconds from the beginning to this wall-clock time, without stops.

        The result does not grow during a stop.
        """
        if not self.lasts_s or wall_s < self.every_s:
            return wall_s
        begun = math.floor(wall_s / self.every_s)
        return (
            wall_s - (begun - 1) * self.lasts_s - min(wall_s - begun * self.every_s, self.lasts_s)
        )

    def wall_s(self, worked_s: float) -> float:
        """Return the wall-clock time after `worked_s` seconds of work.

        If a stop comes then, its end is returned.
        """
        if not self.lasts_s or worked_s < self.every_s:
            return worked_s
        return (
            worked_s
            + (math.floor((worked_s - self.every_s) / (self.every_s - self.lasts_s)) + 1)
            * self.lasts_s
        )

    def stands_at(self, wall_s: float) -> bool:
        return (
            bool(self.lasts_s)
            and wall_s >= self.every_s
            and wall_s - math.floor(wall_s / self.every_s) * self.every_s < self.lasts_s
        )


@dataclass(frozen=True, slots=True)
class Job:
    """The training job: how many GPUs, for how long, in which steps.

    `throttle` is the share of speed that is lost at the hottest hour of a day (a sine). It costs
    throughput, but no ETTR.
    """

    gpus: int
    duration_s: float
    gpus_per_node: int = 8
    nodes_per_rack: int = 4
    step_s: float = 1.0
    state_bytes: float = 0.0
    throttle: float = 0.0
    samples_per_step: float = 0.0
    gpu_hour_price: float = 0.0

    @property
    def nodes(self) -> int:
        return -(-self.gpus // self.gpus_per_node)

    @property
    def racks(self) -> int:
        return -(-self.nodes // self.nodes_per_rack)

    def units(self, unit: Unit) -> int:
        return (self.gpus, self.nodes, self.racks, 1)[unit]


@dataclass(frozen=True, slots=True)
class Scenario:
    """Everything that decides how a run goes, apart from luck.

    All depths of the planner read a scenario and the same histories of failures: Monte Carlo, the
    decisions of the engine, and the simulation of messages. `resolve.resolve` makes a scenario from
    a cluster file and its defaults. The docstring of this module describes the model of a run.

    A scenario is checked when it is made, and a UsageError names a value that is impossible. The
    sources of the values are kept by a `Cluster`, not here.
    """

    name: str
    job: Job
    failures: tuple[FailureRate, ...]
    tiers: tuple[ScenarioTier, ...]
    recovery: Recovery
    repair: Repair = field(default_factory=Repair)
    lemons: Lemons = field(default_factory=Lemons)
    stragglers: Stragglers = field(default_factory=Stragglers)
    maintenance: Maintenance = field(default_factory=Maintenance)

    def __post_init__(self) -> None:
        for problem in _problems(self):
            raise UsageError(
                f"{self.name}: {problem}",
                hint="change the value; `outlast plan` echoes all of them",
            )

    def interval_steps(self, tier: ScenarioTier) -> float:
        """Return the interval in whole steps, at least one; inf if the tier never saves."""
        if not math.isfinite(tier.interval_s):
            return math.inf
        return float(max(1, math.floor(tier.interval_s / self.job.step_s + 0.5)))

    def interval_s(self, tier: ScenarioTier) -> float:
        """Return the interval of whole steps in seconds; inf if the tier never saves."""
        return self.interval_steps(tier) * self.job.step_s

    def is_live(self, tier: ScenarioTier) -> bool:
        """Return True for the live state of replicas, which saves each step without a stall."""
        return tier.stall_s == 0 and tier.write_s == 0 and self.interval_steps(tier) == 1

    def nodes_lost(self, extent: Extent) -> int:
        """Return how many nodes a failure of this extent takes out for repair.

        A failure of the whole run breaks no node.
        """
        return {Extent.NODE: 1, Extent.RACK: min(self.job.nodes_per_rack, self.job.nodes)}.get(
            extent, 0
        )

    @property
    def lemons_bound(self) -> int:
        """Return the largest number of lemons that is computed with.

        It is the number at the beginning, plus what missed repairs are expected to add, plus four
        standard deviations of that.
        """
        at_first = math.ceil(self.lemons.share * self.job.nodes)
        per_s = sum(
            self.job.units(rate.unit) / rate.mttf_s
            for rate in self.failures
            if rate.extent is Extent.NODE
        )
        added = (
            min(self.repair.missed * per_s * self.job.duration_s, self.job.nodes)
            if self.lemons.factor > 1
            else 0.0
        )
        return int(
            min(
                self.job.nodes,
                at_first + (math.ceil(added + 4 * math.sqrt(added)) + 3 if added else 0),
            )
        )


def _problems(scenario: Scenario) -> list[str]:
    job, repair, lemons = scenario.job, scenario.repair, scenario.lemons
    wrong: list[str] = []

    def need(
        name: str,
        value: float,
        *,
        low: float = 0.0,
        high: float = math.inf,
        above: bool = False,
        finite: bool = True,
    ) -> None:
        if (
            math.isnan(value)
            or value < low
            or value > high
            or (above and value <= low)
            or (finite and math.isinf(value))
        ):
            bounds = f"{'above' if above else 'at least'} {low:g}" + (
                f" and at most {high:g}" if math.isfinite(high) else ""
            )
            wrong.append(
                f"{name} is {value!r}; it must be"
                f" {bounds}{' and finite' if finite and math.isinf(high) else ''}"
            )

    need("gpus", job.gpus, low=1)
    need("gpus_per_node", job.gpus_per_node, low=1)
    need("nodes_per_rack", job.nodes_per_rack, low=1)
    need("duration", job.duration_s, above=True)
    need("step", job.step_s, above=True)
    need("state_bytes", job.state_bytes)
    need("throttle", job.throttle, high=1)
    for rate in scenario.failures:
        name = f"failure {rate.failure_class.value}"
        need(f"{name}: mttf", rate.mttf_s, above=True, finite=False)
        need(f"{name}: shape", rate.shape, above=True)
        need(f"{name}: age", rate.age_s)
        need(f"{name}: count", rate.count)
        for wave in rate.waves:
            need(f"{name}: factor of a wave", wave.factor)
            need(f"{name}: end of a wave", wave.ends_s, low=wave.begins_s, finite=False)
    for tier in scenario.tiers:
        need(f"tier {tier.name}: interval", tier.interval_s, above=True, finite=False)
        need(f"tier {tier.name}: stall", tier.stall_s)
        need(f"tier {tier.name}: write", tier.write_s)
    need("spare_nodes", repair.spare_nodes)
    need("share of wrong diagnoses", repair.wrong, high=1)
    need("share of missed diagnoses", repair.missed, high=1)
    need("share of lemons", lemons.share, high=1)
    need("factor of lemons", lemons.factor, low=1)
    need("chance that a lemon is caught", lemons.caught, high=1)
    need("slowdown of a straggler", scenario.stragglers.slowdown, low=1)
    need("mttf of stragglers", scenario.stragglers.mttf_s, above=True, finite=False)
    need("time between maintenance", scenario.maintenance.every_s, above=True, finite=False)
    need("length of maintenance", scenario.maintenance.lasts_s)
    if 0 < scenario.maintenance.every_s <= scenario.maintenance.lasts_s:
        wrong.append(
            f"maintenance lasts {scenario.maintenance.lasts_s:g} s of every"
            f" {scenario.maintenance.every_s:g} s; no time is left to train"
        )
    if repair.spare_nodes > job.nodes:
        wrong.append(
            f"{repair.spare_nodes} spare nodes stand beside {job.nodes} nodes; that is more spares"
            " than nodes"
        )
    return wrong
