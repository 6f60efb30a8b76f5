"""Rules for the ledger's record of an interruption once the run is over.

A record repeats nothing, is in order, and is true.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator

from outlast.model import limits
from outlast.model.messages import Regroup
from outlast.model.records import UNSEEN_COUNT, Interruption
from outlast.model.terms import FailureClass, Mechanism
from outlast.sim.rules.checker import NEAR_S, Checker
from outlast.sim.rules.final_observations import (
    EventWritten,
    FirstFault,
    InterruptionAtEnd,
    RecordRewritten,
    RunEnded,
    TextShown,
    WarningHeard,
)
from outlast.sim.rules.observations import Observation, RankGiven

# the times of an interruption, in the order in which they come
TIMES = ("fault_s", "detected_s", "left_s", "regrouped_s", "restored_s", "resumed_s")
# the time in which a single fault is detected, without a few latencies
NOTICED_S = {"kill": 0.05, "exit": 0.05, "stop": limits.STOPPED_FLOOR_S + 0.1, "raise": 0.1}
BACK_S = 0.6  # the same until a step is committed again, if first steps are as short as others
# the mechanism of a single fault that its process does not report
CALLED = {"kill": "signal", "exit": "exit", "deaf": "hang", "hang": "hang"}
HUNG = ("hang", "deaf")
# after the deadline, all ranks are asked for their places
ASKED_S = limits.INQUIRY_DEADLINE_S + limits.PING_DEADLINE_S
FAST = 1 + 2 * limits.CLOCK_DRIFT_MAX  # the largest factor between two clocks
UNSEEN_STEPS = 6
FIRSTS = 5  # a later first step may take this many times as long as one
LATENCIES = 10
TOLD_S = 1.0  # a report may still be on its way, or the run was ending
COMMITS_APART_S = 0.02  # ranks commit one step within this time
SEEN_STEPS = 2  # after this many steps, an agent has read the beacons again


class NamedOnce(Checker):
    """No rank, process or reason is named twice in one interruption.

    Each interruption has a reason, and a rung once it is decided.
    """

    of = (InterruptionAtEnd,)

    def see(self, seen: Observation) -> Iterator[str]:
        if not isinstance(seen, InterruptionAtEnd):
            return
        one = seen.record
        for what, said in (
            ("ranks", one.ranks),
            ("processes", one.pids),
            ("reasons", tuple(one.reason.split("; "))),
        ):
            if twice := [each for each, count in Counter(said).items() if count > 1]:
                yield f"interruption {one.id} names {what} {twice} more than once: {one.reason}"
        if not one.reason:
            yield f"interruption {one.id} has no reason"
        if (one.rung is None) != (one.left_s is None):
            yield f"interruption {one.id} has rung {one.rung}, and was decided at {one.left_s}"


class WellFormed(Checker):
    """An interruption by an exception is an error of the user's code, with its text.

    The parent of a child came before it, and both are over at the same time.
    """

    of = (InterruptionAtEnd,)

    def __init__(self) -> None:
        self._known: dict[int, Interruption] = {}

    def see(self, seen: Observation) -> Iterator[str]:
        if not isinstance(seen, InterruptionAtEnd):
            return
        one = seen.record
        self._known[one.id] = one
        raised = one.mechanism is Mechanism.EXCEPTION
        if raised and not (one.error and one.traceback):
            yield f"interruption {one.id} is an exception without a text or a traceback"
        if raised != (one.failure_class is FailureClass.USER_CODE):
            yield (
                f"interruption {one.id} is called {one.mechanism.value} and"
                f" {one.failure_class.value}"
            )
        parent = self._known.get(one.parent) if one.parent is not None else None
        if one.parent is not None and one.parent >= one.id:
            yield f"interruption {one.id} is a child of {one.parent}, which came later"
        if parent is not None and (parent.resumed_s, parent.parent) != (one.resumed_s, None):
            yield (
                f"interruption {one.id} was over at {one.resumed_s}, but its parent {parent.id} at"
                f" {parent.resumed_s}"
            )


class WrittenOnce(Checker):
    """The time of detection and the time at which the rung is chosen are written only once.

    Nothing is written after the interruption is over.
    """

    of = (RecordRewritten,)

    def see(self, seen: Observation) -> Iterator[str]:
        if not isinstance(seen, RecordRewritten):
            return
        before, now = seen.before, seen.record
        for name in ("detected_s", "left_s", "resumed_s"):
            if getattr(before, name) not in (None, getattr(now, name)):
                yield (
                    f"interruption {now.id} now has {name} {getattr(now, name)}, but it had"
                    f" {getattr(before, name)}"
                )
        if now.generation != before.generation or now.step < before.step:
            yield (
                f"interruption {now.id} now has generation {now.generation} and step {now.step},"
                f" but it had {before.generation} and {before.step}"
            )
        if before.resumed_s is not None and now != before:
            yield f"interruption {now.id} was over, but is written again: {now.reason}"


class EarliestTimeNamed(Checker):
    """If the time of the fault is not known, the record names the earliest possible time.

    That is the time at which a step was last seen, if there was one.
    """

    of = (InterruptionAtEnd,)

    def see(self, seen: Observation) -> Iterator[str]:
        if not isinstance(seen, InterruptionAtEnd) or seen.nodes > 1:
            return
        one = seen.record
        if one.fault_s is None and one.fault_not_before_s is None and one.step > SEEN_STEPS:
            yield f"interruption {one.id} has no time, although it came after step {one.step}"
        if one.fault_not_before_s is not None and one.fault_not_before_s > one.detected_s:
            yield (
                f"interruption {one.id} came after {one.fault_not_before_s:.6f}, but was detected"
                f" at {one.detected_s:.6f}"
            )


class TimesInOrder(Checker):
    """The times of an interruption are in their order, if they come from one clock."""

    of = (InterruptionAtEnd,)

    def see(self, seen: Observation) -> Iterator[str]:
        if not isinstance(seen, InterruptionAtEnd) or seen.nodes > 1:
            return
        known = [(name, at_s) for name in TIMES if (at_s := getattr(seen.record, name)) is not None]
        for (first, first_s), (second, second_s) in itertools.pairwise(known):
            if second_s < first_s - 1e-9:
                yield (
                    f"interruption {seen.record.id} has {second} {second_s:.6f} before {first}"
                    f" {first_s:.6f}"
                )


class LostStepsBooked(Checker):
    """An interruption is booked with the number of committed steps that it cost.

    A step whose vote has passed counts, even if no rank has applied it.
    """

    of = (InterruptionAtEnd,)

    def see(self, seen: Observation) -> Iterator[str]:
        if not isinstance(seen, InterruptionAtEnd) or seen.nodes > 1 or seen.moved is None:
            return
        if seen.record.steps_lost == UNSEEN_COUNT and not seen.moved:
            return  # the script had not called outlast yet, so it had nothing to lose
        if not seen.moved <= seen.record.steps_lost <= seen.moved + 1:
            yield (
                f"interruption {seen.record.id} is booked with {seen.record.steps_lost} lost steps,"
                f" but it cost {seen.moved}"
            )


class RepeatedStepsBooked(Checker):
    """An interruption is booked with the number of steps that had begun and are done again.

    These are at least the steps that had been committed. A step that had begun is charged once: to
    the interruption that cut it short, or to a later one.
    """

    of = (InterruptionAtEnd,)

    def __init__(self) -> None:
        self._uncharged = 0

    def see(self, seen: Observation) -> Iterator[str]:
        if not isinstance(seen, InterruptionAtEnd) or seen.nodes > 1 or seen.begun is None:
            return
        begun, moved = seen.begun + self._uncharged, seen.moved or 0
        if seen.record.steps_repeated == UNSEEN_COUNT and not begun:
            return
        if not moved <= seen.record.steps_repeated <= begun:
            yield (
                f"interruption {seen.record.id} is booked with {seen.record.steps_repeated}"
                f" repeated steps; {begun} had begun, and {moved} of them were committed"
            )
        self._uncharged = max(0, begun - seen.record.steps_repeated)


class ResumedWhenAtWork(Checker):
    """An interruption is over when a later generation is at work, and not before.

    Messages of two ranks may overtake each other. So it is over at the latest when the second
    message could arrive.
    """

    of = (InterruptionAtEnd,)

    def see(self, seen: Observation) -> Iterator[str]:
        if (
            not isinstance(seen, InterruptionAtEnd)
            or seen.nodes > 1
            or seen.record.resumed_s is None
        ):
            return
        late_s = 2 * seen.latency_s + COMMITS_APART_S
        if seen.back_s is None or not -NEAR_S <= seen.record.resumed_s - seen.back_s <= late_s:
            yield (
                f"interruption {seen.record.id} is booked as over at {seen.record.resumed_s:.6f},"
                f" but the run was at work again at {seen.back_s}"
            )


class ResumedOnceAllCommit(Checker):
    """An interruption is over at the latest when all ranks have committed a step afterwards.

    The step belongs to a later generation. This holds under any coordinator.
    """

    of = (InterruptionAtEnd,)

    def see(self, seen: Observation) -> Iterator[str]:
        if not isinstance(seen, InterruptionAtEnd) or seen.nodes == 1 or seen.stood_s is None:
            return
        over_s = seen.record.resumed_s
        if over_s is None or over_s > seen.stood_s + seen.unsure_s:
            yield (
                f"interruption {seen.record.id} is booked as over at {over_s}, but all ranks were"
                f" at work again at {seen.stood_s:.6f}"
            )


class PlanNamesTimes(Checker):
    """The plan of a rank that goes on names the times of the fault and of its detection.

    From these times the rank books its lost seconds.
    """

    of = (RankGiven, InterruptionAtEnd)

    def __init__(self) -> None:
        self._plans: dict[int, Regroup] = {}

    def see(self, seen: Observation) -> Iterator[str]:
        if isinstance(seen, RankGiven):
            self._plans[seen.plan.generation] = seen.plan
        elif isinstance(seen, InterruptionAtEnd) and seen.nodes == 1 and seen.record.parent is None:
            one, plan = seen.record, self._plans.get(seen.record.generation + 1)
            if plan is None:
                return
            for name, told_s, known_s in (
                ("struck", plan.fault_s, one.fault_s),
                ("known", plan.detected_s, one.detected_s),
            ):
                if known_s is not None and (told_s is None or told_s > known_s + NEAR_S):
                    yield (
                        f"the plan of generation {plan.generation} says that interruption {one.id}"
                        f" was {name} at {told_s}, but it was at {known_s:.6f}"
                    )


class CommittedStepNamed(Checker):
    """An interruption names the newest step that was known to be committed."""

    of = (InterruptionAtEnd,)

    def see(self, seen: Observation) -> Iterator[str]:
        if (
            isinstance(seen, InterruptionAtEnd)
            and seen.committed is not None
            and not seen.committed[0] <= seen.record.step <= seen.committed[1] + 1
        ):
            yield (
                f"interruption {seen.record.id} names step {seen.record.step}, but the newest"
                f" committed step was {seen.committed[0]} to {seen.committed[1]}"
            )


class WarnedOnce(Checker):
    """Each coordinator that hears of a warning gives it once, and at once."""

    of = (WarningHeard, EventWritten, RunEnded)

    def __init__(self) -> None:
        self._said: set[object] = set()
        self._due: dict[tuple[int, str], float] = {}

    def see(self, seen: Observation) -> Iterator[str]:
        if isinstance(seen, WarningHeard):
            self._due.setdefault((seen.epoch, seen.text), self.now_s)
        elif isinstance(seen, RunEnded):
            for _, text in [
                said
                for said, since_s in self._due.items()
                if said not in self._said and self.now_s > since_s
            ]:
                yield f"a warning is not given: {text}"
        elif isinstance(seen, EventWritten) and seen.kind == "warning":
            if (seen.epoch, seen.data["text"]) in self._said:
                yield f"a warning is given twice: {seen.data['text']}"
            self._said.add((seen.epoch, seen.data["text"]))


class EarlySpareEndReported(Checker):
    """If a spare ended before it could park, people are told, and otherwise not."""

    of = (TextShown, RunEnded)

    def __init__(self) -> None:
        self._shown = False

    def see(self, seen: Observation) -> Iterator[str]:
        if isinstance(seen, TextShown) and "ended before it could park" in seen.text:
            self._shown = True
            if not seen.ended_early:
                yield (
                    f"people are told {seen.text!r}, but every spare that was not killed could park"
                )
        elif (
            isinstance(seen, RunEnded) and not self._shown and seen.early_s > seen.ending_s + TOLD_S
        ):
            yield (
                f"a spare ended before it could park, {seen.early_s:.3f} s ago, but people were not"
                " told"
            )


class ScriptFactsNotedOnce(Checker):
    """The ledger says once that the script has steps, and once that its state is sharded.

    A later coordinator has to know both.
    """

    of = (EventWritten, RunEnded)

    def __init__(self) -> None:
        self._said: list[object] = []

    def see(self, seen: Observation) -> Iterator[str]:
        if isinstance(seen, EventWritten) and seen.kind == "script":
            if seen.data["sharded"] in self._said:
                yield (
                    "it is written twice that the script has steps, sharded or not:"
                    f" {[*self._said, seen.data['sharded']]}"
                )
            self._said.append(seen.data["sharded"])
        elif isinstance(seen, RunEnded) and seen.trained and not seen.plain and not seen.noted:
            yield "the run has trained, but the ledger does not say that its script has steps"


class SingleFaultInTime(Checker):
    """A single fault is detected, and dealt with, as soon as its kind allows.

    So the run waits for no event that never comes.
    """

    of = (FirstFault,)

    def see(self, seen: Observation) -> Iterator[str]:
        if not isinstance(seen, FirstFault):
            return
        slack_s = LATENCIES * seen.latency_s
        if seen.kind in NOTICED_S and seen.noticed_s > (
            bound_s := NOTICED_S[seen.kind] + slack_s + seen.first_step_s * (seen.kind == "raise")
        ):
            yield (
                f"a {seen.kind} was detected {seen.noticed_s:.3f} s after it struck, but"
                f" {bound_s:.3f} s are enough"
            )
        if seen.mechanism and seen.kind in CALLED and seen.mechanism != CALLED[seen.kind]:
            yield f"a single fault of the kind {seen.kind} has the mechanism {seen.mechanism}"
        if (
            seen.kind in HUNG
            and seen.within
            and seen.noticed_s > (bound_s := _deadline_s(seen) + slack_s)
        ):
            yield (
                f"a {seen.kind} after {seen.steps} steps was detected {seen.noticed_s:.3f} s after"
                f" it struck, but {bound_s:.3f} s are enough"
            )
        if (
            seen.kind in HUNG
            and seen.silence_s
            and seen.noticed_s
            > (bound_s := (seen.silence_s + limits.AWAITED_LOOK_S) * FAST + ASKED_S + slack_s)
        ):
            yield (
                f"the hang of a plain script was detected after {seen.noticed_s:.3f} s, but"
                f" {bound_s:.3f} s are enough"
            )
        # A survivor leaves at its next collective, so it may still have to run the body of a step.
        if seen.back_s is not None and seen.back_s > (
            bound_s := BACK_S + slack_s + seen.body_s + seen.first_step_s
        ):
            yield (
                f"a step was committed {seen.back_s:.3f} s after a {seen.kind} was detected, but"
                f" {bound_s:.3f} s are enough"
            )


def _deadline_s(seen: FirstFault) -> float:
    """Return the deadline of a rank that hangs within a step, by any clock.

    It is learned from earlier steps. Steps may be shorter than an agent's ticks. So the first steps
    that the agent saw may be judged by those of other processes, or by no step at all.
    """
    if seen.steps >= limits.FIRST_STEPS_COUNT + UNSEEN_STEPS:
        own_s = limits.DEADLINE_FACTOR * seen.body_s
        return max(limits.STEP_FLOOR_S, own_s) * FAST + ASKED_S
    least_s = limits.AWAITED_LOOK_S + (
        limits.FIRST_STEPS_FLOOR_S if seen.steps > UNSEEN_STEPS else limits.FIRST_STEPS_DEADLINE_S
    )
    return least_s * FAST + ASKED_S + FIRSTS * seen.first_step_s


INTERRUPTION_RECORDS: tuple[type[Checker], ...] = (
    NamedOnce,
    WellFormed,
    WrittenOnce,
    EarliestTimeNamed,
    TimesInOrder,
    LostStepsBooked,
    RepeatedStepsBooked,
    ResumedWhenAtWork,
    ResumedOnceAllCommit,
    PlanNamesTimes,
    CommittedStepNamed,
    WarnedOnce,
    EarlySpareEndReported,
    ScriptFactsNotedOnce,
    SingleFaultInTime,
)
