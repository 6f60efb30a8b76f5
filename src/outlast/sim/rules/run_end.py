"""Rules for the end of a run: it ends once and in time, and gives up only with a reason."""

from __future__ import annotations

import re
from collections.abc import Iterator

from outlast.model import limits
from outlast.model.fault_plan import LINK_KINDS
from outlast.model.terms import Rung
from outlast.sim.rules.checker import NEAR_S, Checker
from outlast.sim.rules.final_observations import NothingMoves, RunEnded
from outlast.sim.rules.observations import (
    Executed,
    KillOrdered,
    Observation,
    Planned,
    Regrouped,
    StepDone,
    Stretch,
)

APART = (
    "lose_node",
    "cut",
    "lag",
    "freeze",
    "stop of an agent",
    "part",
    "snap",
    "lose_coordinator",
)
STRUCK = "killed from outside again and again"
# The reasons with which a run that is struck repeatedly may end, and the faults that must have
# struck it; () if the number of plans shows it.
VERDICTS = {
    "no node with room": APART,
    "cannot reach each other": APART,
    "cannot be killed": ("linger",),
    "crash loop": (),
    STRUCK: (),
    "whole restarts": (),
    "budget": (),
    "after the last step": ("raise", "exit"),
}
WAITS_S = {
    f"] in {waits_s:g} s": waits_s for waits_s in (limits.NODE_WAIT_S, limits.ENROL_WAIT_S)
} | {
    "cannot reach each other": limits.NODE_WAIT_S,
    "cannot be killed": limits.KILL_DEADLINE_S,
}
# interruptions by these faults may be caused by a link alone, and cost nothing
FREE = ("part", "snap", "freeze", "cut", "lag", "stop of an agent")
BORNE = (limits.SETUP_FAULTS_COUNT, limits.SAME_STEP_FAULTS_COUNT, limits.STANDSTILL_FAULTS_COUNT)


class RunEnds(Checker):
    """A run ends once, within the bound, and leaves no process behind.

    At its end all steps are committed, or there is a verdict.
    """

    of = (NothingMoves, RunEnded)

    def __init__(self) -> None:
        self._over = False

    def see(self, seen: Observation) -> Iterator[str]:
        if isinstance(seen, NothingMoves):
            yield f"the run has not ended within {seen.bound_s:g} s: {seen.where}"
        if isinstance(seen, RunEnded):
            if self._over:
                yield "the run ended twice"
            self._over = True
            if seen.alive:
                yield f"the run is over, but workers {list(seen.alive)} live"
            if seen.state == "ended":
                yield from self._well(seen)
            elif seen.state == "stopped" and seen.stop_asked:
                return
            elif (seen.exit_code, seen.state) != (1, "failed") or not any(
                words in seen.reason
                for words in (*VERDICTS, *(["refused"] if seen.refused else []))
            ):
                yield f"the run is {seen.state} with exit code {seen.exit_code}: {seen.reason}"

    def _well(self, seen: RunEnded) -> Iterator[str]:
        if seen.exit_code != 0:
            yield f"the run ended with success, but with exit code {seen.exit_code}"
        if len(seen.done) < seen.ranks:
            yield f"the run ended with success, but only ranks {list(seen.done)} reached their end"
        if seen.trained and seen.committed != seen.until and not seen.plain:
            yield f"the run ended with success at step {seen.committed} of {seen.until}"
        if seen.open_interruptions:
            yield (
                f"the run ended with success, but interruptions {list(seen.open_interruptions)}"
                " were never"
                " over"
            )


class StoppedAsAsked(Checker):
    """A run that was asked to stop says who asked, and exits with the code that was asked for."""

    of = (RunEnded,)

    def see(self, seen: Observation) -> Iterator[str]:
        asked = (
            seen.asked
            if isinstance(seen, RunEnded) and "lose_coordinator" in seen.kinds
            else seen.asked[:1]
            if isinstance(seen, RunEnded)
            else ()
        )
        if (
            isinstance(seen, RunEnded)
            and seen.state == "stopped"
            and (seen.exit_code, seen.reason) not in asked
        ):
            yield (
                f"the run is stopped with exit code {seen.exit_code} ({seen.reason}), but it was"
                f" asked to stop with {list(seen.asked)}"
            )
        if isinstance(seen, RunEnded) and seen.ending_s > (
            bound_s := limits.TERM_GRACE_S + 1.0 + limits.KILL_DEADLINE_S * ("linger" in seen.kinds)
        ):
            yield (
                f"the run is over {seen.ending_s:.3f} s after it was asked to end, but {bound_s:g}"
                " s are enough"
            )


