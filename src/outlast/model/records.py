"""The records of the ledger. They are frozen, and each table has one type.

Units      `_s` are CLOCK_MONOTONIC seconds of the launcher's node; `_wall_s` are seconds since 1970
           (UTC).
Clocks     CLOCK_MONOTONIC starts again at a reboot, so each session of the launcher has its own
           readings. `began_s` of a session is the time on its clock at which the first launcher
           of the run started.
Identity   A later record replaces an earlier one with the same key. The key of a Generation is its
           number, that of a Life is (worker, rank), and that of an Interruption is its id.
           StepsBucket and Event records are only added.

This module is pure: no clock, no files, no torch.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from outlast.model.terms import Cause, FailureClass, Mechanism, Rung, Tier

Facts = Mapping[str, object]  # a JSON object
# The kind of event with which a session of --resume begins. It has step, from, steps_lost and own.
# `own` is True if the script makes no outlast call, so that its own checkpoint decides.
RESUMED = "resumed"

# The kind of event with the first step of a session of a script without outlast calls. `step` is
# the step of its own checkpoint, from which it goes on; None if that is not known.
WENT_ON = "went_on"

# The kinds of events with which a run begins and stops to wait for a node. `places` is the number
# of ranks that no node has room for.
NODE_AWAITED, NODE_FOUND = "node_awaited", "node_found"

# The kind of event with which ranks begin to move off a node that is given up on purpose: node,
# ranks, and the id of the `interruption` that this is.
DRAINING = "node_draining"

LEADS = "node_leads"  # the kind of event with which a node begins to lead: node, epoch, voters

# The reason with which a session ends on a node that has handed the run over, or that may no longer
# lead it.
LED_ELSEWHERE = "another node leads the run on"

# These take the place of a number of steps, for scripts without outlast calls.
UNKNOWN_COUNT = -1  # steps are seen, but not the step of the script's own checkpoint
UNSEEN_COUNT = -2  # no step is seen, so the time at which training went on is not known either


@dataclass(frozen=True, slots=True)
class Meta:
    """The run.

    world_size  the number of ranks that its first session asked for
    version     the version of outlast
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

    seen_s      the time of its last record in the ledger
    state       how it ended, or ""
    world_size  the number of ranks that it asked for; 0 if the ledger does not say it. Then it is
                that of Meta
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
        """Return when it ended. For a killed launcher, that is the time of its last record."""
        return max(self.started_s, self.seen_s if self.ended_s is None else self.ended_s)


@dataclass(frozen=True, slots=True)
class Generation:
    """One membership. `members[rank]` is the worker that holds the rank; -1 if it is given up."""

    generation: int
    world_size: int
    began_s: float
    members: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Life:
    """One process that holds a rank, or is parked as a spare.

    A spare has rank -1, and kind "hot" or "warm". Otherwise the kind is "rank".

    opened_s   when the worker's Book for this rank began; None if nothing was published yet
    seconds    settled seconds by cause since `opened_s`. Those of the step in flight are NOT in it
    cause      the cause of the time since `opened_s + sum(seconds)`
    ended_s    when the process ended or gave the rank up; None while it lives
    stalls     seconds of stall for saves to each tier, as the worker measured them
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
    """One failure, from the fault to the first new commit. Facts that are not known yet are None.

    fault_s             the time of the fault by the kernel or the drill. For a hang, the time at
                        which the beacon last changed. None if it is not known
    fault_not_before_s  the last commit. An unknown fault came between this and detected_s
    left_s              when all survivors stood still, and their inventories had arrived
    restored_s          when state was in place on all ranks of the next generation
    regrouped_s         restored_s less the time for handing state over and loading it
    tier                the most expensive tier from which state was taken; None if none was
    resumed_s           the first new commit, of a step after the one that the run went on from. All
                        ranks voted for it, the replaced ones included. A child (`parent` is set)
                        resumes together with its parent. If the steps of a script are not seen, it
                        is the time at which all of its processes ran again
    steps_repeated      number of steps that were done again, or UNKNOWN_COUNT, UNSEEN_COUNT
    steps_lost          number of committed steps that were lost, or UNKNOWN_COUNT, UNSEEN_COUNT
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
        """Return the time from the fault to the first new commit, or None if one is not known."""
        return (
            None
            if self.fault_s is None or self.resumed_s is None or not self.steps_seen
            else max(0.0, self.resumed_s - self.fault_s)
        )

    @property
    def steps_seen(self) -> bool:
        """Return whether the script's steps were seen. If not, its end and cost are not known."""
        return self.steps_lost != UNSEEN_COUNT

    def public(self, *, began_s: float) -> dict[str, object]:
        """Return the facts that `status`, `report` and the live view show.

        Times count from `began_s`.
        """

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

    It also has the lengths of a step from start to commit, and the newest value of each name that
    the script logged. A merged bucket has the means of these values.
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
    """Any other event of the run.

    The report shows events of the `kind` "warning", whose data is {"text": ...}.
    """

    at_s: float
    wall_s: float
    kind: str
    data: Facts = field(default_factory=dict)


