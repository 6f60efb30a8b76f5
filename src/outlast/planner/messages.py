"""Message mode: the planner compares its predictions with simulated runs of `outlast sim`.

The same simulated run is also written as a scenario and a history, so that decision mode and Monte
Carlo can compute it.

Method     Other simulated runs, of the same kind and with a single fault each, show how long
           detection and the regroup take (`measure`). The run that is compared is not among them,
           so the comparison tests a prediction. One more run, in which a rank hangs, shows when the
           first step began.
Limits     The faults are of the kinds in KINDS, and no two come in the same second. There are
           several nodes, with the same number of ranks on each. A regroup is counted up to the
           beginning of the next step.

This module is pure: no clock, no files, no torch.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from outlast.errors import UsageError
from outlast.model.fault_plan import PlannedFault
from outlast.model.terms import FailureClass
from outlast.planner.deciding.decided import Decided, Rules
from outlast.planner.decisions import live
from outlast.planner.histories import ROWS, Histories, History, Luck
from outlast.planner.runs import run
from outlast.planner.scenario import (
    Extent,
    FailureRate,
    Job,
    Recovery,
    Repair,
    Scenario,
    ScenarioTier,
    Unit,
)
from outlast.planner.spread import constant, measured
from outlast.sim.draws import Stream
from outlast.sim.durations import SEAL_S, steady_step_s
from outlast.sim.options import Options
from outlast.sim.simulated_run import SimulatedRun, simulate

KINDS: Mapping[str, tuple[FailureClass, Extent]] = {
    "kill": (FailureClass.SOFTWARE_BUG, Extent.PROCESS),
    "exit": (FailureClass.DEPENDENCY, Extent.PROCESS),
    "hang": (FailureClass.NETWORK, Extent.PROCESS),
    "lose_node": (FailureClass.POWER_SUPPLY, Extent.NODE),
}
# in these runs, no process is parked on a spare node
RULES = Rules(hangs=frozenset({FailureClass.NETWORK}), parked=False)
AWAY_S = 60.0  # a lost node has power again after this long
ROUNDING = 1e-6
PROBE_STEPS = 9.4  # in a run that measures something, the fault comes after this many steps


@dataclass(frozen=True, slots=True)
class Measured:
    """The measurements of short simulated runs.

    began_s     when the first step began
    detect_s    for each kind of fault, seconds from the fault until all survivors stand still
    regroup_s   seconds from there to the next step
    """

    began_s: float
    detect_s: Mapping[str, float]
    regroup_s: float


def spread_faults(
    options: Options, kinds: Sequence[str], *, count: int, seed: int, apart_s: float = 0.0
) -> tuple[PlannedFault, ...]:
    """Return `count` faults that strike random ranks, of these kinds in turn.

    They come at random times, but none in the first and last twentieth of the run. Two faults are
    at least `apart_s` seconds apart if there is room for that.
    """
    draws, first_s, last_s = Stream(seed, "told faults"), 0.05 * options.for_s, 0.95 * options.for_s
    free_s = max(0.0, last_s - first_s - apart_s * (count - 1))
    at_s = sorted(draws.between(0.0, free_s) for _ in range(count))
    return tuple(
        PlannedFault(
            str(number + 1),
            kinds[number % len(kinds)],
            draws.below(options.ranks),
            at_s=first_s + since_s + number * apart_s,
            for_s=AWAY_S,
        )
        for number, since_s in enumerate(at_s)
    )


def measure(options: Options, *, seed: int, kinds: Sequence[str]) -> Measured:
    """Measure in one short simulated run for each kind of fault, and in one for a hang.

    Raises UsageError if one of these runs does not end as intended.
    """
    step_s, detect_s, began_s, regroup_s = steady_step_s(options), {}, 0.0, 0.0
    at_s = PROBE_STEPS * step_s
    for kind in dict.fromkeys(("hang", *kinds)):
        probe = replace(options, for_s=at_s + 12 * step_s + 60.0, steps=10**6)
        simulated = simulate(
            seed=seed,
            options=probe,
            faults=(PlannedFault("probe", kind, options.ranks - 1, at_s=at_s, for_s=AWAY_S),),
        )
        one = simulated.interruptions[0] if simulated.interruptions else None
        if simulated.result != "ok" or one is None or one.left_s is None or one.restored_s is None:
            raise UsageError(
                f"nothing can be measured in a run with one {kind}:"
                f" {simulated.end}, {simulated.violations}",
                hint="try another seed",
            )
        detect_s[kind] = one.left_s - at_s
        if kind == "hang":
            assert one.fault_s is not None, "a rank that hangs had a beacon"
            began_s, regroup_s = one.fault_s - one.step * step_s, one.restored_s - one.left_s
    return Measured(began_s, detect_s, regroup_s)


def as_scenario(
    options: Options, faults: Sequence[PlannedFault], measured_s: Measured
) -> tuple[Scenario, History]:
    """Return the simulated run with these options and faults as a scenario and a history.

    It lasts from its first step to the moment at which the run is asked to stop. Raises UsageError
    if a scenario cannot express the run.
    """
    nodes, kinds = options.nodes - options.spare_nodes, list(measured_s.detect_s)
    if (
        options.ranks % nodes
        or not options.for_s
        or any(
            fault.kind not in KINDS or fault.at_s is None or fault.rank is None for fault in faults
        )
    ):
        raise UsageError(
            "this run cannot be written as a scenario",
            hint=(
                "give --for-s, the same number of ranks on each node, and only faults of the kinds"
                f" {', '.join(KINDS)}, each with at_s"
            ),
        )
    job = Job(
        options.ranks,
        options.for_s - measured_s.began_s,
        options.ranks // nodes,
        1,
        _step_s(options),
    )
    rates = tuple(
        FailureRate(*KINDS[kind][:1], Unit.RUN, KINDS[kind][1], job.duration_s, source="told")
        for kind in kinds
    )
    detect_s = sorted(measured_s.detect_s.values())
    scenario = Scenario(
        f"{options.recovery_mode}, {options.ranks} ranks",
        job,
        rates,
        (_tier(options),),
        Recovery(measured(detect_s), constant(measured_s.regroup_s)),
        Repair(options.spare_nodes, constant(AWAY_S)),
    )
    ordered = sorted(faults, key=lambda fault: fault.at_s or 0.0)
    luck = np.full((len(ordered), len(Luck)), 0.5)
    for row, fault in zip(luck, ordered, strict=True):
        row[Luck.STRUCK] = ((fault.rank or 0) + 0.5) / options.ranks
        row[Luck.DETECT] = detect_s.index(measured_s.detect_s[fault.kind]) / max(
            1, len(detect_s) - 1
        )
    at_s = np.array([(fault.at_s or 0.0) - measured_s.began_s for fault in ordered])
    return scenario, History(
        at_s,
        np.array([kinds.index(fault.kind) for fault in ordered], dtype=np.int64),
        np.zeros(len(ordered), dtype=np.bool_),
        luck,
        0,
    )


def _step_s(options: Options) -> float:
    """Return the length of a step without the stall of a tier."""
    return steady_step_s(options) - (SEAL_S if options.recovery_mode == "sharded" else 0.0)


def _tier(options: Options) -> ScenarioTier:
    """Return the tier of the state.

    Every rank holds the replicated state. With sharded state, each rank seals an image in the
    memory of its node after every step.
    """
    if options.recovery_mode == "sharded":
        return ScenarioTier("images", _step_s(options), SEAL_S, 0.0, Extent.PROCESS, constant(0.0))
    return ScenarioTier("replicas", _step_s(options), 0.0, 0.0, Extent.RACK, constant(0.0))


class GivenHistory(Histories):
    """One replica for Monte Carlo, whose random numbers are given and not drawn."""

    @staticmethod
    def of(scenario: Scenario, history: History) -> GivenHistory:
        classes = len(scenario.failures)
        given = GivenHistory(
            0,
            0,
            history.at_s[None, :],
            history.which[None, :].astype(np.int16),
            np.array([history.lemons]),
            np.arange(classes),
            classes,
        )
        object.__setattr__(given, "_luck", history.luck)  # the class is frozen
        return given

    def luck(self, column: Luck) -> NDArray[np.float64]:
        numbers: NDArray[np.float64] = self._luck[None, :, column]  # type: ignore[attr-defined]
        return numbers

    def luck_in_order(self, column: Luck) -> Iterator[NDArray[np.float64]]:
        numbers = self.luck(column).T
        yield from (numbers[first : first + ROWS] for first in range(0, len(numbers), ROWS))


@dataclass(frozen=True, slots=True)
class Compared:
    """The newest committed step at the end of one run, by messages, decisions and Monte Carlo."""

    simulated: SimulatedRun
    decided: Decided
    message_steps: int
    decision_steps: int
    monte_carlo_steps: int

    @property
    def may_differ_steps(self) -> int:
        """Return by how many steps the results of messages and of decisions may differ.

        Each interruption may cause a difference of one step, because milliseconds may decide
        whether the step was voted for. One more step is that in flight when the run is asked to
        stop, because the run finishes it.
        """
        return len(self.simulated.interruptions) + 1

    @property
    def same_rungs(self) -> bool:
        """Return whether messages and decisions led to the same rungs.

        One rung answers all failures that came before it was chosen. Rungs that are due when the
        run is asked to stop do not count. Decision mode ends then, and messages go on until the
        run has recovered.
        """
        by_messages = list(
            {
                one.left_s: one.rung for one in self.simulated.interruptions if one.rung is not None
            }.values()
        )
        by_decisions = list(
            {
                answer.chosen.decided_s: answer.chosen.rung
                for answer in self.decided.answers
                if answer.chosen is not None
            }.values()
        )
        return by_messages[: len(by_decisions)] == by_decisions and len(by_messages) <= len(
            by_decisions
        ) + (self.decided.answers[-1:] != [] and self.decided.answers[-1].rung is None)

    @property
    def agree(self) -> bool:
        """Return whether messages and decisions agree.

        They do if both answer the same interruptions by the same rungs, end in the same way, and
        reach the same step, up to `may_differ_steps`.
        """
        ended = (self.simulated.end == "failed") is (self.decided.ended_s is not None)
        return (
            ended
            and self.same_rungs
            and abs(self.message_steps - self.decision_steps) <= self.may_differ_steps
        )


def compare(
    options: Options,
    faults: Sequence[PlannedFault],
    *,
    seed: int,
    measured_s: Measured | None = None,
) -> Compared:
    """Run the same faults at all depths.

    If `measured_s` is None, the durations are measured first, with another seed.
    """
    known = measured_s or measure(options, seed=seed + 1, kinds=[fault.kind for fault in faults])
    simulated = simulate(seed=seed, options=options, faults=tuple(faults))
    # a fault that strikes no rank is not a failure
    scenario, history = as_scenario(
        options, [fault for fault in faults if fault.id in simulated.fired], known
    )
    mode = options.recovery_mode
    rules = RULES if mode == "sharded" else replace(RULES, recovery_mode=mode)
    decided = live(scenario, history, rules)
    step_s = scenario.job.step_s
    newest = decided.position_s / step_s
    if decided.ended_s is not None and decided.answers:
        fallback = decided.answers[-1].fallback
        newest = fallback.step + fallback.lost_s / step_s
    by_monte_carlo = float(run(scenario, GivenHistory.of(scenario, history)).position_s[0]) / step_s
    return Compared(
        simulated,
        decided,
        simulated.committed,
        math.floor(newest + ROUNDING),
        math.floor(by_monte_carlo + ROUNDING),
    )