class BudgetsPaid(Checker):
    """Each replacement, and each whole restart, costs one token.

    If it is tried again because of a link, this costs nothing more. Kills from outside may cost
    nothing. Committed steps give tokens back.
    """

    of = (StepDone, Stretch, RunEnded)

    def __init__(self) -> None:
        self._most = 0  # the highest step that any rank has ever done

    def see(self, seen: Observation) -> Iterator[str]:
        if isinstance(seen, (StepDone, Stretch)):
            self._most = max(self._most, seen.step)
        elif isinstance(seen, RunEnded) and seen.spent is not None and seen.policy == "none":
            some_free = not set(FREE).isdisjoint(seen.kinds)
            if some_free and not set(seen.kinds).issubset(LINK_KINDS):
                return
            bought = [
                child
                for rung, child in seen.rungs
                if rung in (Rung.SPARE.value, Rung.RESPAWN.value, Rung.RESTART.value)
            ]
            least = (
                len([child for child in bought if not child])
                # no step has given any token back, and no recovery was free
                if self._most < 1 and not some_free and "kill" not in seen.kinds
                else 0
            )
            # a rank that is given up is killed before that
            undecided = len([rung for rung, _ in seen.rungs if not rung])
            if not least <= seen.spent <= len(bought) + undecided:
                yield (
                    f"{seen.spent} tokens are spent, but {len(bought)} replacements or restarts"
                    f" were made, {len(bought) - sum(bought)} of them one by one"
                )


class KillsOnce(Checker):
    """No process is killed after its end or twice, unless all are killed.

    No healthy spare is killed.
    """

    of = (KillOrdered,)

    def __init__(self) -> None:
        self._ordered: set[int] = set()

    def see(self, seen: Observation) -> Iterator[str]:
        if isinstance(seen, KillOrdered):
            if seen.ended or (not seen.all_end and seen.worker in self._ordered):
                yield (
                    f"worker {seen.worker} has to be killed"
                    f" {'after its end' if seen.ended else 'once more'}"
                )
            if seen.idle and not seen.all_end:
                yield (
                    f"worker {seen.worker} is a spare of the kind that was asked for, but has to be"
                    " killed"
                )
            self._ordered.add(seen.worker)


class FullTimeBeforeGivingUp(Checker):
    """A rank that is given up because it is late had its full time since the last committed step.

    The record names that time.
    """

    of = (StepDone, Stretch, Planned, RunEnded)

    def __init__(self) -> None:
        self._since_s = 0.0
        self._begun = False

    def see(self, seen: Observation) -> Iterator[str]:
        if isinstance(seen, Planned):
            self._begun = True
        elif not isinstance(seen, RunEnded):
            self._since_s = self.now_s
        elif seen.state == "failed":
            for words, least_s in WAITS_S.items():
                if words in seen.reason and self.now_s - self._since_s < least_s - NEAR_S:
                    yield (
                        f"the run gave up {self.now_s - self._since_s:.3f} s after a step, but it"
                        f" has to wait {least_s:g} s: {seen.reason}"
                    )
            if self._begun and f"] in {limits.ENROL_WAIT_S:g} s" in seen.reason:
                yield f"the run gave up as if it had never begun: {seen.reason}"


