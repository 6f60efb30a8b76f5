"""One run in decision mode, from event to event: see `decisions.py`.

    training ──failure──> recovering ──rung──> take, restore ──> training
    training ──drain────> recovering ──rung, free──────────────> training

A recovery consists of detection, the regroup, and the wait until there are enough nodes. If another
failure strikes before the rung is chosen, the recovery begins again, and one decision covers both
failures. A drain comes between two steps. Then the run recovers as if the node were lost, but no
budget is charged.

This module is pure: no clock, no files, no torch.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from outlast.model import limits
from outlast.model.policy import Action
from outlast.model.terms import Cause, FailureClass, Mechanism, Rung
from outlast.planner.deciding.acting import Acting, Incident
from outlast.planner.deciding.decided import (
    Chosen,
    Decided,
    DecidedInterruption,
    Fallback,
    Rules,
    Unmodelled,
)
from outlast.planner.deciding.failures import PlannedFailure
from outlast.planner.deciding.hangs import Hangs
from outlast.planner.deciding.membership import SimulatedMembership, StruckRanks
from outlast.planner.deciding.recoveries import NONE, Hit, Ladder, Loss, RecoveryUnderway, Unseen
from outlast.planner.deciding.restoring import RestorePoint, Restoring
from outlast.planner.deciding.tiers import TierKind, Tiers
from outlast.planner.histories import Luck
from outlast.planner.scenario import Extent, Scenario

RUNG, PLACES, HANG, POLICY = (
    "engine.recovery.decide_rung",
    "engine.placement.offers",
    "engine.hang.find_culprits",
    "engine.policy.decide_action",
)
# with these classes the script raises an exception, and the process goes on
RAISES = (FailureClass.USER_CODE, FailureClass.USER_DATA, FailureClass.GPU_OOM)
ROUNDING_S = 1e-6


@dataclass(frozen=True, slots=True)
class _Engine:
    """The engine's decisions that a run asks for. `acting` is None if nothing is diagnosed."""

    restoring: Restoring
    ladder: Ladder
    hangs: Hangs
    acting: Acting | None


@dataclass(slots=True)
class _Stretch:
    """Training without an interruption, from step `begin` on; it began at `since_s`."""

    begin: int = 0
    since_s: float = 0.0


