"""Find hangs: learn deadlines from the run, and find the culprit among members without progress.

When one rank hangs, all ranks stop, because its peers wait for it in a collective. So a rank that
is overdue need not be the culprit. Pings, process states and counts of collectives show which is.

Units: seconds, on the agent's monotonic clock. This module is pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from outlast.model import limits
from outlast.model.beacon import Beacon
from outlast.model.terms import Phase

_FIXED: dict[Phase, float] = {
    Phase.BOOT: limits.BOOT_DEADLINE_S,
    Phase.SETUP: limits.BOOT_DEADLINE_S,
    Phase.CHECKPOINT: limits.CHECKPOINT_DEADLINE_S,
    Phase.EVALUATION: limits.EVALUATION_DEADLINE_S,
    Phase.BETWEEN: limits.BETWEEN_DEADLINE_S,
    Phase.EPILOGUE: limits.EVALUATION_DEADLINE_S,
}
_SCALE_MAX = limits.STEP_CEILING_S / limits.STEP_FLOOR_S
STEP_PHASES = (Phase.DATA, Phase.BODY, Phase.VOTE, Phase.APPLY, Phase.SNAPSHOT)
_FLOORS: dict[Phase, float] = {
    Phase.SNAPSHOT: limits.SNAPSHOT_FLOOR_S,
    Phase.DATA: limits.DATA_FLOOR_S,
}
_EXEMPT = (Phase.PARKED, Phase.WAIT, Phase.REGROUP)  # the coordinator has deadlines for these
# phases in which a rank waits for no other rank
_WITHOUT_PEERS = (Phase.BOOT, Phase.DATA, Phase.APPLY, Phase.SNAPSHOT, Phase.CHECKPOINT)
# those of them after which a rank enters the collectives of its step
_BEFORE = (Phase.BOOT, Phase.DATA, Phase.CHECKPOINT)


@dataclass(slots=True)
class Deadlines:
    """This says how long each phase may last, learned from how long it has lasted on all members.

    typical_s   for each phase, its typical length on the slowest member
    first_s     the longest time that a phase has taken in the first steps of a process
    scale       a factor on all deadlines, raised after a false alarm
    version     counts changes, so that callers can cache what they compute from deadlines
    """

    typical_s: dict[Phase, float] = field(default_factory=dict)
    first_s: float = 0.0
    scale: float = 1.0
    version: int = 0
    _learned: list[dict[Phase, float]] = field(default_factory=list, repr=False)

    @property
    def exhausted(self) -> bool:
        """Return whether the deadlines cannot be doubled any more."""
        return self.scale >= _SCALE_MAX

    def double(self) -> None:
        """Double the deadlines after a false alarm."""
        self.scale = min(self.scale * 2.0, _SCALE_MAX)
        self.version += 1

    def forgive(self) -> None:
        """Set the scale back to 1."""
        if self.scale != 1.0:
            self.scale = 1.0
            self.version += 1

    def learn(self, beacons: Iterable[Beacon]) -> None:
        """Learn from what the workers have measured themselves and published in their beacons.

        A table in a beacon is never changed, so equal tables need no work. While all workers are
        new and have measured nothing, what was learned before stays.
        """
        tables = [beacon.typical_s for beacon in beacons]
        if tables == self._learned:
            return
        self._learned = tables
        typical: dict[Phase, float] = {}
        for table in tables:
            for phase, lasted_s in table.items():
                if lasted_s > typical.get(phase, 0.0):
                    typical[phase] = lasted_s
        if typical and typical != self.typical_s:
            self.typical_s = typical
            self.version += 1

    def learn_first(self, lasted_s: float) -> None:
        """Learn from a phase of `lasted_s` seconds in the first steps of some process."""
        if lasted_s > self.first_s:
            self.first_s = lasted_s
            self.version += 1

    def of(self, *, phase: Phase, steps_done: int) -> float | None:
        """Return how many seconds a worker may stay in `phase`; None: without a limit.

        steps_done   how many steps its process has committed
        """
        if phase in _EXEMPT or phase is Phase.EXIT:  # no process is killed for not ending
            return None
        if phase in _FIXED:
            return _FIXED[phase]
        if steps_done < limits.FIRST_STEPS_COUNT:
            known = bool(self.typical_s) and self.first_s > 0.0
            learned = (
                max(self.first_s * limits.DEADLINE_FACTOR, limits.FIRST_STEPS_FLOOR_S) * self.scale
            )
            return (
                min(learned, limits.FIRST_STEPS_DEADLINE_S)
                if known
                else limits.FIRST_STEPS_DEADLINE_S
            )
        learned = self.typical_s.get(phase, 0.0) * limits.DEADLINE_FACTOR * self.scale
        return min(
            max(learned, _FLOORS.get(phase, limits.STEP_FLOOR_S) * self.scale),
            limits.STEP_CEILING_S,
        )


@dataclass(frozen=True, slots=True)
class MemberReport:
    """The facts that are known of one member when a hang is judged.

    step           the newest step that it has committed
    age_s          for how many seconds it has been at this place
    stopped        the kernel holds its process stopped
    collectives    how many collectives it has entered; None: it has not answered the ping
    where          its place in the script, for people; "": not known
    cut_off        ranks that do not acknowledge what it has sent them
    cut_off_bytes  how many bytes each of them has not acknowledged; empty: not known
    """

    worker: int
    rank: int
    phase: Phase
    step: int
    age_s: float
    stopped: bool
    collectives: int | None
    where: str = ""
    cut_off: tuple[int, ...] = ()
    cut_off_bytes: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class HangVerdict:
    """The workers that hang, and the reason.

    culprits   worker numbers; empty: no worker is blamed
    awaited    the overdue members may be waiting for a rank that is within its own deadline
    behind     the culprits were blamed because others have come further. That may have happened
               only just now, so look at them once more
    """

    culprits: tuple[int, ...]
    reason: str
    awaited: bool = False
    behind: bool = False


def find_stopped(*, members: Sequence[MemberReport]) -> HangVerdict | None:
    """Return the verdict on processes that are stopped for longer than STOPPED_FLOOR_S, or None."""
    culprits = tuple(m.worker for m in members if m.stopped and m.age_s > limits.STOPPED_FLOOR_S)
    if not culprits:
        return None
    ranks = sorted(m.rank for m in members if m.worker in culprits)
    return HangVerdict(
        culprits,
        f"ranks {ranks} are stopped (SIGSTOP) and have not moved for {limits.STOPPED_FLOOR_S:g} s",
    )


def find_culprits(*, members: Sequence[MemberReport], overdue: Mapping[int, float]) -> HangVerdict:
    """Find the culprits, once all members were pinged and have answered, or had time to.

    overdue   for each worker past its deadline: that deadline, in seconds

    First each overdue member is judged by its own report. Only if that shows nothing, the places of
    all members are compared, to find out who waits for whom.
    """
    return (
        _find_by_itself(members, overdue)
        or _find_cut_off(members)
        or _find_by_place(members, overdue)
    )


def _find_by_itself(
    members: Sequence[MemberReport], overdue: Mapping[int, float]
) -> HangVerdict | None:
    """Find overdue members whose own report says that they hang."""
    deaf = [m for m in members if m.collectives is None and m.worker in overdue]
    if deaf:
        # Its listener does not answer.
        return _verdict(
            deaf,
            "do not answer: stopped, held by a debugger, or a thread holds the interpreter lock",
        )
    hung = [m for m in members if m.phase in _WITHOUT_PEERS and m.worker in overdue]
    if hung:
        # It is at a place where a rank waits for no peer.
        return _verdict(hung, f"stand in {hung[0].phase.value}, where no peer is waited for")
    return None


def _find_cut_off(members: Sequence[MemberReport]) -> HangVerdict | None:
    """Return a verdict that blames no process, if ranks cannot reach each other; or None."""
    apart = sorted((m.rank, rank) for m in members for rank in m.cut_off)
    if not apart:
        return None
    first, second = apart[0]
    return HangVerdict(
        (),
        f"rank {first} cannot reach rank {second}, so a rank that has come less far may only wait"
        " for data that does not arrive",
        awaited=True,
    )


def _find_by_place(members: Sequence[MemberReport], overdue: Mapping[int, float]) -> HangVerdict:
    """Find overdue members that have come less far than their peers: the peers wait for them."""
    shared = [m for m in members if m.phase not in _WITHOUT_PEERS and m.phase not in _EXEMPT]
    places = [_came_to(m) for m in shared]
    least = min(places, default=None)
    behind = [m for m, place in zip(shared, places, strict=True) if place == least]
    left_behind = any(_is_past(m, behind[0]) for m in members) if behind else False
    late = [m for m in behind if m.worker in overdue]
    furthest = max((m.step for m in late), default=-1)
    in_time = [m for m in members if m.worker not in overdue]
    on_its_way = any(m.phase in _BEFORE and m.step <= furthest for m in in_time)
    if late and left_behind and not on_its_way:
        # It has come less far than its peers, so they wait for it.
        return _verdict(
            late,
            "have come less far (steps, collectives) than their peers, which wait for them",
            behind=True,
        )
    ahead = {m.worker for m, place in zip(shared, places, strict=True) if place != least}
    if on_its_way or any(m.worker not in ahead for m in in_time):
        # The rank that is awaited is still in time.
        return HangVerdict(
            (),
            "a rank is elsewhere, within its own deadline or the coordinator's, so the ranks that"
            " wait for it are not to blame",
            awaited=True,
        )
    return _find_odd_calls(shared) or HangVerdict(
        (), "all ranks are at the same place, so none can be told from the others"
    )


def _find_odd_calls(shared: Sequence[MemberReport]) -> HangVerdict | None:
    """Return a verdict if some members vote, and others are in a collective of the script instead.

    All have entered the same number of collectives, and a vote counts as one. So they have called
    different ones, and wait for each other for ever. The fewer are to blame, or those that do not
    vote if there are as many of each.
    """
    voting = [m for m in shared if m.phase is Phase.VOTE]
    others = [m for m in shared if m.phase is Phase.BODY]
    if not voting or not others or len(voting) + len(others) < len(shared):
        return None
    if len(voting) < len(others):
        return _verdict(voting, "vote, while their peers are in a collective", behind=True)
    return _verdict(others, "are in a collective, while their peers vote", behind=True)


def _came_to(member: MemberReport) -> tuple[int, bool, int]:
    """Return how far a member has come, as a tuple that can be compared between ranks.

    Counts of collectives begin again with each generation, on all ranks.
    """
    return member.step, member.phase is not Phase.SETUP, member.collectives or 0


def _is_past(member: MemberReport, other: MemberReport) -> bool:
    """Return True if `member` is past the place of `other`, which waits for other ranks there.

    A member in a regroup counts as past one that still runs its set-up code, and past no other.
    """
    if member.phase in _EXEMPT:
        return other.phase is Phase.SETUP
    return (
        member.step > other.step
        if member.phase in _WITHOUT_PEERS
        else _came_to(member) > _came_to(other)
    )


def find_longest(*, members: Sequence[MemberReport], overdue: Mapping[int, float]) -> HangVerdict:
    """Blame the overdue member that has been there longest, if all are at the same place.

    All deadlines were raised to their ceiling before. One member has to be killed, or the run would
    hang for ever.
    """
    longest = max((m for m in members if m.worker in overdue), key=lambda m: (m.age_s, -m.rank))
    return _verdict([longest], "has stood longest where all stand, and nothing tells them apart")


def _verdict(found: Sequence[MemberReport], why: str, *, behind: bool = False) -> HangVerdict:
    ranks = sorted(m.rank for m in found)
    at = "; ".join(f"rank {m.rank} at {m.where}" for m in found if m.where)
    return HangVerdict(
        tuple(m.worker for m in found),
        f"ranks {ranks} {why}" + (f" ({at})" if at else ""),
        behind=behind,
    )
