"""Report a run that is over to the rules: its end, its interruptions, and its books."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from outlast.engine.protocol.outputs import End
from outlast.model import limits
from outlast.model.records import Interruption
from outlast.model.terms import Mechanism
from outlast.sim.durations import BODY_SPREAD_S
from outlast.sim.options import LONG_LIFE_STEPS
from outlast.sim.rules.final_observations import (
    CulpritsAtEnd,
    FirstFault,
    InterruptionAtEnd,
    RunEnded,
    SecondsAtEnd,
)
from outlast.sim.world.coordinator_host import CoordinatorHost
from outlast.sim.world.frame import Frame
from outlast.sim.world.population import Population
from outlast.sim.world.processes import pid_of
from outlast.sim.world.requested_stops import RequestedStops
from outlast.sim.world.run_accounts import RunAccounts
from outlast.sim.world.steps_done import StepsDone
from outlast.sim.world.strikes import FaultStrikes
from outlast.sim.world.verdicts import Verdicts

BLAMES_NOBODY = (
    "nothing tells them apart",  # if all ranks are in the same place, one has to be killed
    "a script that has made no outlast call",  # a script may not have reached its first call yet
)
SILENT = ("freeze", "stop of an agent", "lag", "cut")
UNTOLD = ("lose_coordinator", *SILENT)
BY_NODE = ("lose_node", *SILENT)  # by these, facts that a node knows may be lost or late
# a snapshot has a deadline of its own, and so has the time between two steps
WITHIN_MARKS = ("body", "reduced", "prepared", "voting", "passed", "applied")
TIMES = ("fault_s", "detected_s", "left_s", "restored_s", "resumed_s")


@dataclass(frozen=True, slots=True)
class FinalReport:
    """Report on the parts of a world whose run is over."""

    frame: Frame
    host: CoordinatorHost
    population: Population
    strikes: FaultStrikes
    verdicts: Verdicts
    accounts: RunAccounts
    steps: StepsDone
    requested_stops: RequestedStops

    def see_interruptions(self, end: End, *, began_s: float) -> None:
        """Let the rules see the end of the run, and the record of each interruption."""
        interruptions = self.host.interruptions
        self.frame.see(self._run_over(interruptions, end))
        self._see_first_fault(interruptions)
        for one in interruptions.values():
            self._see_noted(one)
        if self.frame.options.recovery_mode != "plain":
            for one in interruptions.values():
                self._see_named(one, end, began_s)

    def see_books(self, end: End, *, began_s: float) -> None:
        """Let the rules see how the seconds of each rank were booked, once no process lives."""
        records, worked = list(self.host.interruptions.values()), self.accounts.worked
        booked = self.accounts.lives.account(
            world_size=self.frame.options.ranks,
            began_s=began_s,
            over_s=self.frame.now_s,
            interruptions=records,
            waits=self.host.ledger.node_waits(end_s=self.frame.now_s),
            drained=self.host.ledger.drains,
        )
        interrupted = bool(records) or end.state != "ended"
        self.frame.see(
            SecondsAtEnd(
                booked.wall_s, booked.by_rank, worked.seconds(), worked.unsure_s(), interrupted
            )
        )

    # --- the end ----------------------------------------------------------------------------------

    def _run_over(self, interruptions: Mapping[int, Interruption], end: End) -> RunEnded:
        options, strikes, stops = self.frame.options, self.strikes, self.requested_stops
        given = options.max_restarts
        return RunEnded(
            state=end.state,
            exit_code=end.exit_code,
            reason=end.reason,
            committed=self.steps.committed,
            until=options.steps,
            trained=bool(self.steps.commits),
            plain=options.recovery_mode == "plain",
            stop_asked=bool(stops.asked),
            refused=any(fault.kind == "refuse" for _, fault, _ in strikes.struck),
            alive=tuple(
                p.worker
                for p in self.population.alive()
                if p.rank >= 0 and not p.dying and not p.node.still.outlives_lease
            ),
            open_interruptions=tuple(
                one.id for one in interruptions.values() if one.resumed_s is None
            ),
            interruptions=len(interruptions),
            strikes=strikes.harmful + self.verdicts.acts,
            done=tuple(sorted(self.population.with_those_alike(self.population.done))),
            blamed=_blamed(interruptions, end),
            struck=strikes.pids(),
            ranks=options.ranks,
            kinds=strikes.all_kinds(),
            max_restarts=limits.RESTARTS_COUNT if given is None else given,
            asked=tuple(stops.asked),
            noted=options.nodes > 1 or self.host.has_noted("script"),
            early_s=self._early_s(),
            ending_s=(
                self.frame.now_s - stops.asked_s if options.nodes == 1 and stops.asked else 0.0
            ),
            spent=self.host.spent,
            policy=options.policy,
            signals=sum(one.mechanism is Mechanism.SIGNAL for one in interruptions.values()),
            rungs=tuple(
                ("" if one.rung is None else one.rung.value, one.parent is not None)
                for one in interruptions.values()
            ),
        )

    def _early_s(self) -> float:
        """Return since when it could be reported that a spare ended before it could park."""
        early_s = self.accounts.spare_ended_early_s
        if self.frame.options.nodes > 1 or early_s is None:
            return 0.0
        return self.frame.now_s - early_s - self.strikes.muted_s

    def _see_first_fault(self, interruptions: Mapping[int, Interruption]) -> None:
        """Let the rules see how soon the first fault was detected, and the run had recovered."""
        struck, options = self.strikes.struck, self.frame.options
        if not interruptions or not struck:
            return
        first = interruptions[min(interruptions)]
        (at_s, fault, worker), next_s = struck[0], struck[1][0] if len(struck) > 1 else math.inf
        if not worker or pid_of(worker) not in first.pids or first.detected_s >= next_s:
            return
        back_s = None
        if first.resumed_s is not None and first.resumed_s < min(
            next_s, self.requested_stops.first_stop_s
        ):
            back_s = first.resumed_s - first.detected_s
        within = (
            fault.mark in WITHIN_MARKS and not fault.after_s and options.recovery_mode != "plain"
        )
        by_itself = first.left_s is not None and first.left_s < next_s
        is_called = by_itself and options.nodes == 1 and options.recovery_mode != "plain"
        self.frame.see(
            FirstFault(
                fault.kind,
                first.detected_s - at_s,
                back_s,
                options.latency_s,
                options.first_step_s + options.step_s,
                first.step,
                within,
                first.mechanism.value if is_called else "",
                options.hangs_after_s,
                options.step_s + BODY_SPREAD_S,
                options.nodes,
            )
        )

    # --- each interruption ------------------------------------------------------------------------

    def _see_noted(self, one: Interruption) -> None:
        options, plans = self.frame.options, self.host.watch.plans
        latency_s = options.latency_s + self.strikes.muted_s
        knows = (
            options.recovery_mode != "sharded"
            and not self.strikes.lapsed
            and not set(BY_NODE) & set(self.strikes.all_kinds())
        )
        self.frame.see(
            InterruptionAtEnd(
                one,
                options.nodes,
                plans.moved.get(one.id) if options.recovery_mode != "sharded" else None,
                plans.begun.get(one.id),
                self._back_s(one),
                latency_s,
                self._known_then(one, latency_s),
                self.accounts.recovery_times.stood(one.generation) if knows else None,
                self._unsure_s(),
            )
        )

    def _see_named(self, one: Interruption, end: End, began_s: float) -> None:
        known_s = (getattr(one, name) for name in TIMES)
        judged = one.id not in self.verdicts.own and _was_looked_at(one, end)
        self.frame.see(
            CulpritsAtEnd(
                one.id,
                one.mechanism.value,
                self._kinds_of(one) if judged else (),
                tuple(at_s - began_s for at_s in known_s if at_s is not None),
                self.frame.age_s,
                self._unsure_s(),
            )
        )

    def _unsure_s(self) -> float:
        """Return the largest error of a time that is reported across nodes."""
        return 1.0 + self.strikes.held_up_s + self.frame.age_s * self.frame.options.drift

    def _back_s(self, one: Interruption) -> float | None:
        """Return when a later generation was at work.

        If there was none, but all ranks reached their end, the time in the record is accepted.
        """
        back_s = self.accounts.recovery_times.after(one.generation)
        all_done = len(self.population.done) == self.frame.options.ranks
        return one.resumed_s if back_s is None and all_done else back_s

    def _kinds_of(self, one: Interruption) -> tuple[str, ...]:
        """Return the kinds of faults that struck the rank that the interruption names.

        The report of its agent may have come too late, or may be lost with the coordinator that got
        it.
        """
        kinds = self.strikes.kinds(one.pids, others=_by_node(one))
        if not kinds:
            return ()
        untold = (kind for kind in self.strikes.all_kinds() if kind in UNTOLD)
        return tuple(dict.fromkeys((*kinds, *untold)))

    def _known_then(self, one: Interruption, latency_s: float) -> tuple[int, int] | None:
        """Return the newest committed step when an interruption was detected.

        There are two values: the one that the agent's last look can have shown, and the true one.
        The result is None if it is not known.
        """
        options, times = self.frame.options, self.accounts.recovery_times
        if (
            self.steps.rolled_back
            or options.recovery_mode in ("plain", "sharded")
            or options.nodes > 1
            or options.steps >= LONG_LIFE_STEPS
        ):
            return None
        seen_s = one.detected_s - 2 * limits.TICK_S - 2 * latency_s
        return times.newest(seen_s), times.newest(one.detected_s)


def _by_node(one: Interruption) -> bool:
    """Return True if it may name processes that were struck only through their node."""
    return one.mechanism is Mechanism.LOST_NODE or len(one.pids) < len(one.ranks)


def _blamed(interruptions: Mapping[int, Interruption], end: End) -> tuple[int, ...]:
    """Return the processes that the ledger blames.

    If the run was stopped, or failed, before all ranks had left, it was not decided yet which
    reports are collateral. A process that is killed because all are in the same place is not
    blamed. Nor is one that has made no call of outlast yet.
    """
    seen = [
        one
        for one in interruptions.values()
        if _was_looked_at(one, end) and not any(words in one.reason for words in BLAMES_NOBODY)
    ]
    return tuple(sorted({pid for one in seen for pid in one.pids}))


def _was_looked_at(one: Interruption, end: End) -> bool:
    return one.left_s is not None or end.state == "ended"
