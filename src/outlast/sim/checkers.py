"""What must hold in every life of a run, whatever is struck and when. Apart from world, workload and faults: they only see observations.

Safety      one generation, one owner of each rank, one restore point; nobody stale contributes; nothing is read that is not there; no step is lost
Liveness    the run ends within the bound: all steps committed, or with a verdict
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

from outlast.model import limits
from outlast.model.terms import Cause
from outlast.sim.observations import Arrived, Booked, Named, NothingMoves, Observation, Planned, RankGiven, Regrouped, Restored, RunOver, StepDone, WentOn

VERDICTS = ("no node with room", "crash loop", "whole restarts", "budget", "cannot be killed")  # how a run that is struck again and again may end
MECHANISMS = {  # what a fault may be called; who said that a peer is lost, and ends then, may end for that
    "kill": ("signal",), "exit": ("exit", "lost_contact"), "raise": ("exception",), "refuse": ("exception",),
    "stop": ("hang",), "deaf": ("hang",), "hang": ("hang",), "hold": ("hang",), "mute": ("hang",),
    **dict.fromkeys(("lose_node", "cut", "lag", "lose_coordinator"), ("lost_node", "hang", "lost_contact", "signal")),
}  # fmt: skip
NOTICED_S = 0.5  # a verdict on a process reaches it this long after it is due


@dataclass(frozen=True, slots=True)
class Violation:
    """`rule` names the checker, `at_s` is in seconds since the beginning."""

    rule: str
    at_s: float
    what: str


class Checker(Protocol):
    def see(self, seen: Observation) -> Iterator[str]: ...


class OnePlan:
    """A generation starts from one step, and generations only grow."""

    def __init__(self) -> None:
        self._newest = 0

    def see(self, seen: Observation) -> Iterator[str]:
        if isinstance(seen, Planned):
            if len(set(seen.steps)) > 1:
                yield f"generation {seen.generation} is to start from several steps: {sorted(set(seen.steps))}"
            if seen.generation <= self._newest:
                yield f"generation {seen.generation} comes after {self._newest}"
            self._newest = seen.generation


class OneOwner:
    """A rank is given away only after its holder is dead, and a step is committed by its only holder."""

    def see(self, seen: Observation) -> Iterator[str]:
        if isinstance(seen, RankGiven) and seen.others:
            yield f"rank {seen.plan.rank} is given to worker {seen.worker} while worker {seen.others[0]} lives"
        if isinstance(seen, StepDone) and seen.owners != (seen.worker,):
            yield f"rank {seen.rank} commits step {seen.step}, and is held by workers {seen.owners}"


class Fenced:
    """Nobody commits in a generation once a newer one has committed."""

    def __init__(self) -> None:
        self._newest = 0

    def see(self, seen: Observation) -> Iterator[str]:
        if isinstance(seen, StepDone):
            if seen.generation < self._newest:
                yield f"rank {seen.rank} commits step {seen.step} in generation {seen.generation}, after one in {self._newest}"
            self._newest = max(self._newest, seen.generation)


class OnePoint:
    """All that join a generation join it at one step, with the state of that step; and what is committed is the state of its step."""

    def __init__(self) -> None:
        self._steps: dict[int, int] = {}

    def see(self, seen: Observation) -> Iterator[str]:
        if isinstance(seen, Arrived):
            if seen.content != seen.step:
                yield f"rank {seen.rank} joins generation {seen.generation} at step {seen.step} with the state of step {seen.content}"
            first = self._steps.setdefault(seen.generation, seen.step)
            if first != seen.step:
                yield f"rank {seen.rank} joins generation {seen.generation} at step {seen.step}, others at {first}"
        if isinstance(seen, StepDone) and seen.content != seen.step:
            yield f"rank {seen.rank} commits step {seen.step} with the state of step {seen.content}"


class SealedOnly:
    """What a plan says is to be read is there."""

    def see(self, seen: Observation) -> Iterator[str]:
        if isinstance(seen, Restored) and seen.step not in seen.found:
            yield f"rank {seen.rank} is to read step {seen.step} from the {seen.source}, which holds {list(seen.found) or 'nothing'}"


class NothingLost:
    """A committed step stays committed as long as anybody holds it."""

    def see(self, seen: Observation) -> Iterator[str]:
        if isinstance(seen, Planned) and seen.steps and min(seen.steps) < seen.committed and seen.holders:
            back, held = min(seen.steps), f"step {seen.committed} is committed, and ranks {list(seen.holders)} hold it"
            yield f"generation {seen.generation} goes back to step {back}; {held}"


class NoFalseAlarm:
    """Nothing is taken for a fault that none was struck for: a run that is struck once does not end in a crash loop."""

    def see(self, seen: Observation) -> Iterator[str]:
        if isinstance(seen, RunOver) and seen.interruptions > seen.strikes:
            yield f"{seen.interruptions} interruptions, and {seen.strikes} times something was struck"


class OnlyTheGuilty:
    """An interruption names processes that were struck, and no others. Of a plain script, which fails with its peers, nobody can say which came first."""

    def see(self, seen: Observation) -> Iterator[str]:
        if isinstance(seen, RunOver) and not seen.plain and (innocent := set(seen.blamed) - set(seen.struck)):
            yield f"processes {sorted(innocent)} are blamed, and {list(seen.struck)} were struck"


class RightName:
    """An interruption is called what it was."""

    def see(self, seen: Observation) -> Iterator[str]:
        if isinstance(seen, Named) and seen.kinds and seen.mechanism not in {name for kind in seen.kinds for name in MECHANISMS.get(kind, ())}:
            yield f"interruption {seen.id} is called {seen.mechanism}, and its processes were struck by {', '.join(seen.kinds)}"


class InTime:
    """An interruption lies within the run, whichever clocks it was told by."""

    def see(self, seen: Observation) -> Iterator[str]:
        if isinstance(seen, Named) and any(not -seen.unsure_s <= at_s <= seen.over_s + seen.unsure_s for at_s in seen.times_s):
            yield f"interruption {seen.id} has times {[round(at_s, 3) for at_s in seen.times_s]}, and the run took {seen.over_s:.3f} s"


class Room:
    """No node houses more ranks than it has room for."""

    def see(self, seen: Observation) -> Iterator[str]:
        if isinstance(seen, RankGiven) and seen.beside >= seen.room:
            yield f"rank {seen.plan.rank} is given to worker {seen.worker} beside {seen.beside} others, where there is room for {seen.room}"


class AllThere:
    """Training goes on once all ranks are in the generation, and not before: who is still on its way is watched."""

    def see(self, seen: Observation) -> Iterator[str]:
        if isinstance(seen, Regrouped) and len(seen.there) < seen.ranks:
            yield f"generation {seen.generation} is said to stand, and only ranks {list(seen.there)} are in it"


class Prompt:
    """A process that the kernel holds stopped is ended once its grace is over: its peers do not wait for ordinary deadlines."""

    def see(self, seen: Observation) -> Iterator[str]:
        if isinstance(seen, WentOn) and seen.stopped_s > limits.STOPPED_FLOOR_S + NOTICED_S:
            yield f"worker {seen.worker} (rank {seen.rank}) was stopped for {seen.stopped_s:.3f} s, and nobody has ended it"


class SecondsSum:
    """Each second of a rank is booked to one cause; an undisturbed run has repeated nothing, and detected nothing."""

    def see(self, seen: Observation) -> Iterator[str]:
        if not isinstance(seen, Booked):
            return
        for rank, seconds in enumerate(seen.by_rank):
            said_s = math.fsum(seconds.values())
            if abs(said_s - seen.wall_s) > 1e-6 * max(1.0, seen.wall_s):
                yield f"rank {rank} has {said_s:.6f} s booked in a run of {seen.wall_s:.6f} s"
            if min(seconds.values()) < 0:
                yield f"rank {rank} has less than no seconds booked: {dict(seconds)}"
            good_s, worked_s, slack_s = seconds[Cause.PRODUCTIVE], seen.worked_s[rank], seen.unsure_s[rank] + 1e-6
            if not good_s - slack_s <= worked_s <= good_s + seconds[Cause.STALL] + slack_s:
                yield f"rank {rank} was at new steps for {worked_s:.6f} s, and has {good_s:.6f} productive and {seconds[Cause.STALL]:.6f} stalled booked"
            if not seen.interrupted and (seconds[Cause.REPEATED] or seconds[Cause.DETECTION] or seconds[Cause.DEGRADED]):
                yield f"rank {rank} has lost seconds booked, and the run was not interrupted: {dict(seconds)}"


class Ends:
    """Once, within the bound, with nobody left behind: all steps committed, or a verdict."""

    def __init__(self) -> None:
        self._over = False

    def see(self, seen: Observation) -> Iterator[str]:
        if isinstance(seen, NothingMoves):
            yield f"the run has not ended within {seen.bound_s:g} s: {seen.where}"
        if isinstance(seen, RunOver):
            if self._over:
                yield "the run ended twice"
            self._over = True
            if seen.alive:
                yield f"the run is over, and workers {list(seen.alive)} live"
            if seen.state == "ended":
                yield from self._well(seen)
            elif seen.state == "stopped" and seen.stop_asked:
                return
            elif (seen.exit_code, seen.state) != (1, "failed") or not any(
                words in seen.reason for words in (*VERDICTS, *(["refused"] if seen.refused else []))
            ):
                yield f"the run is {seen.state} with exit code {seen.exit_code}: {seen.reason}"

    def _well(self, seen: RunOver) -> Iterator[str]:
        if seen.exit_code != 0:
            yield f"the run ended well, with exit code {seen.exit_code}"
        if len(seen.done) < seen.ranks:
            yield f"the run ended well, and only ranks {list(seen.done)} came to their end"
        if seen.trained and seen.committed != seen.until and not seen.plain:
            yield f"the run ended well at step {seen.committed} of {seen.until}"
        if seen.open_interruptions:
            yield f"the run ended well, and interruptions {list(seen.open_interruptions)} were never over"


ALL: tuple[Callable[[], Checker], ...] = (
    OnePlan, OneOwner, Fenced, OnePoint, SealedOnly, NothingLost, NoFalseAlarm, OnlyTheGuilty, RightName, InTime, Room, AllThere, Prompt, SecondsSum, Ends,
)  # fmt: skip


class Jury:
    """All checkers; each violation once. `result`: bad where there is one, unknown where the run was not watched to its end, else ok."""

    def __init__(self) -> None:
        self.violations: list[Violation] = []
        self._checkers = [make() for make in ALL]
        self._over = False

    def see(self, at_s: float, seen: Observation) -> None:
        self._over = self._over or isinstance(seen, (RunOver, NothingMoves))
        for checker in self._checkers:
            self.violations += [Violation(type(checker).__name__, at_s, what) for what in checker.see(seen)]

    @property
    def result(self) -> str:
        return "bad" if self.violations else "ok" if self._over else "unknown"