class GivesUpWithCause(Checker):
    """A run that fails had a cause.

    It made as many plans without a step in between as its reason says, or the fault that its reason
    names has struck it.
    """

    of = (Planned, Regrouped, Executed, StepDone, Stretch, RunEnded)

    def __init__(self) -> None:
        self._newest = 0  # the newest step that all ranks have committed
        # the newest step that some rank has committed; under replicated state it counts for all
        self._first = 0
        self._ranks = 0
        # steps after it -> the ranks that have committed them, and for how many each stands
        self._done: dict[int, dict[int, int]] = {}
        self._plans = 0
        self._since = [0, 0]  # plans since a rank, and since all ranks, committed a new step
        # step -> the number of plans when a rank executed it first ...
        self._done_first: dict[int, int] = {}
        self._done_last: dict[int, int] = {}  # ... and committed it last

    def see(self, seen: Observation) -> Iterator[str]:
        if isinstance(seen, Planned):
            self._plans += 1
            self._since = [since + 1 for since in self._since]
            self._done.clear()  # ranks may have to roll back what only some had committed before
        elif isinstance(seen, Regrouped):
            self._ranks = seen.ranks
        elif isinstance(seen, Executed):
            self._done_first.setdefault(seen.step, self._plans)
        elif isinstance(seen, Stretch):
            self._executed(seen.last)
            self._all_have(seen.last)
        elif isinstance(seen, StepDone):
            self._executed(seen.step)
            self._has(seen.rank, seen.step, seen.count)
        elif isinstance(seen, RunEnded) and seen.state == "failed":
            yield from self._justified(seen)

    def _executed(self, step: int) -> None:
        self._done_first.setdefault(step, self._plans)
        self._done_last[step] = self._plans

    def _has(self, rank: int, step: int, count: int) -> None:
        if step > self._first:
            self._first, self._since[0] = step, 0
        if step > self._newest:
            ranks = self._done.setdefault(step, {})
            ranks[rank] = count
            if len(ranks) == self._ranks or sum(ranks.values()) == self._ranks:
                self._all_have(step)

    def _all_have(self, step: int) -> None:
        if step > self._newest:
            self._first, self._newest, self._since[1] = max(step, self._first), step, 0
            self._done = {later: ranks for later, ranks in self._done.items() if later > step}

    def _justified(self, seen: RunEnded) -> Iterator[str]:
        for words, kinds in VERDICTS.items():
            if words in seen.reason and kinds and not set(kinds) & set(seen.kinds):
                yield f"the run gave up ({seen.reason}), but no fault that can cause this struck it"
        if seen.plain and "crash loop" in seen.reason:
            yield (
                f"the run gave up ({seen.reason}), but the progress of a script without steps is"
                " not known"
            )
        if loop := re.match(
            r"(\d+) interruptions without a step (executed|committed) after step (\d+)", seen.reason
        ):
            said = int(loop[1])
            if STRUCK in seen.reason:
                yield from self._strikes(said, seen)
            else:
                yield from self._loops(said, int(loop[3]), seen, at_step=loop[2] == "executed")
        elif loop := re.match(
            r"(\d+) whole restarts|the budget of (\d+) replacements", seen.reason
        ):
            said, most = (
                int(loop[1] or loop[2]),
                seen.max_restarts if loop[1] else limits.RESPAWNS_COUNT,
            )
            if said != most or self._plans <= said:
                yield (
                    f"the run gave up after {said} attempts ({most} are allowed) and"
                    f" {self._plans} plans"
                )

    def _loops(self, said: int, step: int, seen: RunEnded, *, at_step: bool) -> Iterator[str]:
        """Check that a run which ends because of repeated failures has failed often enough.

        With `at_step`, the failures at this step count. Otherwise those since the last new step
        count. Kills from outside do not count.
        """
        if self._newest and set(APART) & set(seen.kinds):
            return  # steps committed while no rank could be asked may count as not committed
        allowed = (
            limits.SETUP_FAULTS_COUNT
            if not self._newest
            else limits.SAME_STEP_FAULTS_COUNT
            if at_step
            else limits.STANDSTILL_FAULTS_COUNT
        )
        later = max((plans for done, plans in self._done_last.items() if done > step), default=0)
        plans = (
            self._plans - max(later, self._done_first.get(step, 0)) if at_step else max(self._since)
        )
        if said <= allowed or said - 1 not in BORNE or plans < said - 1:
            yield (
                f"a crash loop after {said} interruptions ({allowed} are allowed) and {plans} plans"
                f" since a step after step {step}"
            )

    def _strikes(self, said: int, seen: RunEnded) -> Iterator[str]:
        """Check that a run which ends because of kills from outside was killed often enough."""
        if self._newest and set(APART) & set(seen.kinds):
            return  # as in _loops
        borne = limits.STRIKES_COUNT if self._newest else limits.SETUP_STRIKES_COUNT
        plans = max(self._since)
        if said <= borne or said > seen.signals or plans < said - 1:
            yield (
                f"the run gave up after {said} kills from outside ({borne} are allowed, and"
                f" {seen.signals} struck it) and {plans} plans since a new step"
            )


RUN_END: tuple[type[Checker], ...] = (
    RunEnds,
    StoppedAsAsked,
    BudgetsPaid,
    KillsOnce,
    FullTimeBeforeGivingUp,
    GivesUpWithCause,
)
