"""What must hold in every life of a run, whatever is struck and when.

Apart from world, workload and faults: they only see observations.

Safety      one generation, one owner of each rank, one restore point; nobody stale contributes;
            nothing is read that is not there; no step is lost
Liveness    the run ends within the bound: all steps committed, or with a verdict
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from outlast.model import limits
from outlast.model.terms import Cause
from outlast.sim.rules.agent_reports import AGENT_REPORTS
from outlast.sim.rules.checker import NEAR_S, Checker, Violation
from outlast.sim.rules.hang_verdicts import HANG_VERDICTS
from outlast.sim.rules.interruption_records import INTERRUPTION_RECORDS
from outlast.sim.rules.observations import (
    Arrived,
    Begun,
    Booked,
    MadeAnew,
    ManifestOrdered,
    Named,
    NothingMoves,
    Observation,
    Offered,
    OldStore,
    Planned,
    Pruned,
    RankGiven,
    Regrouped,
    Restored,
    RunOver,
    Saved,
    SaveFailed,
    ShardHeard,
    StepDone,
    Stock,
    Stretch,
    WentOn,
)
from outlast.sim.rules.policy_limits import POLICY_LIMITS
from outlast.sim.rules.power_loss import CountedOut
from outlast.sim.rules.recovery_answers import RECOVERY_ANSWERS
from outlast.sim.rules.run_end import RUN_END
from outlast.sim.rules.stop_requests import STOP_REQUESTS

# what a fault may be called; who said that a peer is lost, and ends then, may end for that
MECHANISMS = {
    "kill": ("signal",),
    "exit": ("exit", "lost_contact"),
    "raise": ("exception",),
    "refuse": ("exception",),
    "stop": ("hang",),
    "deaf": ("hang",),
    "hang": ("hang",),
    "hold": ("hang",),
    "mute": ("hang",),
    "starve": ("hang",),
    "corrupt_disk": ("exception",),
    **dict.fromkeys(
        ("lose_node", "cut", "lag", "freeze", "stop of an agent", "lose_coordinator"),
        ("lost_node", "hang", "lost_contact", "signal"),
    ),
}
# a warm one may have to make room for a hot one first
RESTOCKED_S = 2 * limits.SPARE_REFILL_DELAY_S + 0.5
NOTICED_S = 0.5  # a verdict on a process reaches it this long after it is due


class OnePlan(Checker):
    """A generation starts from one step, and generations only grow."""

    of = (Planned,)

    def __init__(self) -> None:
        self._newest = 0

    def see(self, seen: Observation) -> Iterator[str]:
        if isinstance(seen, Planned):
            if len(set(seen.steps)) > 1:
                yield (
                    f"generation {seen.generation} is to start from several steps:"
                    f" {sorted(set(seen.steps))}"
                )
            if seen.generation <= self._newest:
                yield f"generation {seen.generation} comes after {self._newest}"
            self._newest = seen.generation


class Patient(Checker):
    """A group that could not be formed across a link is tried again after a pause, with a store
    that all can reach if there is a place for one.
    """

    of = (Planned,)

    def see(self, seen: Observation) -> Iterator[str]:
        if isinstance(seen, Planned) and seen.cut_s is not None:
            if seen.cut_s < limits.LINK_RETRY_S - NEAR_S:
                yield (
                    f"generation {seen.generation} is tried {seen.cut_s:.3f} s after it was heard"
                    " that the last one failed for a link"
                )
            if seen.store_cut:
                yield (
                    f"generation {seen.generation} is tried with the store on {seen.store_cut},"
                    " which some could not reach"
                )


class OneOwner(Checker):
    """A rank is given away only after its holder is dead, and a step is committed by its only
    holder.
    """

    of = (RankGiven, StepDone, Stretch)

    def see(self, seen: Observation) -> Iterator[str]:
        if isinstance(seen, RankGiven) and seen.others:
            yield (
                f"rank {seen.plan.rank} is given to worker {seen.worker} while worker"
                f" {seen.others[0]} lives"
            )
        if isinstance(seen, StepDone) and seen.owners != (seen.worker,):
            yield f"rank {seen.rank} commits step {seen.step}, and is held by workers {seen.owners}"
        if isinstance(seen, Stretch) and seen.shared:
            yield (
                f"ranks {list(seen.shared)} commit steps {seen.first} to {seen.last}, and are not"
                " held by one process each"
            )


class Fenced(Checker):
    """Nobody commits in a generation once a newer one has committed."""

    of = (StepDone, Stretch)

    def __init__(self) -> None:
        self._newest = 0

    def see(self, seen: Observation) -> Iterator[str]:
        if isinstance(seen, (StepDone, Stretch)):
            if seen.generation < self._newest:
                who = (
                    f"rank {seen.rank} commits step {seen.step}"
                    if isinstance(seen, StepDone)
                    else f"steps from {seen.first} on are committed"
                )
                yield f"{who} in generation {seen.generation}, after one in {self._newest}"
            self._newest = max(self._newest, seen.generation)


class OnePoint(Checker):
    """All that join a generation join it at one step, with the state of that step; and what is
    committed is the state of its step.
    """

    of = (Arrived, StepDone, Stretch)

    def __init__(self) -> None:
        self._steps: dict[int, int] = {}

    def see(self, seen: Observation) -> Iterator[str]:
        if isinstance(seen, Arrived):
            if seen.content != seen.step:
                yield (
                    f"rank {seen.rank} joins generation {seen.generation} at step {seen.step} with"
                    f" the state of step {seen.content}"
                )
            first = self._steps.setdefault(seen.generation, seen.step)
            if first != seen.step:
                yield (
                    f"rank {seen.rank} joins generation {seen.generation} at step {seen.step},"
                    f" others at {first}"
                )
        if isinstance(seen, StepDone) and seen.content != seen.step:
            yield f"rank {seen.rank} commits step {seen.step} with the state of step {seen.content}"
        if isinstance(seen, StepDone) and seen.odd:
            times = f"{abs(seen.odd)} times {'too often' if seen.odd > 0 else 'too seldom'}"
            yield (
                f"rank {seen.rank} commits step {seen.step} with state on which the script's code"
                f" behind step {seen.step - 1} has run {times}"
            )
        if isinstance(seen, Stretch) and seen.torn:
            yield (
                f"ranks {list(seen.torn)} commit steps from {seen.first} on without the state of"
                " the step before"
            )


class SealedOnly(Checker):
    """What a plan says is to be read is there."""

    of = (Restored,)

    def see(self, seen: Observation) -> Iterator[str]:
        if isinstance(seen, Restored) and seen.step not in seen.found:
            yield (
                f"rank {seen.rank} is to read step {seen.step} from the {seen.source}, which holds"
                f" {list(seen.found) or 'nothing'}"
            )


class SealedUsed(Checker):
    """What lies sealed of the step that a rank goes on from is read, or else what a checkpoint has
    of it: nothing of it is made anew.
    """

    of = (MadeAnew,)

    def see(self, seen: Observation) -> Iterator[str]:
        if isinstance(seen, MadeAnew) and seen.step > 0 and seen.step in seen.lies:
            yield (
                f"rank {seen.rank} goes on from step {seen.step}, which lies sealed in its slots,"
                " with private state as the script makes it"
            )
        elif isinstance(seen, MadeAnew) and seen.step > 0 and seen.read:
            yield (
                f"rank {seen.rank} goes on from step {seen.step}, the checkpoint of which has been"
                " read, with private state as the script makes it"
            )


class Stocked(Checker):
    """Spares that were spent are replaced, by such as were asked for, and there are never more."""

    of = (Stock,)

    def see(self, seen: Observation) -> Iterator[str]:
        if not isinstance(seen, Stock):
            return
        if seen.spares > seen.wanted:
            yield f"{seen.spares} spares live, and {seen.wanted} were asked for"
        if seen.spares < seen.wanted and seen.quiet_s > RESTOCKED_S:
            yield (
                f"{seen.spares} spares live, and {seen.wanted} were asked for, {seen.quiet_s:.3f} s"
                " after anything happened"
            )
        if seen.others and seen.quiet_s > RESTOCKED_S and not seen.ended_early:
            yield (
                f"{seen.others} spares live that are not of the kind that was asked for,"
                f" {seen.quiet_s:.3f} s after anything happened"
            )


class GoodOnly(Checker):
    """A checkpoint is offered only if it has a manifest, and every byte of it was as written when
    somebody last read it.
    """

    of = (Offered,)

    def see(self, seen: Observation) -> Iterator[str]:
        if isinstance(seen, Offered) and seen.why_not:
            yield (
                f"generation {seen.generation} is to begin from the checkpoint of step {seen.step}:"
                f" {seen.why_not}"
            )


class OnePast(Checker):
    """The shards of a checkpoint are those that were reported, and of one past: none was of a step
    that was rolled back since, or removed.
    """

    of = (Saved,)

    def see(self, seen: Observation) -> Iterator[str]:
        if isinstance(seen, Saved) and not seen.one_past:
            yield f"the manifest of step {seen.step} names shards that are not those that lie there"


class SavedOnceAll(Checker):
    """Once all shards of a step lie there, of one generation, a checkpoint is made of them."""

    of = (ShardHeard, Planned, ManifestOrdered)

    def __init__(self) -> None:
        self._heard: dict[tuple[int, int], set[int]] = {}
        self._due_s: dict[int, float] = {}
        self._newest: dict[int, int] = {}  # step -> generation of the newest shard
        self._made: dict[int, int] = {}  # the same when a checkpoint was made of it

    def see(self, seen: Observation) -> Iterator[str]:
        for step in [step for step, due_s in self._due_s.items() if self.now_s > due_s]:
            del self._due_s[step]
            yield f"all shards of step {step} lie there, and nobody makes a checkpoint of them"
        # else it is said again
        if isinstance(seen, ShardHeard) and seen.generation > self._made.get(seen.step, -1):
            self._newest[seen.step] = max(seen.generation, self._newest.get(seen.step, -1))
            ranks = self._heard.setdefault((seen.step, seen.generation), set())
            comes_again = seen.rank in ranks
            ranks.add(seen.rank)
            if len(ranks) == seen.ranks and not comes_again:
                self._due_s[seen.step] = self.now_s
        elif isinstance(seen, ManifestOrdered):
            self._due_s.pop(seen.step, None)
            self._made[seen.step] = self._newest.get(seen.step, -1)
        elif isinstance(seen, Planned):
            self._heard.clear()  # what was said before may be of a past that is over


class FreshStore(Checker):
    """A plain script, whose group is built with the same keys each time, is given a new store for
    each generation: the old one remembers the dead.
    """

    of = (RankGiven, RunOver)

    def __init__(self) -> None:
        self._stores: dict[int, tuple[str, int]] = {}

    def see(self, seen: Observation) -> Iterator[str]:
        if isinstance(seen, RankGiven):
            self._stores[seen.plan.generation] = seen.plan.store_host, seen.plan.store_port
        elif (
            isinstance(seen, RunOver)
            and seen.plain
            and len(set(self._stores.values())) < len(self._stores)
        ):
            yield (
                f"a plain script is given {len(set(self._stores.values()))} stores in"
                f" {len(self._stores)} generations"
            )


class AllEnrol(Checker):
    """A run begins once all its nodes are in, or those that are not have been waited for."""

    of = (Begun,)

    def see(self, seen: Observation) -> Iterator[str]:
        if (
            isinstance(seen, Begun)
            and seen.there < seen.nodes
            and self.now_s < limits.ENROL_WAIT_S - NEAR_S
        ):
            yield (
                f"the run begins {self.now_s:.3f} s after its start with {seen.there} of"
                f" {seen.nodes} nodes"
            )


class LastGoodStays(Checker):
    """The newest good checkpoint is never removed."""

    of = (Pruned,)

    def see(self, seen: Observation) -> Iterator[str]:
        if isinstance(seen, Pruned) and seen.left < seen.good:
            yield (
                f"the checkpoints of steps {list(seen.steps)} are removed, and that of step"
                f" {seen.good} was the newest good one"
            )


class FewStay(Checker):
    """No more checkpoints stay than are to be kept, if the newest of them is good."""

    of = (Pruned,)

    def see(self, seen: Observation) -> Iterator[str]:
        if (
            isinstance(seen, Pruned)
            and len(seen.stay) > limits.CHECKPOINTS_KEPT_COUNT
            and seen.left == seen.stay[-1]
        ):
            yield (
                f"the checkpoints of steps {list(seen.stay)} stay, and"
                f" {limits.CHECKPOINTS_KEPT_COUNT} are kept"
            )


class SavesHurtNobody(Checker):
    """A run to which nothing happens but that saves fail does not fail."""

    of = (SaveFailed, RunOver)

    def __init__(self) -> None:
        self._failed: list[int] = []

    def see(self, seen: Observation) -> Iterator[str]:
        if isinstance(seen, SaveFailed):
            self._failed.append(seen.step)
        if (
            isinstance(seen, RunOver)
            and self._failed
            and seen.state == "failed"
            and not seen.strikes
        ):
            yield f"the saves of steps {self._failed} failed, and so did the run: {seen.reason}"


class NothingDurableLost(Checker):
    """Where nobody holds the newest committed step any more, a run goes back no further than to its
    newest good checkpoint.
    """

    of = (Planned,)

    def see(self, seen: Observation) -> Iterator[str]:
        if (
            isinstance(seen, Planned)
            and seen.steps
            and not seen.holders
            and min(seen.steps) < min(seen.durable, seen.committed)
        ):
            yield (
                f"generation {seen.generation} goes back to step {min(seen.steps)}, and there is a"
                f" good checkpoint of step {seen.durable}"
            )


class NothingLost(Checker):
    """A committed step stays committed as long as anybody holds it, or can still do what the last
    plan said, or it lies handed over.
    """

    of = (Planned,)

    def see(self, seen: Observation) -> Iterator[str]:
        if (
            isinstance(seen, Planned)
            and seen.steps
            and min(seen.steps) < seen.committed
            and (why := _why_not_lost(seen))
        ):
            yield (
                f"generation {seen.generation} goes back to step {min(seen.steps)}; step"
                f" {seen.committed} is committed, and {why}"
            )


def _why_not_lost(seen: Planned) -> str:
    """ "": nobody knows of anything that is left of the newest committed step."""
    if seen.holders:
        return f"ranks {list(seen.holders)} hold it"
    if seen.follow:
        return f"ranks {list(seen.follow)} can go forward to it, as was planned"
    return "it lies handed over" if seen.image == seen.committed else ""


class HandedOverOnce(Checker):
    """Who holds a step does not write it where it lies already: whoever waits for that could read
    it.
    """

    of = (Planned,)

    def see(self, seen: Observation) -> Iterator[str]:
        if isinstance(seen, Planned) and seen.again:
            yield (
                f"generation {seen.generation} waits for an image of step {seen.image}, and one"
                " lies there"
            )


class Returning(Checker):
    """Nothing is decided while a node is about to be in again, with what its ranks had sealed."""

    of = (Planned,)

    def see(self, seen: Observation) -> Iterator[str]:
        if isinstance(seen, Planned) and seen.returning:
            yield (
                f"generation {seen.generation} is planned, and nodes {', '.join(seen.returning)}"
                " are about to be in again"
            )


class NewestStore(Checker):
    """Groups are built with the newest store: an older one may live where not all can reach it."""

    of = (OldStore,)

    def see(self, seen: Observation) -> Iterator[str]:
        if isinstance(seen, OldStore):
            yield (
                f"generation {seen.generation} is to be built with store {seen.number}, and store"
                f" {seen.newest} is up"
            )


class NoFalseAlarm(Checker):
    """Nothing is taken for a fault that none was struck for: a run that is struck once does not end
    in a crash loop.
    """

    of = (RunOver,)

    def see(self, seen: Observation) -> Iterator[str]:
        if isinstance(seen, RunOver) and seen.interruptions > seen.strikes:
            yield (
                f"{seen.interruptions} interruptions, and {seen.strikes} times something was struck"
            )


class OnlyTheGuilty(Checker):
    """An interruption names processes that were struck, and no others.

    Of a plain script, which fails with its peers, nobody can say which came first.
    """

    of = (RunOver,)

    def see(self, seen: Observation) -> Iterator[str]:
        if (
            isinstance(seen, RunOver)
            and not seen.plain
            and (innocent := set(seen.blamed) - set(seen.struck))
        ):
            yield f"processes {sorted(innocent)} are blamed, and {list(seen.struck)} were struck"


class RightName(Checker):
    """An interruption is called what it was."""

    of = (Named,)

    def see(self, seen: Observation) -> Iterator[str]:
        if (
            isinstance(seen, Named)
            and seen.kinds
            and seen.mechanism
            not in {name for kind in seen.kinds for name in MECHANISMS.get(kind, ())}
        ):
            yield (
                f"interruption {seen.id} is called {seen.mechanism}, and its processes were struck"
                f" by {', '.join(seen.kinds)}"
            )


class InTime(Checker):
    """An interruption lies within the run, whichever clocks it was told by."""

    of = (Named,)

    def see(self, seen: Observation) -> Iterator[str]:
        if isinstance(seen, Named) and any(
            not -seen.unsure_s <= at_s <= seen.over_s + seen.unsure_s for at_s in seen.times_s
        ):
            yield (
                f"interruption {seen.id} has times {[round(at_s, 3) for at_s in seen.times_s]}, and"
                f" the run took {seen.over_s:.3f} s"
            )


class Room(Checker):
    """No node houses more ranks than it has room for."""

    of = (RankGiven,)

    def see(self, seen: Observation) -> Iterator[str]:
        if isinstance(seen, RankGiven) and seen.beside >= seen.room:
            yield (
                f"rank {seen.plan.rank} is given to worker {seen.worker} beside {seen.beside}"
                f" others, where there is room for {seen.room}"
            )


class AllThere(Checker):
    """Training goes on once all ranks are in the generation, and not before: who is still on its
    way is watched.
    """

    of = (Regrouped,)

    def see(self, seen: Observation) -> Iterator[str]:
        if isinstance(seen, Regrouped) and len(seen.there) < seen.ranks:
            yield (
                f"generation {seen.generation} is said to stand, and only ranks {list(seen.there)}"
                " are in it"
            )


class Prompt(Checker):
    """A process that the kernel holds stopped is ended once its grace is over: its peers do not
    wait for ordinary deadlines.

    In a run that is asked to end no peer waits. Who is sent SIGTERM then has been promised a grace
    for it, stopped or not: it may go on and save what it has. So what counts is how long it was
    stopped before, and the longer grace from then on.
    """

    of = (WentOn,)

    def see(self, seen: Observation) -> Iterator[str]:
        if not isinstance(seen, WentOn):
            return
        if (
            seen.stopped_s - seen.asked_s > limits.STOPPED_FLOOR_S + NOTICED_S
            or seen.asked_s > limits.TERM_GRACE_S + NOTICED_S
        ):
            yield (
                f"worker {seen.worker} (rank {seen.rank}) was stopped for {seen.stopped_s:.3f} s,"
                " and nobody has ended it"
            )


class SecondsSum(Checker):
    """Each second of a rank is booked to one cause; an undisturbed run has repeated nothing, and
    detected nothing.
    """

    of = (Booked,)

    def see(self, seen: Observation) -> Iterator[str]:
        if not isinstance(seen, Booked):
            return
        for rank, seconds in enumerate(seen.by_rank):
            said_s = math.fsum(seconds.values())
            if abs(said_s - seen.wall_s) > 1e-6 * max(1.0, seen.wall_s):
                yield f"rank {rank} has {said_s:.6f} s booked in a run of {seen.wall_s:.6f} s"
            if min(seconds.values()) < 0:
                yield f"rank {rank} has less than no seconds booked: {dict(seconds)}"
            good_s, worked_s, slack_s = (
                seconds[Cause.PRODUCTIVE],
                seen.worked_s[rank],
                seen.unsure_s[rank] + 1e-6,
            )
            if not good_s - slack_s <= worked_s <= good_s + seconds[Cause.STALL] + slack_s:
                yield (
                    f"rank {rank} was at new steps for {worked_s:.6f} s, and has {good_s:.6f}"
                    f" productive and {seconds[Cause.STALL]:.6f} stalled booked"
                )
            if not seen.interrupted and (
                seconds[Cause.REPEATED] or seconds[Cause.DETECTION] or seconds[Cause.DEGRADED]
            ):
                yield (
                    f"rank {rank} has lost seconds booked, and the run was not interrupted:"
                    f" {dict(seconds)}"
                )


ALL: tuple[type[Checker], ...] = (
    OnePlan,
    Patient,
    OneOwner,
    Fenced,
    OnePoint,
    SealedOnly,
    SealedUsed,
    Stocked,
    GoodOnly,
    OnePast,
    LastGoodStays,
    FewStay,
    SavedOnceAll,
    FreshStore,
    AllEnrol,
    SavesHurtNobody,
    NothingDurableLost,
    NothingLost,
    HandedOverOnce,
    Returning,
    NewestStore,
    NoFalseAlarm,
    OnlyTheGuilty,
    RightName,
    InTime,
    Room,
    AllThere,
    Prompt,
    SecondsSum,
    CountedOut,
    *RUN_END,
    *STOP_REQUESTS,
    *RECOVERY_ANSWERS,
    *INTERRUPTION_RECORDS,
    *HANG_VERDICTS,
    *AGENT_REPORTS,
    *POLICY_LIMITS,
)


class Checkers:
    """All checkers; each violation once.

    `result`: bad where there is one, unknown where the run was not watched to its end, else ok.
    """

    def __init__(self) -> None:
        self.violations: list[Violation] = []
        self._checkers: dict[type[Observation], list[Checker]] = {}
        for checker in [make() for make in ALL]:
            for sort in checker.of:
                self._checkers.setdefault(sort, []).append(checker)
        self._over = False

    def see(self, at_s: float, seen: Observation) -> None:
        self._over = self._over or isinstance(seen, (RunOver, NothingMoves))
        for checker in self._checkers.get(type(seen), ()):
            checker.now_s = at_s
            for what in checker.see(seen):
                self.violations.append(Violation(type(checker).__name__, at_s, what))

    @property
    def result(self) -> str:
        return "bad" if self.violations else "ok" if self._over else "unknown"
