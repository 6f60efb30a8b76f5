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

# in this order they come
TIMES = ("fault_s", "detected_s", "left_s", "regrouped_s", "restored_s", "resumed_s")
# of a fault that comes alone, and a few latencies more
NOTICED_S = {"kill": 0.05, "exit": 0.05, "stop": limits.STOPPED_FLOOR_S + 0.1, "raise": 0.1}
BACK_S = 0.6  # likewise, until a step is committed again, where first steps are as quick as others
# faults that come alone, and that their process does not report
CALLED = {"kill": "signal", "exit": "exit", "deaf": "hang", "hang": "hang"}
HUNG = ("hang", "deaf")
# once the deadline is over, all ranks are asked how they stand
ASKED_S = limits.INQUIRY_DEADLINE_S + limits.PING_DEADLINE_S
FAST = 1 + 2 * limits.CLOCK_DRIFT_MAX  # by any clock
UNSEEN_STEPS = 6
FIRSTS = 5  # times a first step, a later first step may take
LATENCIES = 10
TOLD_S = 1.0  # on its way, or the run was ending
COMMITS_APART_S = 0.02  # those of one step
SEEN_STEPS = 2  # an agent has looked at the ranks since


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
    """An exception is a user's error, with its words.

    A child has a parent that is as old, and ends when the parent does.
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
            yield f"interruption {one.id} is an exception, and nobody says which, or from where"
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
                f"interruption {one.id} was over at {one.resumed_s}, and its parent {parent.id} at"
                f" {parent.resumed_s}"
            )


class WrittenOnce(Checker):
    """The times of detection and of the choice of the rung are written down once.

    Nothing is written any more once the interruption is over.
    """

    of = (RecordRewritten,)

    def see(self, seen: Observation) -> Iterator[str]:
        if not isinstance(seen, RecordRewritten):
            return
        before, now = seen.before, seen.record
        for name in ("detected_s", "left_s", "resumed_s"):
            if getattr(before, name) not in (None, getattr(now, name)):
                yield (
                    f"interruption {now.id} has {name} {getattr(now, name)}, and had"
                    f" {getattr(before, name)}"
                )
        if now.generation != before.generation or now.step < before.step:
            yield (
                f"interruption {now.id} is of generation {now.generation} and step {now.step}, and"
                f" was of {before.generation} and {before.step}"
            )
        if before.resumed_s is not None and now != before:
            yield f"interruption {now.id} was over, and is written again: {now.reason}"


class EarliestTimeNamed(Checker):
    """If the beginning of an interruption is not known, its earliest time is.

    That is the time at which a step was last seen, once there was one.
    """

    of = (InterruptionAtEnd,)

    def see(self, seen: Observation) -> Iterator[str]:
        if not isinstance(seen, InterruptionAtEnd) or seen.nodes > 1:
            return
        one = seen.record
        if one.fault_s is None and one.fault_not_before_s is None and one.step > SEEN_STEPS:
            yield f"interruption {one.id} has no time, and was after step {one.step}"
        if one.fault_not_before_s is not None and one.fault_not_before_s > one.detected_s:
            yield (
                f"interruption {one.id} was not before {one.fault_not_before_s:.6f}, and was"
                f" detected at {one.detected_s:.6f}"
            )


class TimesInOrder(Checker):
    """Its times come in their order, where one clock tells them."""

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
    """An interruption is booked with as many committed steps as it has cost.

    A step whose vote has passed counts, though nobody may have applied it.
    """

    of = (InterruptionAtEnd,)

    def see(self, seen: Observation) -> Iterator[str]:
        if not isinstance(seen, InterruptionAtEnd) or seen.nodes > 1 or seen.moved is None:
            return
        if seen.record.steps_lost == UNSEEN_COUNT and not seen.moved:
            return  # the script had not called outlast yet, and had nothing to lose
        if not seen.moved <= seen.record.steps_lost <= seen.moved + 1:
            yield (
                f"interruption {seen.record.id} is said to have cost {seen.record.steps_lost}"
                f" committed steps, and it cost {seen.moved}"
            )


class RepeatedStepsBooked(Checker):
    """An interruption is booked with as many repeated steps as had been begun.

    They are no fewer than had been committed. A step that was begun is charged once: to the
    interruption that cut it short, or to one after that.
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
                f"interruption {seen.record.id} is said to have cost {seen.record.steps_repeated}"
                f" steps that are done again; {begun} had been begun, and {moved} of them committed"
            )
        self._uncharged = max(0, begun - seen.record.steps_repeated)