class DecidedRun:
    """One run in decision mode, advanced from event to event by its caller.

    For each failure, the caller calls `go_on_until(time of the failure)` and then `fail(failure)`;
    `finish` comes last. The results are in `out`.

    At any time the run either trains (`_stretch`) or recovers (`_recovery`).
    After a recovery, training goes on from the step at which `_stretch` begins.
    """

    def __init__(self, scenario: Scenario, rules: Rules) -> None:
        self.out = Decided()
        self._scenario, self._rules = scenario, rules
        self._members = SimulatedMembership(scenario.job, scenario.repair.spare_nodes)
        self._tiers = Tiers(scenario)
        self._engine = _Engine(
            Restoring(self._members, self._tiers, self.out.asked, rules.recovery_mode),
            Ladder(rules, world_size=scenario.job.gpus),
            Hangs(scenario.job.gpus, scenario.job.step_s),
            Acting(rules.diagnosis, self._members) if rules.diagnosis is not None else None,
        )
        self._recovery: RecoveryUnderway | None = None
        self._stretch = _Stretch()
        self._drain_due_s = math.inf

    # --- time -------------------------------------------------------------------------------------

    def go_on_until(self, until_s: float) -> None:
        """Carry out what is due up to and including `until_s`, if nothing fails until then."""
        while self.out.ended_s is None:
            at_s, act = self._next()
            if at_s > until_s:
                return
            act(at_s)

    def finish(self, over_s: float) -> None:
        """End the run because its time is up."""
        self.go_on_until(over_s)
        if self.out.ended_s is None:
            position, _ = self._book_until(over_s)
            self.out.position_s = position * self._scenario.job.step_s

    def _next(self) -> tuple[float, Callable[[float], None]]:
        """Return the time and the method of the next event, if nothing fails before.

        The time is infinite if nothing is due.
        """
        due: list[tuple[float, Callable[[float], None]]] = []
        if self._recovery is not None:
            recovery = self._recovery
            due.append(
                (recovery.resumes_s, self._resume)
                if recovery.decided
                else (min(recovery.decides_s, recovery.gives_up_s), self._decide)
            )
        if self._engine.acting is not None:
            due += [
                (self._drain_due_s, self._drain),
                (self._engine.acting.next_s, self._act_on_verdict),
            ]
        return min(due, key=lambda one: one[0], default=(math.inf, self._resume))

    def _book_until(self, at_s: float) -> tuple[float, tuple[tuple[int, int], ...]]:
        """Book the time until `at_s`, when training or a recovery ends.

        Return the position of training in steps, and the tier and step of each unfinished save.
        """
        recovery, out = self._recovery, self.out
        if recovery is None:
            trained = self._tiers.train(self._stretch.begin, at_s - self._stretch.since_s)
            self._tiers.hold(trained)
            self._engine.ladder.note_committed(math.floor(trained.position))
            out.seconds[Cause.STALL] += trained.stall_s
            out.unmodelled[Unmodelled.OVERLAP] += trained.overlaps
            return trained.position, trained.unfinished
        recovery.spend(at_s, out.seconds)
        return self._stretch.begin, ()

    def _end(self, at_s: float, kind: Unmodelled, why: str) -> None:
        """End the run at `at_s` because the engine decided so."""
        position, _ = self._book_until(at_s)
        self.out.unmodelled[kind] += 1
        self.out.ended_s, self.out.why_ended, self.out.position_s = (
            at_s,
            why,
            position * self._scenario.job.step_s,
        )

    # --- a failure --------------------------------------------------------------------------------

    def fail(self, failure: PlannedFailure) -> None:
        """Let a failure strike, and begin to recover from it.

        `go_on_until` was called with the time of the failure.
        """
        at_s, before = failure.worked_s, self._recovery
        position, unfinished = self._book_until(at_s)
        if before is None or before.decided:
            self._engine.ladder.reached = math.floor(position)
        self.out.unmodelled[Unmodelled.NOT_BACK] += self._members.come_back(at_s)
        hit = self._hit(failure)
        if before is not None and not before.answers and not before.decided:
            before = None  # the failure calls off the drain that has begun
        loss = (Loss() if before is None else before.loss).and_also(hit, failure.rate.extent)
        point = self._engine.restoring.point(
            strike=loss.without,
            extent=loss.extent,
            position=position,
            unfinished=unfinished,
            restore_s=failure.restore_s,
        )
        unmodelled = self._differences(point, loss.extent, failure)
        self._tiers.fall_back(loss.extent, point.step)
        self._stretch.begin, lost_s = (
            point.step,
            (position - point.step) * self._scenario.job.step_s,
        )
        self.out.seconds[Cause.REPEATED] += lost_s
        tier = None if point.tier is None else self._scenario.tiers[point.tier].name
        answer = DecidedInterruption(
            at_s,
            failure.rate.failure_class,
            hit.mechanism,
            loss.extent,
            Fallback(point.step, tier, lost_s, point.reason),
            unmodelled,
        )
        unseen = self._unseen(hit, position, failure, before)
        self._recovery = self._start_recovery(failure, answer, before, loss, point, unseen)
        self.out.answers.append(answer)
        self.out.unmodelled.update(answer.unmodelled)
        if self._engine.acting is not None:
            due_s, outage = (
                self._recovery.phases[0][1] + self._engine.acting.diagnosis.delay_s,
                len(self.out.answers) - len(self._recovery.answers),
            )
            self._engine.acting.add(
                Incident(due_s, outage, answer.failure_class, hit.mechanism, hit.nodes)
            )

    def _start_recovery(
        self,
        failure: PlannedFailure,
        answer: DecidedInterruption,
        before: RecoveryUnderway | None,
        loss: Loss,
        point: RestorePoint,
        unseen: Unseen | None,
    ) -> RecoveryUnderway:
        """Return a recovery with the durations of the scenario.

        If `unseen` is given, the duration of detection follows from outlast's deadlines instead.
        """
        at_s, rules = failure.worked_s, self._rules
        detected_s = at_s + failure.detect_s
        if unseen is not None:
            answer.unmodelled.append(Unmodelled.DEADLINE)
            detected_s = unseen.until_s
        regrouped_s = detected_s + failure.regroup_s
        ready_s = self._members.enough_s(len(loss.dead.seats), from_s=regrouped_s)
        if ready_s > regrouped_s and self._scenario.recovery.shrinks:
            answer.unmodelled.append(Unmodelled.WAITS)
        phases = failure.phases(
            detected_s=detected_s,
            regrouped_s=regrouped_s,
            ready_s=ready_s,
            takes=loss.nodes > 0,
            tier=point.tier,
        )
        gives_up_s = (
            regrouped_s + rules.node_wait_s
            if ready_s > regrouped_s + rules.node_wait_s
            else math.inf
        )
        return RecoveryUnderway(
            at_s,
            phases,
            ready_s,
            gives_up_s,
            loss,
            point,
            (*(before.answers if before is not None else ()), answer),
            unseen,
        )

    def _hit(self, failure: PlannedFailure) -> Hit:
        """Return which processes and nodes the failure takes, and put these nodes into repair."""
        members, extent, failure_class = (
            self._members,
            failure.rate.extent,
            failure.rate.failure_class,
        )
        struck = members.struck(extent, failure.luck[Luck.STRUCK])
        if extent in (Extent.NODE, Extent.RACK):
            gone = self._recovery.loss.dead.seats if self._recovery is not None else ()
            count = self._scenario.nodes_lost(extent) + (
                extent is Extent.NODE and failure.luck[Luck.DIAGNOSIS] < self._scenario.repair.wrong
            )
            struck = members.seats(members.free_seats(struck.seats[0], count, gone=gone))
            self.out.unmodelled[Unmodelled.NO_NODE_TO_LOSE] += count - len(struck.seats)
            nodes = tuple(members.nodes[seat] for seat in struck.seats)
            for node in nodes:
                members.repair(node, back_s=failure.worked_s + failure.repair_s)
        else:
            nodes = (members.homes[struck.ranks[0]],) if extent is Extent.PROCESS else ()
        if extent is Extent.PROCESS and failure_class in RAISES:
            return Hit(NONE, frozenset(struck.ranks), nodes, Mechanism.EXCEPTION)
        hangs = (
            failure_class in self._rules.hangs
            and extent <= Extent.NODE
            and len(struck.ranks) < self._scenario.job.gpus
        )
        return Hit(
            struck,
            frozenset(),
            nodes,
            Mechanism.HANG if hangs else Mechanism.LOST_NODE if struck.seats else Mechanism.SIGNAL,
        )

    def _unseen(
        self, hit: Hit, position: float, failure: PlannedFailure, before: RecoveryUnderway | None
    ) -> Unseen | None:
        """Return when outlast's deadlines find the rank that hangs. Return None if none hangs.

        The rank may hang since this failure, or since one before it.
        """
        at_s, hangs, step = failure.worked_s, self._engine.hangs, math.floor(position)
        earlier = (
            before.unseen
            if before is not None and before.unseen is not None and before.unseen.until_s > at_s
            else None
        )
        # All ranks are told to leave because of this failure, but a rank that hangs does not.
        if hit.mechanism is not Mechanism.HANG:
            return (
                None
                if earlier is None
                else Unseen(at_s + failure.detect_s + earlier.leaves_s, earlier.leaves_s)
            )
        if before is None:
            self.out.asked[HANG] += 1
            found = hangs.find(
                hit.dead.ranks[0],
                step=step,
                into_step_s=(position - step) * self._scenario.job.step_s,
            )
            assert found.verdict.culprits == hit.dead.ranks[:1], found.verdict.reason
            return Unseen(at_s + found.after_s, hangs.leaves_s, alone=True)
        if earlier is not None and earlier.alone:
            # when that one has been found, this one does not leave its generation
            return replace(earlier, until_s=earlier.until_s + hangs.leaves_s)
        # it left as it should, but does not join the next generation
        return Unseen(at_s + hangs.joins_s(before.no_starts), limits.REGROUP_DEADLINE_S)

    def _differences(
        self, point: RestorePoint, extent: Extent, failure: PlannedFailure
    ) -> list[Unmodelled]:
        """Return how the engine's choice of a tier differs from that of the scenario."""
        survives, held = self._tiers.survives, self._tiers.held
        left = [
            (-step, failure.restore_s[index], index)
            for index, step in enumerate(held)
            if step is not None and survives[index] >= extent
        ]
        if not left:
            return [] if point.tier is None else [Unmodelled.SEALED_AT_ONCE]
        minus_step, _, fastest = min(left)
        if point.tier is None or point.step != -minus_step:
            return [Unmodelled.NOBODY_LEFT]
        if point.tier != fastest:
            return [
                (
                    Unmodelled.ANOTHER_TIER
                    if self._tiers.held[point.tier] == point.step
                    else Unmodelled.SEALED_AT_ONCE
                )
            ]
        return []

    # --- recovering -------------------------------------------------------------------------------

    def _decide(self, at_s: float) -> None:
        """Choose the rung, or end the run.

        By now all survivors have stopped, and there is a node for each lost one, or
        `Rules.node_wait_s` have passed without one.
        """
        recovery, out, members = self._recovery, self.out, self._members
        assert recovery is not None
        if recovery.gives_up_s < recovery.decides_s:
            self._end(
                at_s,
                Unmodelled.NO_NODE,
                f"no node with room for ranks {list(recovery.loss.dead.ranks)} in"
                f" {self._rules.node_wait_s:g} s",
            )
            return
        out.unmodelled[Unmodelled.NOT_BACK] += members.come_back(at_s)
        dead = recovery.loss.dead
        if len(dead.ranks) == self._scenario.job.gpus:
            # all ranks start again, and those whose node lives start where they were
            dead = members.seats(dead.seats)
        if dead.ranks:
            out.asked[PLACES] += 1
        spares = members.take(dead, parked=self._rules.parked)
        out.asked[RUNG] += 1
        verdict = self._engine.ladder.rung(recovery, spares)
        for answer in recovery.answers:
            if answer.chosen is None:
                answer.chosen = Chosen(verdict.rung, verdict.reason, at_s)
        if verdict.rung is Rung.STOP:
            self._end(
                at_s,
                Unmodelled.CRASH_LOOP if "crash loop" in verdict.reason else Unmodelled.BUDGET,
                verdict.reason,
            )
            return
        everybody = verdict.survivors == "exit"
        fresh = members.everybody if everybody else tuple(sorted(verdict.replace))
        self._engine.hangs.start_over(recovery.point.step, fresh)
        recovery.no_starts = (
            verdict.rung in (Rung.REPEAT, Rung.SPARE) and verdict.survivors == "in_place"
        )
        without = StruckRanks(fresh, ()) if everybody else recovery.loss.without
        recovery.decided, recovery.loss = (
            True,
            replace(recovery.loss, dead=NONE, without=without, raised=frozenset()),
        )

    def _resume(self, at_s: float) -> None:
        """End the recovery, and let training go on."""
        recovery = self._recovery
        assert recovery is not None
        self._book_until(at_s)
        for answer in recovery.answers[-1:]:
            answer.resumed_s = at_s
        self._recovery, self._stretch.since_s = None, at_s
        self._tiers.attach(self._stretch.begin)
        self._plan_drain(at_s)

    # --- the policy -------------------------------------------------------------------------------

    def _act_on_verdict(self, at_s: float) -> None:
        """Ask the policy about the verdict that is due, and begin to do what it decides."""
        assert self._engine.acting is not None
        self.out.asked[POLICY] += 1
        decided = self._engine.acting.decide(at_s)
        if decided.acts and decided.action is Action.STOP:
            self._end(at_s, Unmodelled.POLICY_STOP, decided.reason)
        else:
            self._plan_drain(at_s)

    def _plan_drain(self, at_s: float) -> None:
        """Set the time of the next drain: the end of the current step, if a node is to be left."""
        self._drain_due_s = math.inf
        if (
            self._engine.acting is not None
            and self._recovery is None
            and self._engine.acting.bar_nodes(moves=TierKind.LIVE in self._tiers.kinds)
        ):
            stands = self._tiers.train(self._stretch.begin, at_s - self._stretch.since_s).position
            self._drain_due_s = at_s + (math.floor(stands) + 1 - stands) * self._scenario.job.step_s

    def _drain(self, at_s: float) -> None:
        """Move the ranks of a node elsewhere between two steps, if that is still possible.

        No step is repeated, and no budget is charged.
        """
        stands, step_s = (
            self._tiers.train(self._stretch.begin, at_s - self._stretch.since_s).position,
            self._scenario.job.step_s,
        )
        # a failure or the stall of a save has moved the end of the step
        if self._recovery is not None or abs(stands - round(stands)) * step_s > ROUNDING_S:
            self._plan_drain(at_s)
            return
        self._drain_due_s = math.inf
        assert self._engine.acting is not None
        node = self._engine.acting.bar_nodes(moves=True)
        if not node:
            return
        self._book_until(at_s)
        leaves = self._members.seats([self._members.nodes.index(node)])
        restore_s = [float(tier.restore.quantile(0.5)) for tier in self._scenario.tiers]
        point = self._engine.restoring.point(
            strike=leaves,
            extent=Extent.PROCESS,
            position=float(round(stands)),
            unfinished=(),
            restore_s=restore_s,
        )
        self._stretch.begin, self._stretch.since_s = round(stands), at_s
        if point.tier is None or point.step < self._stretch.begin:
            return  # no rank elsewhere holds the state, so the node is needed
        self.out.unmodelled[Unmodelled.DRAIN] += 1
        self._tiers.fall_back(Extent.PROCESS, point.step)
        self._engine.ladder.note_committed(point.step)
        recovery = self._scenario.recovery
        regrouped_s = at_s + float(recovery.regroup.quantile(0.5))
        taken_s = regrouped_s + float(recovery.take.quantile(0.5))
        phases = (Cause.REGROUP, taken_s), (Cause.RESTORE, taken_s + restore_s[point.tier])
        self._recovery = RecoveryUnderway(
            at_s, phases, regrouped_s, math.inf, Loss(leaves, leaves), point, ()
        )
