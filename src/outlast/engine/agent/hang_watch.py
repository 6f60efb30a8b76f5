"""`HangWatch`: find workers of this node that hang, by deadlines and pings.

    quiet     no member is past its deadline
    asked     some member is past its deadline, so all members are pinged
    answered  once all have answered, or PING_DEADLINE_S later, engine/hang.py judges

With several nodes the agent does not judge. It reports where its members stand, and the coordinator
judges over the reports of all nodes (engine/coordinator/hang_inquiry.py).

A script without an outlast call has no beacon that moves. If a limit of silence is given
(`--hang-after`), its workers count as hung once none of them has printed anything for that long. It
is not known which of them hangs, but all of them are restarted anyway.

This module is pure.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from outlast.engine.agent.worker_watch import Watched, WorkerWatch
from outlast.engine.hang import HangVerdict, MemberReport, find_culprits, find_longest, find_stopped
from outlast.engine.protocol.outputs import Deliver, Output, ToCoordinator
from outlast.model import limits
from outlast.model.messages import Judged, Ping, Pong, ProgressReport, ReportedMember, WorkerHung
from outlast.model.terms import Phase


@dataclass(slots=True)
class Question:
    """A round of pings that was sent, and the answers so far.

    nonce      tells answers to this round from those to earlier ones
    overdue    for each worker past its deadline: that deadline, in seconds
    asked_by   the nonce of the coordinator's inquiry; 0: this agent asks by itself
    answers    by worker
    starved    by worker: its seconds without a processor when it was asked
    again      this is a second round, because a member seemed to be behind its peers. It may just
               have been about to move on
    """

    nonce: int
    asked_s: float
    overdue: dict[int, float]
    asked_by: int = 0
    answers: dict[int, Pong] = field(default_factory=dict)
    starved: dict[int, float] = field(default_factory=dict)
    again: bool = False


class HangWatch:
    """Find the workers of one node that hang. `Agent` calls `look` at each tick.

    patient_until_s   no round of pings begins before that, unless a beacon moves
    """

    def __init__(self, watch: WorkerWatch, *, silence_s: float | None, only_node: bool) -> None:
        """Watch nothing yet.

        silence_s   how much silence of a plain script counts as a hang; None: none does
        only_node   this is the only node of the run
        """
        self.watch = watch
        self.patient_until_s = 0.0
        self._silence_s = silence_s
        self._only_node = only_node
        self._question: Question | None = None
        self._nonce = 0

    # --- what drivers look at ---------------------------------------------------------------------

    @property
    def asks(self) -> bool:
        """Return True while a round of pings is open."""
        return self._question is not None

    def looks_closely(self, watched: Watched, *, now_s: float) -> bool:
        """Return True if it matters whether this worker has a processor.

        It does once the worker is asked, or has stood still for half of its deadline.
        """
        if watched.reading is None or not watched.is_member or self.watch.plain:
            return False
        moved_s = watched.still.moved_s
        return self.asks or now_s - moved_s > (self.watch.due_s(watched) - moved_s) / 2

    def quiet_until_s(self) -> float:
        """Return the time before which no tick can find anything, while nothing moves or prints."""
        watch = self.watch
        watched = [
            one for one in watch.workers.values() if one.reading is not None and not one.reported
        ]
        due_s = [
            one.still.moved_s + limits.STOPPED_FLOOR_S
            for one in watched
            if one.reading is not None and one.reading.stopped
        ]
        if not watch.plain:
            overdue_s = min(
                (watch.due_s(one) for one in watched if one.is_member), default=math.inf
            )
            due_s.append(max(overdue_s, self.patient_until_s))
        elif self._silence_s is not None:
            heard_s = [one.heard_s for one in self._speaking()]
            if heard_s:
                due_s.append(max(max(heard_s) + self._silence_s, self.patient_until_s))
        return min(due_s, default=math.inf)

    # --- at each tick -----------------------------------------------------------------------------

    def look(self, *, now_s: float) -> list[Output]:
        """Begin a round of pings if some member is overdue, or judge the open round."""
        watch = self.watch
        if self._question is None and not any(
            watch.is_late(one, now_s=now_s) for one in watch.workers.values()
        ):
            return []
        reports = self._reports(watch.workers.values(), now_s)
        # A stopped process cannot answer. It need not, because the kernel reports it as stopped.
        stopped = find_stopped(members=reports)
        if stopped is not None:
            return self._report(stopped, now_s)
        members = [one for one in reports if one.rank >= 0]
        if self._question is not None:
            return self._conclude(members, now_s)
        return self._ask(members, now_s)

    def look_for_silence(self, *, now_s: float) -> list[Output]:
        """Report a plain script's workers, all together, once they have been silent too long."""
        members = self._speaking()
        patient = now_s < self.patient_until_s
        if self._silence_s is None or not self.watch.plain or not members or patient:
            return []
        heard_s = max(one.heard_s for one in members)
        if now_s - heard_s <= self._silence_s:
            return []
        if not self._only_node:  # workers on another node may have printed something
            self.patient_until_s = now_s + limits.AWAITED_LOOK_S
            read = [one for one in members if one.reading is not None]
            return [
                self._report_progress([self._member_report(one, now_s) for one in read], 0, now_s)
            ]
        verdict = HangVerdict(
            tuple(one.worker for one in members),
            f"no worker has printed anything for {self._silence_s:g} s",
        )
        for one in members:
            one.still.moved_s = heard_s
            one.due.forget()
        return self._report(verdict, now_s)

    def _speaking(self) -> list[Watched]:
        """Return the members whose scripts are not over, so that their silence counts."""
        members = self.watch.members()
        return [one for one in members if not one.reported and one.still.phase is not Phase.EXIT]

    def _reports(self, among: Iterable[Watched], now_s: float) -> list[MemberReport]:
        """Return the reports on those that were read and not reported as hung."""
        return [
            self._member_report(one, now_s)
            for one in among
            if one.reading is not None and not one.reported
        ]

    def _member_report(self, watched: Watched, now_s: float) -> MemberReport:
        pong = self._question.answers.get(watched.worker) if self._question is not None else None
        return self.watch.member_report(watched, pong, now_s=now_s)

    # --- asking -----------------------------------------------------------------------------------

    def _ask(self, members: list[MemberReport], now_s: float) -> list[Output]:
        overdue = self.watch.overdue(members) if now_s >= self.patient_until_s else {}
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
        starved = {worker: self.watch.workers[worker].still.starved_s for worker in workers}
        self._question = Question(
            self._nonce, now_s, overdue, asked_by, starved=starved, again=again
        )
        return [Deliver(worker, Ping(self._nonce)) for worker in workers]

    def on_pong(self, pong: Pong) -> None:
        """Note a worker's answer. An answer to an earlier round is ignored."""
        if self._question is not None and pong.nonce == self._question.nonce:
            self._question.answers[pong.worker] = pong

    def drop_question(self) -> None:
        """Give up the present round: a member has ended or has a new plan, so answers are void."""
        self._question = None

    def _conclude(self, members: list[MemberReport], now_s: float) -> list[Output]:
        """Judge by the answers, once all have come or the time for them is up."""
        assert self._question is not None
        still_overdue = self.watch.overdue(members)
        asked_by = self._question.asked_by
        if not still_overdue and not asked_by:  # the workers that were late have moved
            self._question = None
            return []
        if any(
            one.collectives is None and self._waited_s(one.worker, now_s) < limits.PING_DEADLINE_S
            for one in members
        ):
            return []
        if not self._only_node:  # the coordinator judges over all nodes
            self._question = None
            self.patient_until_s = now_s + 2 * limits.INQUIRY_DEADLINE_S
            return [self._report_progress(members, asked_by, now_s)]
        verdict = find_culprits(members=members, overdue=still_overdue)
        if verdict.behind and not self._question.again:  # it may move at this very moment
            workers = [member.worker for member in members]
            return self._ping(workers, still_overdue, now_s, again=True)
        self._question = None
        if verdict.awaited:
            self.patient_until_s = self._next_due_s(members, still_overdue, now_s)
            return []
        if not verdict.culprits:
            # All are slow, or all are stuck, and nothing shows which: wait longer, and ask again.
            if not self.watch.deadlines.exhausted:
                self._raise_deadlines(now_s)
                return []
            verdict = find_longest(members=members, overdue=still_overdue)
        self.watch.deadlines.forgive()
        return self._report(verdict, now_s)

    def _raise_deadlines(self, now_s: float) -> None:
        """Double the deadlines until a member here is in time again, or they cannot grow any more.

        Doubling once may not be enough: members may have been overdue for long while others were
        awaited, or the deadline of their phase may not grow. Then the next round of pings would
        follow at once, with the same result.
        """
        watch = self.watch
        members = self._reports(watch.members(), now_s)
        watch.deadlines.double()
        while not watch.deadlines.exhausted and 0 < len(members) == len(watch.overdue(members)):
            watch.deadlines.double()

    def _waited_s(self, worker: int, now_s: float) -> float:
        """Return for how long a worker has had time to answer. Time without a processor is left
        out.
        """
        assert self._question is not None
        starved_s = self.watch.workers[worker].still.starved_s
        starved_since_s = starved_s - self._question.starved.get(worker, 0.0)
        return now_s - self._question.asked_s - max(0.0, starved_since_s)

    def _next_due_s(
        self, members: list[MemberReport], overdue: Mapping[int, float], now_s: float
    ) -> float:
        """Return when to ask again: once another member is overdue, or after AWAITED_LOOK_S."""
        due_s = [now_s + limits.AWAITED_LOOK_S]
        for member in members:
            watched = self.watch.workers[member.worker]
            deadline = self.watch.deadline_of(watched)
            if member.worker not in overdue and deadline is not None:
                due_s.append(watched.still.since_s + deadline)
        return min(due_s)

    # --- with several nodes -----------------------------------------------------------------------

    def on_inquiry(self, nonce: int, *, now_s: float) -> list[Output]:
        """Ping all members for an inquiry of the coordinator, and then report where they stand."""
        if self._question is not None:  # the open round serves both
            self._question.asked_by = nonce
            return []
        members = [one.worker for one in self.watch.members() if one.reading is not None]
        return self._ping(members, {}, now_s, asked_by=nonce)

    def on_judged(self, judged: Judged, *, now_s: float) -> None:
        """Note that the coordinator has judged by the reports of all nodes."""
        if judged.outcome == "nobody":
            self._raise_deadlines(now_s)
        self.patient_until_s = now_s + judged.again_s

    def _report_progress(self, members: list[MemberReport], nonce: int, now_s: float) -> Output:
        """Report where the members stand. `nonce`: that of the inquiry; 0: it was not asked for."""
        watch = self.watch
        reported = tuple(
            ReportedMember(
                one.worker,
                one.rank,
                one.phase.value,
                one.step,
                one.age_s,
                None if watch.plain else watch.deadline_of(watch.workers[one.worker]),
                one.stopped,
                one.collectives,
                one.where,
                one.cut_off,
                one.cut_off_bytes,
            )
            for one in members
        )
        return ToCoordinator(
            ProgressReport(
                nonce,
                reported,
                self._quiet_s(now_s),
                self._silence_s or 0.0,
                watch.deadlines.exhausted,
            )
        )

    def _quiet_s(self, now_s: float) -> float | None:
        """Return for how long no worker has printed anything; None: silence does not count here."""
        heard_s = [one.heard_s for one in self.watch.members()]
        counts = self._silence_s is not None and self.watch.plain
        if not counts or not heard_s or max(heard_s) == math.inf:
            return None
        return now_s - max(heard_s)

    # --- reporting --------------------------------------------------------------------------------

    def _report(self, verdict: HangVerdict, now_s: float) -> list[Output]:
        """Tell the coordinator of each culprit, once."""
        out: list[Output] = []
        for worker in verdict.culprits:
            watched = self.watch.workers[worker]
            watched.reported = True
            deadline = self.watch.deadline_of(watched) or limits.STOPPED_FLOOR_S
            if self.watch.plain and self._silence_s is not None:
                deadline = self._silence_s
            still = watched.still
            hung = WorkerHung(
                worker, still.phase.value, still.moved_s, deadline, now_s, verdict.reason
            )
            out.append(ToCoordinator(hung))
        self._question = None
        return out
