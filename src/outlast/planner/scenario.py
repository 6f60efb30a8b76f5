"""A scenario to plan for: the job, how its parts fail, what recovery takes, where state is kept.

This is data only. All depths of the planner read it.

Units      seconds of wall-clock time, unless a name says otherwise. Counts are of GPUs, nodes or
           racks.

The course of a run, which every depth computes (`tests/planner/course.py` computes it in plain
Python, and the others must agree with it):

Position   `p`: productive seconds that are kept, as at full speed. ETTR of a run of length T is
           p(T) / T: `ettr_training` of the ledger. Where a run is cut off by its end, what it did
           since the newest save counts as kept.
Saves      Tier j is due whenever p comes to a multiple of its interval (p > 0). Training stands
           still for its stall; it can be restored from that position once the stall is over and
           `write` more seconds have passed. If several are due, they stall one after another, in
           the order of the list. Intervals are rounded to whole steps, at least one. A tier whose
           interval is one step, without stall, is the live state of replicas: it holds the last
           whole step. Writes of one tier may overlap. A position from which training goes on is not
           saved again. Position 0, the state that the run begins with, is held by every tier when
           it begins.
Failure    At wall time t, of an extent: what is lost with it. Work since the newest position that a
           tier of at least that extent can restore is repeated (p falls back to it; where no tier
           has any: to 0, and nothing is restored). If several tiers have it, the one that restores
           fastest, by the same luck; among equals the first of the list. Tiers that do not survive
           the extent hold nothing until they save again; a live tier holds the restored position at
           once. What a failure cut off while it was written is lost, and so is a stall that it cut
           off.
Recovery   detection; then regroup; then, where nodes are lost, their replacement; then restore from
           the tier. A failure during recovery starts it again, with the larger of both extents, and
           loses its own nodes besides. Rates are those of the whole job at all times: recovery and
           missing nodes protect from nothing.
Nodes      A lost node is replaced by a spare at hand; if none is, the run waits for the first
           repaired one, and then takes it. `take` is paid once in a recovery that takes any. Lost
           nodes are in repair from the failure on, all of one failure for the same time, and come
           back as spares. So a run that waits goes on as soon as no more nodes are in repair than
           it had spares at the beginning. With `shrinks`, the run goes on without them at (n -
           missing) / n of its speed. When one returns, training stands still for a regroup that
           lasts as long as that of the last failure; a node that has returned when training goes on
           is in, be it after a regroup or after a recovery. A regroup cuts off what is being
           written or stalls, as a failure does, and loses no position. With all nodes missing it
           stands (speed 0).
Diagnosis  Where one node is lost, a healthy one is taken out as well with chance `wrong`, and
           repaired for as long. `missed` and `caught` too are about failures of one node. A healthy
           node that is mended badly is a lemon from its failure on. A lemon that is caught is
           replaced by a sound node, which comes back in its place. A rack that fails does so by
           what its nodes share, and says nothing about any of them.
Lemons     Whole nodes: share x nodes, rounded up or down by luck, so that the mean is right. Those
           in service fail at the usual rate, and in addition at (factor - 1) times it per lemon.
           `lemons_bound` is the most that are reckoned with; more fail no more often, and the
           output counts such runs. Any failure of a GPU or node strikes a lemon with the chance
           that they are of all nodes.
Stops      Maintenance begins at every multiple of `every`, after a save. Everything stands still
           for it, as if time did not pass: training, writing, recovery and repair go on afterwards
           where they were. What fails during a stop is found and mended in it. Its seconds are
           `other`.
Seconds    Training at full speed is productive, or repeated once it has been lost; shrunk, the
           missing share of it is degraded. Stalls are stall, cut off or not. Regroup is regroup,
           waiting for nodes and taking them. All sum to the duration.
Luck       Each failure has numbers in (0, 1) of its own, drawn ahead (`histories.py`): its
           detection, regroup, take, repair and restore are quantiles at these. So changing an
           interval or the spares changes no luck.

This module is pure: no clock, no files, no torch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import IntEnum

from outlast.errors import UsageError
from outlast.model.terms import FailureClass
from outlast.planner.spread import Spread, constant

HOUR_S = 3600.0
DAY_S = 86_400.0


class Extent(IntEnum):
    """What a failure takes with it; a tier survives all up to one of these."""

    PROCESS = 0  # the process restarts on the same node
    NODE = 1
    RACK = 2
    RUN = 3  # all of it: power, the file system, a bug that strikes every rank


class Unit(IntEnum):
    """What a rate is of."""

    GPU = 0
    NODE = 1
    RACK = 2
    RUN = 3


@dataclass(frozen=True, slots=True)
class Wave:
    """An epidemic: from `begins_s` to `ends_s` of the run the rate is `factor` times as high."""

    begins_s: float
    ends_s: float
    factor: float


@dataclass(frozen=True, slots=True)
class FailureRate:
    """How one class of failure strikes.

    mttf_s       mean time to failure of one unit, at shape 1; else the scale parameter of the
                 Weibull law (time at which 63 % have failed)
    shape        Weibull shape k: below 1 infant mortality, 1 constant, above 1 wear-out. The hazard
                 at age a is k/mttf (a/mttf)^(k-1)
    age_s        age of every unit when the run begins; matters only where shape is not 1
    count        failures that the rate was estimated from; 0: the rate is taken as known. The
                 posterior is Gamma(count + 1/2, exposure), Jeffreys, where mttf is exposure /
                 count; so the mean of what is drawn is (count + 1/2) / count times the rate. At
                 other shapes it multiplies the hazard.

    Units are not renewed: one that failed and was repaired is as old as before, which is all that
    matters where shape is not 1.
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
class Tier:
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

    `shrinks`: the run goes on with fewer nodes where no spare is at hand; else it waits.
    """

    detect: Spread
    regroup: Spread
    take: Spread = field(default_factory=lambda: constant(0.0))
    shrinks: bool = False
    source: str = ""


@dataclass(frozen=True, slots=True)
class Repair:
    """Spares and the repair pipeline.

    spare_nodes  ready when the run begins
    time         from a node's loss until it is a spare again
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

    share   of all nodes when the run begins
    factor  times the usual rate of what strikes GPUs and nodes
    caught  chance that a failure of one, if it takes the node, gets it removed for good
    """

    share: float = 0.0
    factor: float = 1.0
    caught: float = 0.0
    source: str = ""


@dataclass(frozen=True, slots=True)
class Stragglers:
    """Slow but healthy nodes.

    Each node becomes a straggler every `mttf_s`, and makes the run `slowdown` times as slow while
    that `lasts`. This costs throughput, not ETTR.

    Several at once make it no slower than one: all wait for the slowest.
    """

    mttf_s: float = math.inf
    slowdown: float = 1.0
    lasts: Spread = field(default_factory=lambda: constant(0.0))
    source: str = ""


@dataclass(frozen=True, slots=True)
class Maintenance:
    """Planned stops: every `every_s` the run stands still for `lasts_s`.

    A stop comes after a save, so nothing is repeated.
    """

    every_s: float = math.inf
    lasts_s: float = 0.0
    source: str = ""

    def worked_s(self, wall_s: float) -> float:
        """Return the seconds outside of stops from the beginning to this wall-clock time.

        During a stop it does not move.
        """
        if not self.lasts_s or wall_s < self.every_s:
            return wall_s
        begun = math.floor(wall_s / self.every_s)
        return (
            wall_s - (begun - 1) * self.lasts_s - min(wall_s - begun * self.every_s, self.lasts_s)
        )

    def wall_s(self, worked_s: float) -> float:
        """Return the wall-clock time after so much work; the end of a stop that lies there."""
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

    `throttle`: share of speed lost at the hottest hour of a day (a sine); costs throughput, not
    ETTR.
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
    decisions of the engine, and the simulation of messages. `resolve.resolve` makes one from a
    cluster file and its defaults. The head of this module says in words what the course of a run
    is.

    A scenario is checked when it is made; UsageError names the value that cannot be. It promises
    nothing about where its numbers come from: a `Cluster` keeps their sources.
    """

    name: str
    job: Job
    failures: tuple[FailureRate, ...]
    tiers: tuple[Tier, ...]
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

    def interval_steps(self, tier: Tier) -> float:
        """Return the interval in whole steps, at least one; inf where the tier never saves."""
        if not math.isfinite(tier.interval_s):
            return math.inf
        return float(max(1, math.floor(tier.interval_s / self.job.step_s + 0.5)))

    def interval_s(self, tier: Tier) -> float:
        """Return the interval in seconds, of whole steps; inf where the tier never saves."""
        return self.interval_steps(tier) * self.job.step_s

    def is_live(self, tier: Tier) -> bool:
        """Return True for the live state of replicas: it saves each step without a stall."""
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
        """Return how many lemons are reckoned with at most.

        These are those of the beginning, and four standard deviations above what missed repairs are
        expected to add.
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