class ResumedWhenAtWork(Checker):
    """An interruption is over when a later generation is at work, and no sooner.

    Messages of two ranks may overtake each other. It is over no later than the second one could say
    so.
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
                f"interruption {seen.record.id} is said to be over at {seen.record.resumed_s:.6f},"
                f" and the run was at work again at {seen.back_s}"
            )


class ResumedOnceAllCommit(Checker):
    """An interruption is over once all ranks have committed a step in a later generation.

    This holds under any coordinator.
    """

    of = (InterruptionAtEnd,)

    def see(self, seen: Observation) -> Iterator[str]:
        if not isinstance(seen, InterruptionAtEnd) or seen.nodes == 1 or seen.stood_s is None:
            return
        over_s = seen.record.resumed_s
        if over_s is None or over_s > seen.stood_s + seen.unsure_s:
            yield (
                f"interruption {seen.record.id} is said to be over at {over_s}, and all ranks were"
                f" at work again at {seen.stood_s:.6f}"
            )


class PlanNamesTimes(Checker):
    """A rank that goes on is told since when it has lost time, and since when that was known."""

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
                        f"generation {plan.generation} is told that interruption {one.id} was"
                        f" {name} at {told_s}, and it was at {known_s:.6f}"
                    )


class CommittedStepNamed(Checker):
    """An interruption names the newest committed step, as far as that could be known."""

    of = (InterruptionAtEnd,)

    def see(self, seen: Observation) -> Iterator[str]:
        if (
            isinstance(seen, InterruptionAtEnd)
            and seen.committed is not None
            and not seen.committed[0] <= seen.record.step <= seen.committed[1] + 1
        ):
            yield (
                f"interruption {seen.record.id} is said to be of step {seen.record.step}, and"
                f" {seen.committed[0]} to {seen.committed[1]} were committed"
            )


class WarnedOnce(Checker):
    """A warning is given once by each coordinator that hears of it, at once."""

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
                yield f"nobody is warned: {text}"
        elif isinstance(seen, EventWritten) and seen.kind == "warning":
            if (seen.epoch, seen.data["text"]) in self._said:
                yield f"it is said twice: {seen.data['text']}"
            self._said.add((seen.epoch, seen.data["text"]))


class EarlySpareEndReported(Checker):
    """A spare that ended too early is reported, if there was one, and only then."""

    of = (TextShown, RunEnded)

    def __init__(self) -> None:
        self._shown = False

    def see(self, seen: Observation) -> Iterator[str]:
        if isinstance(seen, TextShown) and "ended before it could park" in seen.text:
            self._shown = True
            if not seen.ended_early:
                yield (
                    f"it is told: {seen.text!r}, and every spare could park that nobody has killed"
                )
        elif (
            isinstance(seen, RunEnded) and not self._shown and seen.early_s > seen.ending_s + TOLD_S
        ):
            yield (
                f"a spare ended before it could park, {seen.early_s:.3f} s ago, and nobody was told"
            )


class ScriptFactsNotedOnce(Checker):
    """The ledger notes once that the script has steps, and once that its state is sharded.

    A later coordinator has to know both.
    """

    of = (EventWritten, RunEnded)

    def __init__(self) -> None:
        self._said: list[object] = []

    def see(self, seen: Observation) -> Iterator[str]:
        if isinstance(seen, EventWritten) and seen.kind == "script":
            if seen.data["sharded"] in self._said:
                yield (
                    "it is written down twice that the script has steps, sharded or not:"
                    f" {[*self._said, seen.data['sharded']]}"
                )
            self._said.append(seen.data["sharded"])
        elif isinstance(seen, RunEnded) and seen.trained and not seen.plain and not seen.noted:
            yield "the run has trained, and it is not written down that its script has steps"


class SingleFaultInTime(Checker):
    """A fault that comes alone is known, and over, as soon as its kind allows.

    So nothing waits for an event that does not come.
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
                f"a {seen.kind} was known {seen.noticed_s:.3f} s after it struck, and {bound_s:.3f}"
                " s are enough"
            )
        if seen.mechanism and seen.kind in CALLED and seen.mechanism != CALLED[seen.kind]:
            yield f"a {seen.kind} that came alone is called {seen.mechanism}"
        if (
            seen.kind in HUNG
            and seen.within
            and seen.noticed_s > (bound_s := _deadline_s(seen) + slack_s)
        ):
            yield (
                f"a {seen.kind} after {seen.steps} steps was known {seen.noticed_s:.3f} s after it"
                f" struck, and {bound_s:.3f} s are enough"
            )
        if (
            seen.kind in HUNG
            and seen.silence_s
            and seen.noticed_s
            > (bound_s := (seen.silence_s + limits.AWAITED_LOOK_S) * FAST + ASKED_S + slack_s)
        ):
            yield (
                f"a plain script was known to hang {seen.noticed_s:.3f} s after it did, and"
                f" {bound_s:.3f} s are enough"
            )
        # A survivor leaves at its next collective, so it may have the body of a step before it.
        if seen.back_s is not None and seen.back_s > (
            bound_s := BACK_S + slack_s + seen.body_s + seen.first_step_s
        ):
            yield (
                f"a step was committed {seen.back_s:.3f} s after a {seen.kind} was known, and"
                f" {bound_s:.3f} s are enough"
            )


def _deadline_s(seen: FirstFault) -> float:
    """Return the deadline of a rank that hangs within a step, by any clock.

    It is learned from earlier steps. Steps may be shorter than an agent's ticks, so the first ones
    that it saw are compared with those of others, or with nothing.
    """
    if seen.steps >= limits.FIRST_STEPS_COUNT + UNSEEN_STEPS:
        own_s = limits.DEADLINE_FACTOR * seen.body_s
        # its peers were overdue before
        again_s = limits.AWAITED_LOOK_S if own_s > limits.STEP_FLOOR_S and seen.nodes > 1 else 0.0
        return max(limits.STEP_FLOOR_S, own_s) * FAST + again_s + ASKED_S
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
