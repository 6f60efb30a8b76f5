"""Find ranks that hang, in a run on several nodes, by the reports of all agents.

An agent sees its own ranks only. Ranks that wait for a rank on another node look as if they hung.
So the agent reports how far its ranks are (`ProgressReport`), and all other agents are asked for
their reports. The same rules as on one node (engine/hang.py) then find the culprit.

The reports of several nodes are not made at the same moment. A rank that one report shows behind
its peers may have caught up by the time of the next report. Even within one report, the ranks may
just be moving on, one after the other. So the accused ranks are asked once more. They are to blame
if they have not moved since.

This module is pure.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from outlast.engine.coordinator.fault_reports import FaultReports
from outlast.engine.coordinator.run_parts import RunParts
from outlast.engine.coordinator.stages import IN_A_GENERATION, Timer, cancel, set_timer
from outlast.engine.coordinator.stalled_links import StalledLinks
from outlast.engine.hang import HangVerdict, MemberReport, find_culprits, find_longest
from outlast.engine.protocol.outputs import Output, ToAgent
from outlast.model import limits
from outlast.model.messages import (
    AskProgressReport,
    Judged,
    ProgressReport,
    ReportedMember,
    WorkerHung,
)
from outlast.model.terms import Phase


@dataclass(slots=True)
class Inquiry:
    """One question to all nodes.

    nonce      tells the answers to this question from those to earlier ones
    awaited    nodes that have not answered
    reports    by node: when its answer came, and what it said
    accused    workers that the inquiry before accused, as they stood then
    reason     why they were accused
    """

    nonce: int
    awaited: set[str]
    reports: dict[str, tuple[float, ProgressReport]] = field(default_factory=dict)
    accused: dict[int, ReportedMember] = field(default_factory=dict)
    reason: str = ""


class HangInquiry:
    """Ask all nodes for the places of their ranks, and judge the answers.

    If no rank is to blame, a link may be: `links` looks at what ranks report of them.
    """

    def __init__(self, run: RunParts, reports: FaultReports, links: StalledLinks) -> None:
        self.run = run
        self.reports = reports
        self.links = links
        self._open: Inquiry | None = None
        self._asked = 0  # inquiries so far

    def on_report(self, now_s: float, node: str, message: ProgressReport) -> list[Output]:
        """Handle an agent's report: an answer to an inquiry, or (nonce 0) a reason to begin one."""
        out: list[Output] = []
        if self._open is None and not message.nonce:
            homes = {member.home for member in self.run.roster.live()} | {node}
            out = self._ask(now_s, homes, has_spoken=node)
        inquiry = self._open
        if inquiry is None or message.nonce not in (0, inquiry.nonce):
            # This answer belongs to an earlier inquiry.
            return out
        inquiry.reports[node] = (now_s, message)
        inquiry.awaited.discard(node)
        return out if inquiry.awaited else [*out, *self.judge(now_s)]

    def _ask(
        self,
        now_s: float,
        homes: set[str],
        *,
        has_spoken: str = "",
        accused: dict[int, ReportedMember] | None = None,
        reason: str = "",
    ) -> list[Output]:
        """Begin an inquiry: ask the agents of `homes`, except `has_spoken`, which has reported."""
        self._asked += 1
        awaited = {home for home in homes if home in self.run.nodes}
        self._open = Inquiry(self._asked, awaited, accused=accused or {}, reason=reason)
        order = AskProgressReport(self._asked)
        asked = [ToAgent(order, home) for home in sorted(awaited - {has_spoken})]
        heard_s = limits.RANK_HEARD_S * self.run.options.world_size
        return [*asked, set_timer(Timer.INQUIRY, now_s + limits.INQUIRY_DEADLINE_S + heard_s)]

    def judge(self, now_s: float) -> list[Output]:
        """Decide which ranks hang, and give them up: all agents have answered, or time is up."""
        run = self.run
        inquiry, self._open = self._open, None
        out: list[Output] = [cancel(Timer.INQUIRY)]
        if inquiry is None or not run.lifecycle.is_in(*IN_A_GENERATION):
            return out
        reported = [
            (one, now_s - at_s)
            for at_s, message in inquiry.reports.values()
            for one in message.members
        ]
        if inquiry.accused:
            verdict: HangVerdict | None = judge_accused(inquiry, reported)
        elif run.roster.outlast:
            verdict = judge_overdue(inquiry, reported)
        else:
            verdict = judge_silence(inquiry, reported)
        if verdict is None:
            return out
        if not verdict.culprits:
            judged = Judged("nobody")
            if verdict.awaited:
                judged = Judged("awaited", again_s(reported, all_spoke=not inquiry.awaited))
            members = [one for one, _ in reported]
            told = self.links.look(now_s, members)
            return [*out, *told, *(ToAgent(judged, node) for node in sorted(inquiry.reports))]
        if run.roster.outlast and not inquiry.accused:
            return [*out, *self._look_once_more(now_s, verdict, reported)]
        return [*out, *self._give_up(now_s, verdict, reported)]

    def _look_once_more(
        self, now_s: float, verdict: HangVerdict, reported: list[tuple[ReportedMember, float]]
    ) -> list[Output]:
        """Ask the nodes of the accused ranks again, because a rank may have moved on just now."""
        accused = {one.worker: one for one, _ in reported if one.worker in verdict.culprits}
        homes = {member.home for member in self.run.roster.those(accused)}
        return self._ask(now_s, homes, accused=accused, reason=verdict.reason)

    def _give_up(
        self, now_s: float, verdict: HangVerdict, reported: list[tuple[ReportedMember, float]]
    ) -> list[Output]:
        out: list[Output] = []
        for one, since_s in reported:
            member = self.run.roster.of(one.worker)
            if one.worker in verdict.culprits and member is not None:
                last_s, deadline_s = now_s - one.age_s - since_s, one.deadline_s or 0.0
                hung = WorkerHung(one.worker, one.phase, last_s, deadline_s, now_s, verdict.reason)
                out += self.reports.on_hung(now_s, member, hung)
        return out


