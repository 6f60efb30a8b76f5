"""`WorkerWatch`: where each worker of a node is, since when, and how long it may stay there.

The driver reads each worker's beacon at each tick. A beacon counts its changes in `beats`. While
that number stays the same, the worker makes no progress.

Units: seconds, on the agent's monotonic clock. This module is pure.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from outlast.engine.hang import STEP_PHASES, Deadlines, MemberReport
from outlast.model import limits
from outlast.model.beacon import Beacon
from outlast.model.messages import Pong, Progress
from outlast.model.terms import Phase

ROUNDING_S = 1e-6  # rounding errors of sums of monotonic times are smaller than this


@dataclass(frozen=True, slots=True)
class Reading:
    """The readings of one worker at one tick.

    beacon      the worker's beacon. The same object as before means that nothing has changed
    stopped     the kernel holds the process stopped (SIGSTOP)
    starved_s   for how many seconds since the beacon moved some thread was ready to run and had no
                processor. It is read only while `Agent.looks_closely` is True
    """

    beacon: Beacon
    stopped: bool
    starved_s: float = 0.0


@dataclass(slots=True)
class Standstill:
    """The time for which one worker's beacon has not changed."""

    beats: int = -1
    phase: Phase = Phase.BOOT
    moved_s: float = 0.0
    starved_s: float = 0.0  # of the time since then, as in Reading

    @property
    def since_s(self) -> float:
        """Return since when the worker stands still. Time without a processor is left out."""
        return self.moved_s + self.starved_s


@dataclass(slots=True)
class DueTime:
    """This says when a worker is overdue: a cached value, valid for one version of the deadlines.

    version   of the deadlines by which `at_s` was computed; -1: compute it again
    """

    at_s: float = math.inf
    version: int = -1

    def forget(self) -> None:
        """Forget the cached deadline, so that it is computed again at the next question."""
        self.version = -1


@dataclass(slots=True)
class Watched:
    """Remember one worker from tick to tick. A spare has rank -1."""

    worker: int
    rank: int
    still: Standstill = field(default_factory=Standstill)
    due: DueTime = field(default_factory=DueTime)
    first_step: int = -1
    # When it printed something last, or was started. Infinity: it is not started yet.
    heard_s: float = math.inf
    reported: bool = False
    reading: Reading | None = None

    @property
    def is_member(self) -> bool:
        """Return True if the worker holds a rank."""
        return self.rank >= 0

    @property
    def steps_done(self) -> int:
        """Return how many steps this process has committed."""
        if self.reading is None or self.first_step < 0:
            return 0
        return self.reading.beacon.step - self.first_step

    def moves_later(self, late_s: float) -> None:
        """Leave `late_s` out of the time that the worker has stood still."""
        self.still.moved_s += late_s
        self.due.forget()


class Seen(NamedTuple):
    """The result of a tick: whether anything is new, and whether some beacon has moved."""

    news: bool
    moved: bool


