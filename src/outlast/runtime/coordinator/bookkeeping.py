"""What the launcher records: lives, steps, and the snapshot of `outlast status`.

It decides nothing.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from types import MappingProxyType

from outlast.engine.coordinator.awaited import describe_wait
from outlast.engine.coordinator.machine import Coordinator
from outlast.engine.coordinator.member import Member
from outlast.engine.coordinator.stages import Stage
from outlast.engine.protocol.outputs import End
from outlast.model.gauges import Gauges
from outlast.model.goodput import account
from outlast.model.limits import CURVES_MAX_COUNT
from outlast.model.records import Event, Interruption, Life, Record, Records, StepsBucket
from outlast.model.terms import Cause
from outlast.runtime import clock
from outlast.runtime.coordinator.outlook import Outlook
from outlast.runtime.ledger.store import Ledger

_RATE_WINDOW_S = 5.0
_SHOWN = 5
_STATES = {
    Stage.ENROLLING: "starting",
    Stage.STARTING: "starting",
    Stage.TRAINING: "training",
    Stage.STOPPING: "stopped",
    Stage.ENDED: "ended",
}
_NONE: Mapping[str, float] = MappingProxyType({})


class Bookkeeping:
    """Write the ledger.

    records      what the ledger contains at the start, including the new session
    start_step   the step from which this session goes on
    living       returns the lives that have not ended
    gauges       returns what rank 0 reports about its training
    log_of       returns the folder with the output of a worker, by its node and its number; "" if
                 it is not known
    show         gets each snapshot
    also         gets each record that is written
    """

    def __init__(
        self,
        *,
        ledger: Ledger,
        records: Records,
        start_step: int,
        living: Callable[[], list[Life]],
        gauges: Callable[[], Gauges | None],
        show: Callable[[Mapping[str, object]], None],
        log_of: Callable[[str, int], str] = lambda node, worker: "",
        also: Callable[[Record], object] = lambda record: None,
    ) -> None:
        self._ledger = ledger
        self._also = also
        self._show = show
        self._seen = _Seen(living, gauges, log_of)
        self._session = records.sessions[-1]
        self._steps = _Steps(clock.now_s(), start_step)
        self._interruptions = _Interruptions()
        self._tally = _Tally(records)
        self._outlook = Outlook(records)

    # --- lives and steps ---

    def life_over(self, life: Life) -> None:
        """Record a life that has ended."""
        self._tally.ended(life)
        self.record(life)

    def step_seen(self, step: int, at_s: float) -> None:
        """Note that a rank has committed `step`, as its beacon shows."""
        self._steps.seen(step, at_s)

    # --- the ledger ---

    def record(self, record: Record) -> None:
        if isinstance(record, Interruption):
            self._interruptions.note(record)
        if isinstance(record, Event) and record.wall_s == 0.0:
            record = replace(record, wall_s=clock.wall_s())
        if isinstance(record, Event):
            self._outlook.note(record)
        self._ledger.add(record)
        self._also(record)

    def unresumed(self) -> list[Interruption]:
        """Return the interruptions after which nothing was committed."""
        return [one for one in self._interruptions.kept() if one.resumed_s is None]

    def flush(
        self,
        coordinator: Coordinator,
        *,
        now_s: float,
        deadlines: Mapping[str, float] = _NONE,
        imports: bool = False,
    ) -> None:
        """Write lives, steps and the snapshot. The launcher calls this once a second.

        deadlines   the timers of the coordinator that are set, by name
        imports     the process that workers are forked from is not done with its imports

        Raises OutlastError if the disk refuses.
        """
        for life in self._seen.living():
            self.record(life)
        for bucket in self._steps.buckets(self._seen.gauges()):
            self.record(bucket)
        snapshot = self.show(coordinator, now_s=now_s, deadlines=deadlines, imports=imports)
        self._ledger.set_snapshot(snapshot, now_s=now_s)
        self._ledger.flush()

    def show(
        self,
        coordinator: Coordinator,
        *,
        now_s: float,
        deadlines: Mapping[str, float] = _NONE,
        imports: bool = False,
    ) -> dict[str, object]:
        """Make the snapshot, and show it to the people who watch."""
        snapshot = self.snapshot(coordinator, now_s=now_s, deadlines=deadlines, imports=imports)
        self._show(snapshot)
        return snapshot

    def close(self, end: End) -> None:
        """Write the last records: the run is over.

        If the ledger cannot be written, that does not change how the run ends.
        """
        for bucket in self._steps.buckets(self._seen.gauges()):
            self.record(bucket)
        self._ledger.end_session(
            ended_s=clock.now_s(), state=end.state, exit_code=end.exit_code, reason=end.reason
        )

    def snapshot(
        self,
        coordinator: Coordinator,
        *,
        now_s: float,
        deadlines: Mapping[str, float] = _NONE,
        imports: bool = False,
    ) -> dict[str, object]:
        """Return what `outlast status --json` prints."""
        lives = [life for life in self._seen.living() if life.rank >= 0]
        members = sorted(coordinator.roster.members(), key=lambda member: member.rank)
        plain = coordinator.runs_plain
        last = self._interruptions.kept()[-_SHOWN:]
        calls_outlast = coordinator.roster.outlast
        seen = calls_outlast or self._steps.newest > 0
        measured = calls_outlast or (seen and self._interruptions.cost_is_known)
        step = max(self._steps.newest, coordinator.step)
        self._outlook.note_gauges(self._seen.gauges())
        return {
            "run": self._outlook.run,
            "state": _state_of_run(coordinator),
            "waits_for": _waits_for(coordinator, now_s, deadlines, imports=imports),
            "generation": coordinator.generation,
            "step": step,
            "steps_per_s": self._steps.rate(now_s),
            "workers": [
                {
                    "rank": m.rank,
                    "pid": m.process.pid,
                    "node": m.process.host,
                    "state": _state(m, at_work=m.path.joined or plain),
                    "log": self._seen.log_of(m.process.host, m.worker) or None,
                }
                for m in members
            ],
            "spares": [
                {
                    "pid": m.process.pid,
                    "kind": m.kind,
                    "node": m.process.host,
                    "parked": m.process.parked,
                }
                for m in coordinator.roster.spares()
            ],
            "session": self._session.session.session,
            "steps_seen": seen,
            "ettr": self._tally.ettr(lives, now_s=now_s) if measured else None,
            "wall_s": self._tally.wall_s(now_s),
            "interruptions": [
                one.public(began_s=self._session.began_s)
                | {"verdict": self._outlook.verdict(one.id)}
                for one in last
            ],
            **self._outlook.facts(step, coordinator, now_s=now_s),
        }


@dataclass(frozen=True, slots=True)
class _Seen:
    """The nodes show this of their workers. The fields are those of `Bookkeeping`."""

    living: Callable[[], list[Life]]
    gauges: Callable[[], Gauges | None]
    log_of: Callable[[str, int], str]


class _Interruptions:
    """The interruptions that are open, and the newest that are over. All of them are in the ledger.

    cost_is_known   it is known how many steps each of them cost
    """

    def __init__(self) -> None:
        self._kept: dict[int, Interruption] = {}
        self._unknown_before = False  # of an interruption that is not kept any more

    def note(self, record: Interruption) -> None:
        self._kept[record.id] = record
        over = [one for one in self._kept.values() if one.resumed_s is not None]
        for one in over[:-_SHOWN]:
            self._unknown_before = self._unknown_before or one.steps_lost < 0
            del self._kept[one.id]

    def kept(self) -> list[Interruption]:
        return list(self._kept.values())

    @property
    def cost_is_known(self) -> bool:
        return not self._unknown_before and all(one.steps_lost >= 0 for one in self._kept.values())


class _Tally:
    """The figures of `account` for the whole run at this moment.

    They are updated without going through all lives again each second. `outlast report` shows the
    same figures. The time between two sessions counts in neither.
    """

    def __init__(self, records: Records) -> None:
        earlier = account(replace(records, sessions=records.sessions[:-1]), now_s=None)
        self._world_size = records.world_size
        self._held_before_s = earlier.held_s
        self._started_s = records.sessions[-1].session.started_s
        self._zero_s = records.sessions[-1].session.started_s - earlier.wall_s
        # rank-seconds of lives that have ended
        self._productive_s = earlier.rank_seconds[Cause.PRODUCTIVE]

    def ended(self, life: Life) -> None:
        self._productive_s += life.seconds.get(Cause.PRODUCTIVE, 0.0)

    def wall_s(self, now_s: float) -> float:
        return now_s - self._zero_s

    def ettr(self, living: Iterable[Life], *, now_s: float) -> float:
        held_s = self._held_before_s + (now_s - self._started_s) * self._world_size
        productive_s = self._productive_s + math.fsum(_productive_s(life, now_s) for life in living)
        return min(1.0, productive_s / held_s) if held_s > 0 else 0.0


def _productive_s(life: Life, now_s: float) -> float:
    """Return the productive seconds of a life that goes on, including the step in flight."""
    settled_s = life.seconds.get(Cause.PRODUCTIVE, 0.0)
    if life.opened_s is None or life.cause is not Cause.PRODUCTIVE:
        return settled_s
    return settled_s + max(0.0, now_s - life.opened_s - math.fsum(life.seconds.values()))


class _Steps:
    """Committed steps as the beacons show them, at the resolution of a tick.

    The session goes on from `start_step`. A worker's beacon shows a lower number until the worker
    has the state of that step, so lower numbers are ignored.
    """

    def __init__(self, now_s: float, start_step: int) -> None:
        self.newest = start_step
        self._begun = False  # whether a beacon was seen
        self._from_s = now_s
        self._from_step = start_step
        self._last_s = now_s
        self._lasted: list[float] = []
        self._logged_step = 0  # the step of the newest bucket that has logged values
        self._recent: deque[tuple[float, int]] = deque()

    def seen(self, step: int, now_s: float) -> None:
        if not self._begun and step <= self.newest:
            # what came before was not a step: the workers were started
            self._from_s = self._last_s = now_s
        self._begun = True
        if step > self.newest:
            self._lasted += [(now_s - self._last_s) / (step - self.newest)] * min(
                step - self.newest, 1_000
            )
            self.newest, self._last_s = step, now_s
            self._recent.append((now_s, step))

    def buckets(self, said: Gauges | None) -> list[StepsBucket]:
        """Return the bucket of the steps since the last call, if there are any.

        said   what rank 0 reports about its training; its values are used once
        """
        if not self._lasted:
            return []
        logged: dict[str, float] = {}
        if said is not None and said.step > self._logged_step:
            self._logged_step = said.step
            some = islice(said.values.items(), CURVES_MAX_COUNT)
            logged = {name: value for name, value in some if math.isfinite(value)}
        lasted, self._lasted = self._lasted, []
        bucket = StepsBucket(
            self._from_s,
            self._last_s,
            self._from_step,
            self.newest,
            min(lasted),
            statistics.median(lasted),
            max(lasted),
            logged,
        )
        self._from_s, self._from_step = self._last_s, self.newest
        return [bucket]

    def rate(self, now_s: float) -> float:
        """Return the steps per second over the last few seconds."""
        while len(self._recent) > 2 and self._recent[0][0] < now_s - _RATE_WINDOW_S:
            self._recent.popleft()
        if len(self._recent) < 2:
            return 0.0
        (from_s, from_step), (last_s, to_step) = self._recent[0], self._recent[-1]
        steps, lasted_s = to_step - from_step, last_s - from_s
        # a step may be longer than the window; if it takes more than twice as long as usual,
        # the rate is 0
        late = now_s - last_s > max(_RATE_WINDOW_S, 2 * lasted_s / steps)
        return 0.0 if late else steps / max(now_s - from_s if steps > 1 else lasted_s, 1e-9)


def _waits_for(
    coordinator: Coordinator, now_s: float, deadlines: Mapping[str, float], *, imports: bool
) -> dict[str, object] | None:
    """Return what the run waits for, and for how long at most. Return None while it trains."""
    wait = describe_wait(coordinator.run, deadlines, imports=imports)
    if wait is None:
        return None
    left_s = None if wait.until_s is None else round(max(0.0, wait.until_s - now_s), 3)
    return {"what": wait.what, "left_s": left_s}


def _state_of_run(coordinator: Coordinator) -> str:
    """Return the state of the run for `outlast status`.

    "ending": all scripts are past their last step, and some processes have not ended.
    """
    plain = coordinator.runs_plain
    if not plain and coordinator.stage is not Stage.TRAINING:
        return _STATES.get(coordinator.stage, "regrouping")
    over = all(
        m.life.done or m.script.finished or m.script.lingers for m in coordinator.roster.members()
    )
    return "ending" if over else "training"


def _state(member: Member, *, at_work: bool) -> str:
    """Return the state of a process for `outlast status`.

    "ended": its process has ended and has done its part. "dead": its process has ended before that,
    so its rank is given to another process.
    """
    if member.life.dead:
        return "ended" if member.life.done else "dead"
    over = member.script.finished or member.script.lingers
    return "finished" if over else "training" if at_work else "starting"