def judge_overdue(
    inquiry: Inquiry, reported: list[tuple[ReportedMember, float]]
) -> HangVerdict | None:
    """Decide which overdue ranks keep the others waiting; None: no rank is overdue.

    reported   each member's report, and how many seconds old it is
    """
    overdue = {
        one.worker: one.deadline_s
        for one, since_s in reported
        if one.deadline_s is not None and one.age_s + since_s > one.deadline_s
    }
    if not overdue:
        return None
    if inquiry.awaited:
        # A node that has not answered may house the rank that all wait for.
        why = "a node has not answered: it may house the one that all wait for"
        return HangVerdict((), why, awaited=True)
    members = [
        MemberReport(
            one.worker,
            one.rank,
            Phase(one.phase),
            one.step,
            one.age_s + since_s,
            one.stopped,
            one.collectives,
            one.where,
            one.cut_off,
            one.cut_off_bytes,
        )
        for one, since_s in reported
    ]
    verdict = find_culprits(members=members, overdue=overdue)
    # Deadlines grow on each node by themselves. Where they still grow, ranks may yet be in time.
    exhausted = all(message.exhausted for _, message in inquiry.reports.values() if message.members)
    if not verdict.culprits and not verdict.awaited and exhausted:
        return find_longest(members=members, overdue=overdue)
    return verdict


def again_s(reported: list[tuple[ReportedMember, float]], *, all_spoke: bool) -> float:
    """Return after how many seconds the agents look again: once another rank is overdue.

    reported    each member's report, and how many seconds old it is
    all_spoke   False: a node has not answered, so the agents look again soon
    """
    left_s = [
        one.deadline_s - one.age_s - since_s
        for one, since_s in reported
        if one.deadline_s is not None and one.age_s + since_s <= one.deadline_s
    ]
    longest_s = limits.AWAITED_LOOK_S if all_spoke else 2 * limits.INQUIRY_DEADLINE_S
    return max(min([*left_s, longest_s]), limits.LATE_TICK_S)


def judge_silence(
    inquiry: Inquiry, reported: list[tuple[ReportedMember, float]]
) -> HangVerdict | None:
    """Decide whether the workers of a plain script hang; None: they do not, or it is not known.

    All of them count as hung once none of them, on any node, has printed anything for `silence_s`.
    """
    said = [message for _, message in inquiry.reports.values()]
    if inquiry.awaited or any(one.quiet_s is None or one.quiet_s <= one.silence_s for one in said):
        return None
    workers = tuple(one.worker for one, _ in reported)
    return HangVerdict(workers, f"no worker has printed anything for {said[0].silence_s:g} s")


def judge_accused(inquiry: Inquiry, reported: list[tuple[ReportedMember, float]]) -> HangVerdict:
    """Judge the workers that an earlier inquiry has accused, by a second report.

    They hang if none of them has moved since. If one has, the accusation was too early, and no rank
    is blamed.
    """
    accused = inquiry.accused
    still = {
        one.worker: one
        for one, _ in reported
        if one.worker in accused and not _has_moved(accused[one.worker], one)
    }
    if any(one.cut_off for one, _ in reported):
        # A rank behind a cut link cannot go on, and is not to blame.
        return HangVerdict((), "one that was accused cannot reach others", awaited=True)
    if len(still) < len(accused):
        # A rank that has moved since was only late.
        return HangVerdict((), "one that was accused has moved", awaited=True)
    return HangVerdict(tuple(still), inquiry.reason)


def _has_moved(before: ReportedMember, now: ReportedMember) -> bool:
    there = before.phase, before.step, before.collectives
    return there != (now.phase, now.step, now.collectives) or now.age_s < before.age_s