class WorkerWatch:
    """Watch the workers of one node, and learn from them how long each phase may last."""

    def __init__(self) -> None:
        self.deadlines = Deadlines()
        self.workers: dict[int, Watched] = {}
        self.plain = True  # no worker has called outlast.join
        self._news = False  # since the last tick a worker has ended, or was given another rank
        self._read_count = 0  # how many workers were read at the last tick
        self._reached = (0, 0)  # the steps of the fastest and slowest member that were reported

    # --- workers come and go ----------------------------------------------------------------------

    def add(self, worker: int, rank: int, *, now_s: float) -> None:
        """Watch a worker that is about to be started."""
        self.workers[worker] = Watched(worker, rank, still=Standstill(moved_s=now_s))

    def started(self, worker: int, *, now_s: float) -> None:
        """Note that a worker was started: from now on its silence counts."""
        if worker in self.workers:
            self.workers[worker].heard_s = now_s

    def remove(self, worker: int) -> Watched | None:
        """Forget a worker that has ended. Return what was remembered of it."""
        self._news = True
        return self.workers.pop(worker, None)

    def give_rank(self, worker: int, rank: int) -> bool:
        """Note that a plan gives `rank` to a worker. Return whether the worker is watched."""
        watched = self.workers.get(worker)
        if watched is None:
            return False
        watched.rank, self._news = rank, True
        return True

    def members(self) -> list[Watched]:
        """Return the workers that hold a rank."""
        return [one for one in self.workers.values() if one.is_member]

    def report_again(self) -> None:
        """Report a hang again: the coordinator may not have had the worker killed."""
        for one in self.workers.values():
            one.reported = False

    # --- a tick -----------------------------------------------------------------------------------

    def was_late(self, late_s: float, readings: Mapping[int, Reading]) -> None:
        """Note that a tick came late. The agent had no processor, so no worker is blamed."""
        for worker, one in self.workers.items():
            one.heard_s += late_s
            if worker in readings:
                one.moves_later(late_s)

    def hear(self, heard_s: Mapping[int, float]) -> None:
        """Note when workers have printed something last."""
        for worker, said_s in heard_s.items():
            if (speaks := self.workers.get(worker)) is not None:
                speaks.heard_s = max(speaks.heard_s, said_s)

    def read(self, readings: Mapping[int, Reading], *, now_s: float) -> Seen:
        """Compare the beacons with those of the last tick, and learn deadlines from them."""
        news, self._news = self._news or len(readings) != self._read_count, False
        self._read_count = len(readings)
        moved = False
        for worker, reading in readings.items():
            watched = self.workers.get(worker)
            if watched is not None and watched.reading is not reading:
                news = True
                moved = self._look(watched, reading, now_s) or moved
        if news:
            self.deadlines.learn(
                [reading.beacon for reading in readings.values() if reading.beacon.rank >= 0]
            )
        return Seen(news, moved)

    def _look(self, watched: Watched, reading: Reading, now_s: float) -> bool:
        """Note one beacon. Return True if it has moved."""
        beacon, still = reading.beacon, watched.still
        moved = beacon.beats != still.beats
        if moved:
            # A beacon that was never published has no time, so use the time before.
            moved_s = max(still.moved_s, min(now_s, beacon.at_ns / 1e9))
            first_steps = watched.steps_done < limits.FIRST_STEPS_COUNT
            if still.phase in STEP_PHASES and first_steps:
                self.deadlines.learn_first(moved_s - still.moved_s)
            watched.still = Standstill(beacon.beats, beacon.phase, moved_s)
            watched.due.forget()
            # the beacon of a script without outlast calls shows only its start and its end
            self.plain = self.plain and beacon.phase in (Phase.BOOT, Phase.EXIT)
            if watched.first_step < 0 and beacon.phase is Phase.BODY:
                watched.first_step = beacon.step
        starved_s = min(reading.starved_s, limits.STARVED_MAX_S)
        if starved_s > watched.still.starved_s:
            watched.still.starved_s = starved_s
            watched.due.forget()
        watched.reading = reading
        return moved

    def take_progress(self, *, now_s: float) -> Progress | None:
        """Return how far the members have come, or None if that was reported before."""
        beacons = [one.reading.beacon for one in self.members() if one.reading is not None]
        if not beacons:
            return None
        newest = max(beacon.step for beacon in beacons)
        oldest = min(beacon.step for beacon in beacons)
        if (newest, oldest) == self._reached:
            return None
        self._reached = (newest, oldest)
        # They have moved, so they did not hang. Their step times are learned by now.
        self.deadlines.forgive()
        step_s = sum(self.deadlines.typical_s.get(phase, 0.0) for phase in STEP_PHASES)
        return Progress(newest, oldest, step_s, now_s)

    # --- deadlines --------------------------------------------------------------------------------

    def due_s(self, watched: Watched) -> float:
        """Return when the deadline of a worker is over, or infinity if it has none."""
        due, version = watched.due, self.deadlines.version
        if due.version != version:
            deadline = self.deadline_of(watched)
            due.at_s = math.inf if deadline is None else watched.still.since_s + deadline
            due.version = version
        return due.at_s

    def deadline_of(self, watched: Watched) -> float | None:
        """Return how long a worker may stay at its present place, or None if there is no limit."""
        return self.deadlines.of(phase=watched.still.phase, steps_done=watched.steps_done)

    def is_late(self, watched: Watched, *, now_s: float) -> bool:
        """Return True if a worker is stopped, or overdue by itself, and needs a closer look."""
        reading = watched.reading
        if reading is None or watched.reported:
            return False
        if reading.stopped:
            return True
        no_deadline = self.plain or not watched.is_member
        # Most workers are not late: the time that was worked out before answers for them.
        if no_deadline or now_s <= self.due_s(watched) - ROUNDING_S:
            return False
        deadline = self.deadline_of(watched)
        return deadline is not None and now_s - watched.still.since_s > deadline

    def overdue(self, members: list[MemberReport]) -> dict[int, float]:
        """Return the deadline of each of `members` that is past it."""
        # A script that never calls outlast.join stays in the boot phase as long as it likes.
        if self.plain:
            return {}
        deadlines = {one.worker: self.deadline_of(self.workers[one.worker]) for one in members}
        return {
            one.worker: deadline
            for one in members
            if (deadline := deadlines[one.worker]) is not None and one.age_s > deadline
        }

    def member_report(self, watched: Watched, pong: Pong | None, *, now_s: float) -> MemberReport:
        """Return how far a worker is, and since when.

        `pong` is its answer, if it was asked and has answered.
        """
        assert watched.reading is not None
        return MemberReport(
            worker=watched.worker,
            rank=watched.rank,
            phase=watched.still.phase,
            step=watched.reading.beacon.step,
            age_s=now_s - watched.still.since_s,
            stopped=watched.reading.stopped,
            collectives=None if pong is None else pong.collectives,
            where="" if pong is None else pong.where,
            cut_off=() if pong is None else pong.cut_off,
            cut_off_bytes=() if pong is None else pong.cut_off_bytes,
        )
