"""The records of the ledger: frozen, and one type per table.

Units      `_s` are CLOCK_MONOTONIC seconds of the launcher's node; `_wall_s` are seconds since 1970
           (UTC).
Clocks     CLOCK_MONOTONIC means nothing across a reboot, so each launcher session has its own
           readings. `began_s` of a session is where the run's second zero, the start of the first
           launcher, is on its clock.
Identity   A record is replaced by a later one with the same key: Generation by generation, Life by
           (worker, rank), Interruption by id. StepsBucket and Event are only ever added.

This module is pure: no clock, no files, no torch.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from outlast.model.terms import Cause, FailureClass, Mechanism, Rung, Tier

Facts = Mapping[str, object]  # a JSON object
# Kind of the event with which a session of --resume begins: step, from, steps_lost, own. `own`: the
# script makes no outlast call, so that its own checkpoint decides.
RESUMED = "resumed"

# Kind of the event with the first step of a session of a script without outlast calls. step: the
# one that it goes on after, by its own checkpoint; None: that is not known.
WENT_ON = "went_on"

LEADS = "node_leads"  # kind of the event with which a node begins to lead: node, epoch, voters

# In place of a count of steps, for scripts without outlast calls:
UNKNOWN_COUNT = -1  # steps are seen, but not from which one the script's own checkpoint goes on
UNSEEN_COUNT = -2  # no step is seen, so it is not known either when training went on


@dataclass(frozen=True, slots=True)
class Meta:
    """The run. `world_size` is the ranks that its first session asked for; `version` is the
    package's.
    """

    run: str
    name: str
    world_size: int
    version: str
    started_s: float
    started_wall_s: float


@dataclass(frozen=True, slots=True)
class Session:
    """One launcher, from its start to its end.

    seen_s      its last sign of life in the ledger
    state       how it ended, or ""
    world_size  the ranks that it asked for; 0 in a ledger that does not say: those of Meta
    """

    session: int
    pid: int
    started_s: float
    started_wall_s: float
    seen_s: float
    ended_s: float | None = None
    state: str = ""
    exit_code: int | None = None
    reason: str = ""
    world_size: int = 0

    @property
    def over_s(self) -> float:
        """Return when it ended, as near as known: a killed launcher ended after its last sign of
        life.
        """
        return max(self.started_s, self.seen_s if self.ended_s is None else self.ended_s)


@dataclass(frozen=True, slots=True)
class Generation:
    """One membership. `members[rank]` is the worker that holds it; -1: the rank is given up."""

    generation: int
    world_size: int
    began_s: float
    members: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Life:
    """One process that holds a rank, or is parked as a spare.

    A spare has rank -1, and kind "hot" or "warm". Otherwise the kind is "rank".

    opened_s   when the worker's Book for this rank began; None while nothing was published
    seconds    settled seconds by cause since `opened_s`: those of the step in flight are NOT in it
    cause      what runs since `opened_s + sum(seconds)`: the step in flight, or what came last
    ended_s    when the process ended or gave the rank up; None while it lives
    stalls     how much of the stall was for a save in each tier, as the worker measured it
    """

    worker: int
    pid: int
    node: str
    rank: int
    kind: str
    assigned_s: float
    opened_s: float | None = None
    ended_s: float | None = None
    seconds: Mapping[Cause, float] = field(default_factory=dict)
    cause: Cause = Cause.STARTUP
    end: str = ""
    stalls: Mapping[Tier, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Interruption:
    """One failure, from fault to the first new commit. Facts that are not known yet are None.

    fault_s             the kernel's or the injector's time; for a hang the last beacon that moved;
                        None if unknown
    fault_not_before_s  last commit: where the fault is unknown, it is between this and detected_s
    left_s              all survivors stand still, their inventories are in
    restored_s          state is in place on all ranks of the next generation
    regrouped_s         so long before that as it took to hand state over and to load it
    tier                the costliest tier that state was taken from; None: nothing was restored
    resumed_s           first new commit: of a step after the one that was gone on from, for which
                        all ranks voted, the replaced ones included. A child (parent set) resumes
                        together with its parent. Of a script whose steps are not seen: when all
                        its processes ran again
    steps_repeated, steps_lost  or UNKNOWN_COUNT, UNSEEN_COUNT
    """

    id: int
    mechanism: Mechanism
    detected_s: float
    failure_class: FailureClass = FailureClass.UNKNOWN
    parent: int | None = None
    ranks: tuple[int, ...] = ()
    pids: tuple[int, ...] = ()
    nodes: tuple[str, ...] = ()
    rung: Rung | None = None
    generation: int = 0
    step: int = 0
    fault_s: float | None = None
    fault_not_before_s: float | None = None
    left_s: float | None = None
    regrouped_s: float | None = None
    restored_s: float | None = None
    resumed_s: float | None = None
    steps_repeated: int = 0
    steps_lost: int = 0
    reason: str = ""
    error: str = ""
    traceback: str = ""
    tier: Tier | None = None

    @property
    def mttr_s(self) -> float | None:
        """Return the time from the fault to the first new commit, where both are known."""
        return (
            None
            if self.fault_s is None or self.resumed_s is None or not self.steps_seen
            else max(0.0, self.resumed_s - self.fault_s)
        )

    @property
    def steps_seen(self) -> bool:
        """Return whether the steps around it were seen; if not, its end and cost are unknown."""
        return self.steps_lost != UNSEEN_COUNT

    def public(self, *, began_s: float) -> dict[str, object]:
        """Return what `status`, `report` and the live view show. Times count from `began_s`."""

        def since(at_s: float | None) -> float | None:
            return None if at_s is None else round(at_s - began_s, 6)

        return {
            "id": self.id,
            "parent": self.parent,
            "class": FailureClass(self.failure_class).value,
            "mechanism": Mechanism(self.mechanism).value,
            "ranks": list(self.ranks),
            "pids": list(self.pids),
            "nodes": list(self.nodes),
            "rung": None if self.rung is None else Rung(self.rung).value,
            "tier": None if self.tier is None else Tier(self.tier).value,
            "generation": self.generation,
            "step": self.step,
            "fault_s": since(self.fault_s),
            "fault_not_before_s": since(self.fault_not_before_s),
            "detected_s": since(self.detected_s),
            "left_s": since(self.left_s),
            "regrouped_s": since(self.regrouped_s),
            "restored_s": since(self.restored_s),
            "resumed_s": since(self.resumed_s),
            "mttr_s": None if self.mttr_s is None else round(self.mttr_s, 6),
            "steps_seen": self.steps_seen,
            "steps_repeated": None if self.steps_repeated < 0 else self.steps_repeated,
            "steps_lost": None if self.steps_lost < 0 else self.steps_lost,
            "reason": self.reason,
            "error": self.error,
            "traceback": self.traceback,
        }


@dataclass(frozen=True, slots=True)
class StepsBucket:
    """The steps committed in (from_s, to_s]: those with from_step < step <= to_step.

    It also says how long one step took, from start to commit, and what the script logged: the
    newest value of each name. A merged bucket has their mean.
    """

    from_s: float
    to_s: float
    from_step: int
    to_step: int
    min_s: float
    median_s: float
    max_s: float
    logged: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Event:
    """Anything else worth keeping.

    The report shows events of `kind` "warning", whose data is {"text": ...}.
    """

    at_s: float
    wall_s: float
    kind: str
    data: Facts = field(default_factory=dict)


Record = Generation | Life | Interruption | StepsBucket | Event


@dataclass(frozen=True, slots=True)
class SessionRecords:
    """The records that one session of the launcher wrote.

    `began_s` is where the run's second zero is on this session's monotonic clock.
    """

    session: Session
    began_s: float
    generations: tuple[Generation, ...] = ()
    lives: tuple[Life, ...] = ()
    interruptions: tuple[Interruption, ...] = ()
    steps: tuple[StepsBucket, ...] = ()
    events: tuple[Event, ...] = ()

    @property
    def resumed(self) -> Facts:
        """Return what a session of --resume began from (see RESUMED); it is empty for others."""
        return next((one.data for one in self.events if one.kind == RESUMED), {})

    @property
    def lost_before(self) -> int | None:
        """Return how many steps of earlier sessions were committed, and were not there any more.

        A script without outlast calls goes on from its own checkpoint, which its first step tells:
        None if it does not, or has not come yet.
        """
        begun, lost = self.resumed.get("step", 0), self.resumed.get("steps_lost", 0)
        if not isinstance(begun, int) or not isinstance(lost, int) or not lost:
            return 0
        told = next((one.data for one in self.events if one.kind == WENT_ON), None)
        if told is None:
            return None if self.resumed.get("own") else lost
        behind = told.get("step")
        return max(0, begun + lost - behind) if isinstance(behind, int) else None


class Numbered(NamedTuple):
    """An interruption under an id that is unique in the run.

    began_s   where the run's second zero is on the clock of its session
    session   index of that session;  own_id: the id that it has there
    """

    interruption: Interruption
    began_s: float
    session: int
    own_id: int


@dataclass(frozen=True)
class Records:
    """The whole ledger of one run, as it was read.

    `status`, `report` and `calibrate` all read a run in this form. The sessions are in order, and
    there is at least one: each start of the launcher adds one, also with --resume. Times are those
    of each session's own monotonic clock (`began_on_each_clock`). It holds what was written by the
    time of reading, also for a live run or one whose launcher was killed.

    snapshot  what the launcher published last, for a live view
    missing   of a damaged ledger, what could not be read, a sentence each
    """

    meta: Meta
    sessions: tuple[SessionRecords, ...]
    snapshot: Facts | None = None
    missing: tuple[str, ...] = ()

    @functools.cached_property
    def sizes(self) -> tuple[int, ...]:
        """Return how many ranks each session asked for, in the order of the sessions."""
        first = self.meta.world_size
        return tuple(part.session.world_size or first for part in self.sessions)

    @property
    def world_size(self) -> int:
        """Return how many ranks the newest session asked for."""
        return self.sizes[-1] if self.sizes else self.meta.world_size

    @property
    def newest_step(self) -> int:
        """Return the newest committed step of the newest session that committed any."""
        return next((part.steps[-1].to_step for part in reversed(self.sessions) if part.steps), 0)

    @property
    def highest_step(self) -> int:
        """Return the highest step that any session committed."""
        return max((one.to_step for part in self.sessions for one in part.steps), default=0)

    @property
    def calls_outlast(self) -> bool:
        """Return whether the script has called outlast.join."""
        return any(one.kind == "script" for part in self.sessions for one in part.events)

    @property
    def steps_seen(self) -> bool:
        """Return whether the script's steps are seen: transactions, or calls of torch's optimizers.

        Until the first step of a script without outlast calls, that is not known.
        """
        return self.calls_outlast or self.newest_step > 0

    @property
    def is_measured(self) -> bool:
        """Return whether the productive seconds are known: all steps that stayed were seen."""
        some = self.unique_interruptions()
        return (
            self.steps_seen
            and all(one.steps_lost >= 0 for one, _ in some)
            and self.lost_between_sessions is not None
        )

    @property
    def lost_between_sessions(self) -> int | None:
        """Return how many steps were lost between sessions; None: of some that is not known."""
        lost = [part.lost_before for part in self.sessions]
        known = [steps for steps in lost if steps is not None]
        return sum(known) if len(known) == len(lost) else None

    @property
    def newest_generation(self) -> int:
        """Return the newest generation of all sessions, 0 before the first one."""
        numbers = (one.generation for part in self.sessions for one in part.generations)
        return max(numbers, default=0)

    @functools.cached_property
    def numbered(self) -> tuple[Numbered, ...]:
        """Return all interruptions under ids that are unique in the run.

        Ids that a later session gave again are moved up.

        One that came before the first outlast call of the script could lose no step.
        """
        out: list[Numbered] = []
        highest = -1
        calls_outlast = self.calls_outlast
        for index, part in enumerate(self.sessions):
            first = min((one.id for one in part.interruptions), default=0)
            shift = 0 if first > highest else highest + 1 - first
            for one in part.interruptions:
                own_id = one.id
                if calls_outlast and not one.steps_seen:
                    one = replace(one, steps_repeated=0, steps_lost=0)
                if shift:
                    parent = None if one.parent is None else one.parent + shift
                    one = replace(one, id=one.id + shift, parent=parent)
                out.append(Numbered(one, part.began_s, index, own_id))
                highest = max(highest, one.id)
        return tuple(out)

    def unique_interruptions(self) -> list[tuple[Interruption, float]]:
        """Return all interruptions, each with its session's `began_s` (see `numbered`)."""
        return [(one.interruption, one.began_s) for one in self.numbered]

    def interruptions(self) -> list[dict[str, object]]:
        """Return the public shape of all interruptions."""
        return [one.public(began_s=began_s) for one, began_s in self.unique_interruptions()]


def began_on_each_clock(sessions: tuple[Session, ...] | list[Session]) -> list[float]:
    """Return, by each session's own monotonic clock, when the run began.

    The gap between two sessions is measured by wall clocks; where those went backwards it counts as
    0.
    """
    out: list[float] = []
    over_run_s = 0.0
    for session in sessions:
        starts_run_s = (
            max(over_run_s, session.started_wall_s - sessions[0].started_wall_s) if out else 0.0
        )
        out.append(session.started_s - starts_run_s)
        over_run_s = starts_run_s + session.over_s - session.started_s
    return out
