"""The agent: carries messages between coordinator and workers, and watches the workers' beacons.

Death is the kernel's word and passes straight through. A hang is the agent's own finding: a member
past its deadline raises the question, all members are pinged, and PING_DEADLINE_S later the answers
name the culprit. Its own late tick moves every age by its lateness (trap 19), so a starved agent
sees no hangs.

A script without an outlast call has no beacon that moves. Where a bound on silence was given, its
workers are hung once none of them has printed anything for that long: which of them it is cannot be
told, and all come anew anyway.

Sans-IO: `on_tick` gets what was read from the beacons; outputs are carried out by the driver.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from outlast.engine.hang import (
    STEP_PHASES,
    Deadlines,
    HangVerdict,
    Standing,
    find_culprits,
    find_longest,
    find_stopped,
)
from outlast.engine.protocol.outputs import (
    Deliver,
    HostStore,
    Kill,
    Output,
    Spawn,
    Terminate,
    ToCoordinator,
)
from outlast.model import limits
from outlast.model.beacon import Beacon
from outlast.model.messages import (
    AskStandings,
    ForAgent,
    ForWorker,
    FromAgent,
    FromWorker,
    Judged,
    KillWorker,
    Ping,
    Pong,
    Progress,
    Regroup,
    Standings,
    StartStore,
    StartWorker,
    Stood,
    StoreLost,
    StoreUp,
    TermWorker,
    ToWorkers,
    WorkerExited,
    WorkerFailedToStart,
    WorkerHung,
    WorkerStarted,
)
from outlast.model.terms import Phase

ROUNDING_S = 1e-6  # sums of seconds since a machine's start differ by less from what they should be


@dataclass(frozen=True, slots=True)
class Reading:
    """One worker at one tick.

    `stopped`: the kernel holds the process stopped. `starved_s`: of the time since its beacon
    moved, for so long some thread of it was ready to run and had no processor, as far as the driver
    has looked (see `Agent.looks_closely`).
    """

    beacon: Beacon
    stopped: bool
    starved_s: float = 0.0


@dataclass(slots=True)
class Watched:
    """What is remembered of one worker between ticks. Times on the agent's clock."""

    worker: int
    rank: int
    beats: int = -1
    phase: Phase = Phase.BOOT
    moved_s: float = 0.0
    starved_s: float = 0.0  # since then
    first_step: int = -1
    # its last output, or its start; not started yet: nobody waits to hear from it
    heard_s: float = math.inf
    reported: bool = False
    reading: Reading | None = None
    # it is overdue after that; as of `reckoned`, the version of the deadlines
    due_s: float = math.inf
    reckoned: int = -1

    @property
    def since_s(self) -> float:
        """It has stood still since, the time left out for which it had no processor."""
        return self.moved_s + self.starved_s


@dataclass(slots=True)
class Question:
    """Pings are out."""

    nonce: int
    asked_s: float
    overdue: dict[int, float]
    asked_by: int = 0  # the coordinator's nonce; 0: this agent asks by itself
    answers: dict[int, Pong] = field(default_factory=dict)
    starved: dict[int, float] = field(default_factory=dict)  # when it was asked
    # somebody seems to hold the others up, and may just have been late to move on with them
    again: bool = False


def each_its_own(order: ToWorkers) -> list[tuple[int, ForWorker]]:
    """What each worker is told: a plan that several share, with its own rank in it."""
    message = order.message
    if not isinstance(message, Regroup):
        return [(worker, message) for worker in order.workers]
    return [
        (worker, message.held_by(rank))
        for worker, rank in zip(order.workers, order.ranks, strict=True)
    ]