Record = Generation | Life | Interruption | StepsBucket | Event


@dataclass(frozen=True, slots=True)
class SessionRecords:
    """The records that one session of the launcher wrote.

    `began_s` is the beginning of the run on the monotonic clock of this session.
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
        """Return the facts from which a session of --resume began (see RESUMED).

        The result is empty for other sessions.
        """
        return next((one.data for one in self.events if one.kind == RESUMED), {})

    @property
    def lost_before(self) -> int | None:
        """Return how many committed steps of earlier sessions were lost when this one began.

        A script without outlast calls goes on from its own checkpoint, and its first step shows
        which step that was. Return None if it does not show that, or has not come yet.
        """
        begun, lost = self.resumed.get("step", 0), self.resumed.get("steps_lost", 0)
        if not isinstance(begun, int) or not isinstance(lost, int) or not lost:
            return 0
        told = next((one.data for one in self.events if one.kind == WENT_ON), None)
        if told is None:
            return None if self.resumed.get("own") else lost
        behind = told.get("step")
        return max(0, begun + lost - behind) if isinstance(behind, int) else None


# The productive seconds are known only if each of these tables could be read whole.
_ACCOUNTED = frozenset(("sessions", "lives", "interruptions", "steps", "events"))


class Numbered(NamedTuple):
    """An interruption under an id that is unique in the run.

    began_s   the beginning of the run on the clock of its session
    session   the index of that session
    own_id    its id within that session
    """

    interruption: Interruption
    began_s: float
    session: int
    own_id: int


@dataclass(frozen=True)
class Records:
    """The whole ledger of one run, as it was read.

    `status`, `report` and `calibrate` all use this form. There is at least one session, and they
    are in order: each start of the launcher adds one, also with --resume. Times are those of each
    session's own monotonic clock (`began_on_each_clock`). The records are those that were written
    when the ledger was read. The run may still go on, or its launcher may have been killed.

    snapshot  the newest data that the launcher published for a live view
    missing   for each table of a damaged ledger that could not be read whole, what it lacks
    """

    meta: Meta
    sessions: tuple[SessionRecords, ...]
    snapshot: Facts | None = None
    missing: Mapping[str, str] = field(default_factory=dict)

    @functools.cached_property
    def sizes(self) -> tuple[int, ...]:
        """Return the number of ranks that each session asked for, in the order of the sessions."""
        first = self.meta.world_size
        return tuple(part.session.world_size or first for part in self.sessions)

    @property
    def world_size(self) -> int:
        """Return the number of ranks that the newest session asked for."""
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
        """Return whether the script's steps are seen, as transactions or as optimizer calls.

        For a script without outlast calls, that is not known before its first step.
        """
        return self.calls_outlast or self.newest_step > 0

    @property
    def is_measured(self) -> bool:
        """Return whether the productive seconds are known: all steps that were kept were seen."""
        some = self.unique_interruptions()
        return (
            self.steps_seen
            and not self.missing.keys() & _ACCOUNTED
            and all(one.steps_lost >= 0 for one, _ in some)
            and self.lost_between_sessions is not None
        )

    @property
    def lost_between_sessions(self) -> int | None:
        """Return how many steps were lost between sessions; None if some number is not known."""
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

        If a later session used the same ids again, they are raised. An interruption that came
        before the first outlast call of the script has lost no step.
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

    @property
    def damage(self) -> str:
        """Return what a damaged ledger lacks, in one sentence; "" if it is whole."""
        if not self.missing:
            return ""
        return f"The ledger is damaged. It lacks some of these: {'; '.join(self.missing.values())}."

    def unique_interruptions(self) -> list[tuple[Interruption, float]]:
        """Return all interruptions, each with its session's `began_s` (see `numbered`)."""
        return [(one.interruption, one.began_s) for one in self.numbered]

    def interruptions(self) -> list[dict[str, object]]:
        """Return the facts of all interruptions that are shown: see `Interruption.public`."""
        return [one.public(began_s=began_s) for one, began_s in self.unique_interruptions()]


def began_on_each_clock(sessions: tuple[Session, ...] | list[Session]) -> list[float]:
    """Return when the run began, by the monotonic clock of each session.

    The gap between two sessions is measured by wall clocks. If those went backwards, the gap counts
    as 0.
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