class Agent:
    """One per node.

    Drive it with `on_message` (from coordinator or worker), `on_event` (from the process host),
    `on_tick`.
    """

    def __init__(
        self, *, now_s: float, hang_after_s: float | None = None, alone: bool = True
    ) -> None:
        """`hang_after_s`: of silence, for a plain script.

        `alone`: this is the only node; else the coordinator judges who hangs.
        """
        self.deadlines = Deadlines()
        self._hang_after_s = hang_after_s
        self._alone = alone
        self._plain = True  # no worker has called outlast.join
        self._watched: dict[int, Watched] = {}
        self._ticked_s = now_s
        self._question: Question | None = None
        self._nonce = 0
        self._patient_until_s = 0.0  # nothing is asked before this, unless a beacon moves
        self._moved = (0, 0)
        self._store = 0  # the newest order for a store
        self._news = False  # since the last tick: somebody has gone, or holds another rank
        self._read = 0  # workers that were read at the last tick

    def on_command(self, message: ForAgent, *, now_s: float) -> list[Output]:
        """From the coordinator."""
        if isinstance(message, StartWorker):
            self._watched[message.worker] = Watched(message.worker, message.rank, moved_s=now_s)
            return [Spawn(message.worker, message.rank, message.kind, message.generation)]
        if isinstance(message, KillWorker):
            return [Kill(message.worker, message.reason)]
        if isinstance(message, TermWorker):
            return [Terminate(message.worker)]
        if isinstance(message, StartStore):
            self._store = message.number
            return [HostStore(message.reason)]
        if isinstance(message, AskStandings):
            return self._asked(message.nonce, now_s)
        if isinstance(message, Judged):
            self._take_judgement(message, now_s)
            return []
        assert isinstance(message, ToWorkers)
        return [self._deliver(worker, each) for worker, each in each_its_own(message)]

    def _deliver(self, worker: int, message: ForWorker) -> Output:
        watched = self._watched.get(worker)
        if watched is not None and isinstance(message, Regroup):
            watched.rank, self._news = message.rank, True
            self._drop_question()
        return Deliver(worker, message)

    def on_worker(self, message: FromWorker, *, now_s: float) -> list[Output]:
        """From a worker's socket."""
        if isinstance(message, Pong):
            if self._question is not None and message.nonce == self._question.nonce:
                self._question.answers[message.worker] = message
            return []
        return [ToCoordinator(message)]

    def on_event(self, message: FromAgent, *, now_s: float) -> list[Output]:
        """From the process host: started, exited, store up or lost."""
        if isinstance(message, WorkerExited | WorkerFailedToStart):
            gone, self._news = self._watched.pop(message.worker, None), True
            if gone is not None and gone.rank >= 0:  # a spare's end answers nothing
                self._drop_question()
        if isinstance(message, WorkerStarted) and message.worker in self._watched:
            self._watched[message.worker].heard_s = now_s
        if isinstance(message, (StoreUp, StoreLost)):
            return [ToCoordinator(replace(message, number=self._store))]
        return [ToCoordinator(message)]

    def on_tick(
        self,
        readings: Mapping[int, Reading],
        *,
        now_s: float,
        heard_s: Mapping[int, float] | None = None,
    ) -> list[Output]:
        """Every TICK_S, with one reading per worker whose beacon exists.

        `heard_s`: when a worker last printed something.
        """
        late_s = now_s - self._ticked_s - limits.TICK_S
        self._ticked_s = now_s
        if late_s > limits.LATE_TICK_S - limits.TICK_S:
            self._was_late(late_s, readings)
        for worker, said_s in (heard_s or {}).items():
            if (speaks := self._watched.get(worker)) is not None:
                speaks.heard_s = max(speaks.heard_s, said_s)
        news, self._news = self._news or len(readings) != self._read, False
        self._read = len(readings)
        for worker, reading in readings.items():
            watched = self._watched.get(worker)
            if watched is not None and watched.reading is not reading:
                news = True
                self._look(watched, reading, now_s)
        if news:
            self.deadlines.learn(
                [reading.beacon for reading in readings.values() if reading.beacon.rank >= 0]
            )
        return [*(self._progress(now_s) if news else ()), *self._judge(now_s), *self._listen(now_s)]

    def _was_late(self, late_s: float, readings: Mapping[int, Reading]) -> None:
        for worker, one in self._watched.items():
            one.heard_s += late_s
            if worker in readings:
                one.moved_s += late_s
                one.reckoned = -1

    def quiet_until_s(self) -> float:
        """As long as nothing moves, and nobody says anything, no tick before this can lead to
        anything. Infinity: none at all.
        """
        if self._question is not None:
            return self._ticked_s
        watched = [
            one for one in self._watched.values() if one.reading is not None and not one.reported
        ]
        due_s = [
            one.moved_s + limits.STOPPED_FLOOR_S
            for one in watched
            if one.reading is not None and one.reading.stopped
        ]
        if not self._plain:
            overdue_s = min(
                [self._due_s(one) for one in watched if one.rank >= 0], default=math.inf
            )
            due_s += [max(overdue_s, self._patient_until_s)]
        elif self._hang_after_s is not None:
            heard_s = [
                one.heard_s for one in self._watched.values() if one.rank >= 0 and not one.reported
            ]
            due_s += (
                [max(max(heard_s) + self._hang_after_s, self._patient_until_s)] if heard_s else []
            )
        return min(due_s, default=math.inf)

    def looks_closely(self, worker: int, *, now_s: float) -> bool:
        """Whether it matters if this worker has a processor: it has stood still for half of what it
        may, or is asked. Looking costs a file for each thread.
        """
        watched = self._watched.get(worker)
        if watched is None or watched.reading is None or watched.rank < 0 or self._plain:
            return False
        return (
            self._question is not None
            or now_s - watched.moved_s > (self._due_s(watched) - watched.moved_s) / 2
        )

    @property
    def asks(self) -> bool:
        """A question is out, and not answered yet."""
        return self._question is not None

    @property
    def learns(self) -> bool:
        """Some rank here is in the first steps of its process."""
        return any(
            one.rank >= 0 and self._steps_done(one) < limits.FIRST_STEPS_COUNT
            for one in self._watched.values()
        )

    def reports_again(self) -> None:
        """Whoever was told of those that hang is gone, and may not have had them killed."""
        for one in self._watched.values():
            one.reported = False

    def rest(self, *, until_s: float) -> None:
        """The driver has left out the ticks up to `until_s`: they were not late."""
        self._ticked_s = until_s

    def _progress(self, now_s: float) -> list[Output]:
        members = [
            w.reading.beacon
            for w in self._watched.values()
            if w.reading is not None and w.rank >= 0
        ]
        if not members:
            return []
        newest, oldest = (
            max(beacon.step for beacon in members),
            min(beacon.step for beacon in members),
        )
        if (newest, oldest) == self._moved:
            return []
        self._moved = (newest, oldest)
        self.deadlines.forgive()  # they were slow, and the slow phase is learned now
        step_s = sum(self.deadlines.typical_s.get(phase, 0.0) for phase in STEP_PHASES)
        return [ToCoordinator(Progress(newest, oldest, step_s, now_s))]

    def _judge(self, now_s: float) -> list[Output]:
        if self._question is None and not any(
            self._is_late(one, now_s) for one in self._watched.values()
        ):
            return []
        standing = [
            self._standing(watched, now_s)
            for watched in self._watched.values()
            if watched.reading is not None and not watched.reported
        ]
        stopped = find_stopped(members=standing)
        if stopped is not None:
            return self._report(stopped, now_s)
        members = [one for one in standing if one.rank >= 0]
        if self._question is not None:
            return self._conclude(members, now_s)
        return self._ask(members, now_s)

    def _listen(self, now_s: float) -> list[Output]:
        """Silence of a plain script's workers, all together."""
        members = [
            watched
            for watched in self._watched.values()
            if watched.rank >= 0 and not watched.reported
        ]
        if (
            self._hang_after_s is None
            or not self._plain
            or not members
            or now_s < self._patient_until_s
        ):
            return []
        heard_s = max(watched.heard_s for watched in members)
        if now_s - heard_s <= self._hang_after_s:
            return []
        if not self._alone:
            self._patient_until_s = now_s + limits.AWAITED_LOOK_S
            return [
                self._tell(
                    [
                        self._standing(watched, now_s)
                        for watched in members
                        if watched.reading is not None
                    ],
                    0,
                    now_s,
                )
            ]
        verdict = HangVerdict(
            tuple(watched.worker for watched in members),
            f"no worker has printed anything for {self._hang_after_s:g} s",
        )
        for watched in members:
            watched.moved_s, watched.reckoned = heard_s, -1
        return self._report(verdict, now_s)

    # --- watching ---

    def _look(self, watched: Watched, reading: Reading, now_s: float) -> None:
        beacon = reading.beacon
        if beacon.beats != watched.beats:
            self._patient_until_s = 0.0
            # one that was never published says no time
            moved_s = max(watched.moved_s, min(now_s, beacon.at_ns / 1e9))
            if (
                watched.phase in STEP_PHASES
                and self._steps_done(watched) < limits.FIRST_STEPS_COUNT
            ):
                self.deadlines.learn_first(moved_s - watched.moved_s)
            watched.beats, watched.phase, watched.moved_s, watched.reckoned = (
                beacon.beats,
                beacon.phase,
                moved_s,
                -1,
            )
            self._plain = self._plain and beacon.phase is Phase.BOOT
            if watched.first_step < 0 and beacon.phase is Phase.BODY:
                watched.first_step = beacon.step
            watched.starved_s = 0.0
        if (starved_s := min(reading.starved_s, limits.STARVED_MAX_S)) > watched.starved_s:
            # A rank that stands still has no processor.
            watched.starved_s, watched.reckoned = starved_s, -1
        watched.reading = reading

    def _due_s(self, watched: Watched) -> float:
        """When its deadline is over; infinity: it has none."""
        if watched.reckoned != self.deadlines.version:
            deadline = self._deadline_of(watched)
            watched.due_s, watched.reckoned = (
                math.inf if deadline is None else watched.since_s + deadline,
                self.deadlines.version,
            )
        return watched.due_s

    def _deadline_of(self, watched: Watched) -> float | None:
        """How long it may stand where it stands; None: for as long as it likes."""
        return self.deadlines.of(phase=watched.phase, steps_done=self._steps_done(watched))

    def _steps_done(self, watched: Watched) -> int:
        return (
            watched.reading.beacon.step - watched.first_step
            if watched.reading is not None and watched.first_step >= 0
            else 0
        )

    def _standing(self, watched: Watched, now_s: float) -> Standing:
        assert watched.reading is not None
        pong = self._question.answers.get(watched.worker) if self._question is not None else None
        return Standing(
            worker=watched.worker,
            rank=watched.rank,
            phase=watched.phase,
            step=watched.reading.beacon.step,
            age_s=now_s - watched.since_s,
            stopped=watched.reading.stopped,
            collectives=None if pong is None else pong.collectives,
            where="" if pong is None else pong.where,
            cut_off=() if pong is None else pong.cut_off,
        )

    def _is_late(self, watched: Watched, now_s: float) -> bool:
        """It is stopped, or overdue by itself: somebody has to look closer."""
        reading = watched.reading
        if reading is None or watched.reported:
            return False
        if reading.stopped:
            return True
        if self._plain or watched.rank < 0 or now_s <= self._due_s(watched) - ROUNDING_S:
            return False
        deadline = self._deadline_of(watched)
        return deadline is not None and now_s - watched.since_s > deadline

    def _overdue(self, members: list[Standing]) -> dict[int, float]:
        out: dict[int, float] = {}
        if self._plain:
            # a script that never calls outlast.join stays in boot for as long as it likes
            return out
        for member in members:
            deadline = self._deadline_of(self._watched[member.worker])
            if deadline is not None and member.age_s > deadline:
                out[member.worker] = deadline
        return out

    # --- asking ---

    def _ask(self, members: list[Standing], now_s: float) -> list[Output]:
        overdue = self._overdue(members) if now_s >= self._patient_until_s else {}
        if not overdue:
            return []
        return self._ping([member.worker for member in members], overdue, now_s)

    def _ping(
        self,
        workers: list[int],
        overdue: dict[int, float],
        now_s: float,
        *,
        asked_by: int = 0,
        again: bool = False,
    ) -> list[Output]:
        self._nonce += 1
        starved = {worker: self._watched[worker].starved_s for worker in workers}
        self._question = Question(
            self._nonce, now_s, overdue, asked_by, starved=starved, again=again
        )
        return [Deliver(worker, Ping(self._nonce)) for worker in workers]

    def _conclude(self, members: list[Standing], now_s: float) -> list[Output]:
        assert self._question is not None
        still_overdue = self._overdue(members)
        asked_by = self._question.asked_by
        if not still_overdue and not asked_by:
            # One that was asked after has moved.
            self._question = None
            return []
        if any(
            one.collectives is None and self._waited_s(one.worker, now_s) < limits.PING_DEADLINE_S
            for one in members
        ):
            return []
        if not self._alone:
            self._question = None
            self._patient_until_s = now_s + 2 * limits.HEARING_DEADLINE_S
            return [self._tell(members, asked_by, now_s)]
        verdict = find_culprits(members=members, overdue=still_overdue)
        if verdict.behind and not self._question.again:
            # One that has come less far is looked at once more.
            return self._ping(
                [member.worker for member in members], still_overdue, now_s, again=True
            )
        self._question = None
        if verdict.awaited:
            self._patient_until_s = self._next_due_s(members, still_overdue, now_s)
            return []
        if not verdict.culprits:  # slow together, or stuck together: wait longer, then ask again
            if not self.deadlines.exhausted:
                self.deadlines.double()
                return []
            verdict = find_longest(members=members, overdue=still_overdue)
        self.deadlines.forgive()
        return self._report(verdict, now_s)

    def _waited_s(self, worker: int, now_s: float) -> float:
        """For its answer, while it could have given one."""
        assert self._question is not None
        starved_s = self._watched[worker].starved_s - self._question.starved.get(worker, 0.0)
        return now_s - self._question.asked_s - max(0.0, starved_s)

    # --- where there are several nodes ---

    def _asked(self, nonce: int, now_s: float) -> list[Output]:
        """Another node's ranks may wait for one of these."""
        if self._question is not None:
            self._question.asked_by = nonce
            return []
        members = [
            watched.worker
            for watched in self._watched.values()
            if watched.rank >= 0 and watched.reading is not None
        ]
        return self._ping(members, {}, now_s, asked_by=nonce)

    def _tell(self, members: list[Standing], nonce: int, now_s: float) -> Output:
        stood = tuple(
            Stood(
                one.worker,
                one.rank,
                one.phase.value,
                one.step,
                one.age_s,
                None if self._plain else self._deadline_of(self._watched[one.worker]),
                one.stopped,
                one.collectives,
                one.where,
                one.cut_off,
            )
            for one in members
        )
        heard_s = [watched.heard_s for watched in self._watched.values() if watched.rank >= 0]
        quiet_s = (
            now_s - max(heard_s)
            if self._hang_after_s is not None
            and self._plain
            and heard_s
            and max(heard_s) < math.inf
            else None
        )
        return ToCoordinator(
            Standings(nonce, stood, quiet_s, self._hang_after_s or 0.0, self.deadlines.exhausted)
        )

    def _take_judgement(self, judged: Judged, now_s: float) -> None:
        if judged.outcome == "nobody":
            self.deadlines.double()
        self._patient_until_s = now_s + (
            limits.AWAITED_LOOK_S if judged.outcome == "awaited" else 0.0
        )

    def _next_due_s(
        self, members: list[Standing], overdue: Mapping[int, float], now_s: float
    ) -> float:
        """When to ask again: as soon as one that is awaited is late too, and now and then."""
        due_s = [now_s + limits.AWAITED_LOOK_S]
        for member in members:
            deadline = self._deadline_of(self._watched[member.worker])
            if member.worker not in overdue and deadline is not None:
                due_s.append(self._watched[member.worker].since_s + deadline)
        return min(due_s)

    def _report(self, verdict: HangVerdict, now_s: float) -> list[Output]:
        out: list[Output] = []
        for worker in verdict.culprits:
            watched = self._watched[worker]
            watched.reported = True
            deadline = self._deadline_of(watched) or limits.STOPPED_FLOOR_S
            if self._plain and self._hang_after_s is not None:
                deadline = self._hang_after_s
            out.append(
                ToCoordinator(
                    WorkerHung(
                        worker,
                        watched.phase.value,
                        watched.moved_s,
                        deadline,
                        now_s,
                        verdict.reason,
                    )
                )
            )
        self._drop_question()
        return out

    def _drop_question(self) -> None:
        self._question = None
