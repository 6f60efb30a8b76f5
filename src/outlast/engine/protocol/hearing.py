"""Who hangs, where there are several nodes: one agent's question becomes everybody's, and the coordinator judges over all answers.

An agent sees its own ranks only: where they wait for a rank elsewhere they look as if they hung. So it says how they stand (`Standings`), all other
agents are asked for theirs, and the same rules as on one node (engine/hang.py) say who is to blame. Standings of several nodes are not of one moment: a
rank that one answer shows behind its peers may be level with them by the time of the other. So who is accused is looked at once more, and to blame if it
has not moved since. This module is pure.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from outlast.engine.hang import HangVerdict, Standing, find_culprits, find_longest
from outlast.engine.protocol.exits import Exits
from outlast.engine.protocol.outputs import Output, SetTimer, ToAgent
from outlast.engine.protocol.state import Stage
from outlast.engine.rare import rare
from outlast.model import limits
from outlast.model.messages import AskStandings, Judged, Standings, Stood, WorkerHung
from outlast.model.terms import Phase


@dataclass(slots=True)
class _Heard:
    """One hearing. `answers`: by node, and when it came. `accused`: by the hearing before, as they stood then, and why."""

    nonce: int
    awaited: set[str]
    answers: dict[str, tuple[float, Standings]] = field(default_factory=dict)
    accused: dict[int, Stood] = field(default_factory=dict)
    reason: str = ""


class Hearing(Exits):
    """Called by the coordinator."""

    _heard: _Heard | None = None
    _hearings = 0

    def _on_standings(self, now_s: float, node: str, message: Standings) -> list[Output]:
        out: list[Output] = []
        if self._heard is None and not message.nonce:
            out = self._hear(now_s, {member.home for member in self.roster.live()} | {node}, has_spoken=node)
        heard = self._heard
        if heard is None or message.nonce not in (0, heard.nonce):
            rare("standings that nobody waits for any more")
            return out
        heard.answers[node] = (now_s, message)
        heard.awaited.discard(node)
        return out if heard.awaited else [*out, *self._judge(now_s)]

    def _hear(self, now_s: float, homes: set[str], *, has_spoken: str = "") -> list[Output]:
        self._hearings += 1
        self._heard = _Heard(self._hearings, {home for home in homes if home in self.nodes})
        asked = [ToAgent(AskStandings(self._hearings), home) for home in sorted(self._heard.awaited - {has_spoken})]
        return [*asked, SetTimer("hearing", now_s + limits.HEARING_DEADLINE_S + limits.RANK_HEARD_S * self.options.world_size)]

    def _judge(self, now_s: float) -> list[Output]:
        """All have answered, or time is up."""
        heard, self._heard = self._heard, None
        out: list[Output] = [SetTimer("hearing", None)]
        if heard is None or self.stage not in (Stage.TRAINING, Stage.MOVING, Stage.STARTING):
            return out
        stood = [(one, now_s - at_s) for at_s, message in heard.answers.values() for one in message.members]
        verdict = _still_accused(heard, stood) if heard.accused else self._verdict_on(heard, stood)
        if verdict is None:
            return out
        if not verdict.culprits:
            judged = Judged("awaited" if verdict.awaited else "nobody")
            return [*out, *(ToAgent(judged, node) for node in sorted(heard.answers))]
        if self.roster.outlast and not heard.accused and len(heard.answers) > 1:
            return [*out, *self._look_once_more(now_s, verdict, stood)]
        for one, since_s in stood:
            member = self.roster.of(one.worker)
            if one.worker in verdict.culprits and member is not None:
                hung = WorkerHung(one.worker, one.phase, now_s - one.age_s - since_s, one.deadline_s or 0.0, now_s, verdict.reason)
                out += self._on_hung(now_s, member, hung)
        return out

    def _look_once_more(self, now_s: float, verdict: HangVerdict, stood: list[tuple[Stood, float]]) -> list[Output]:
        accused = {one.worker: one for one, _ in stood if one.worker in verdict.culprits}
        members = [member for worker in accused if (member := self.roster.of(worker)) is not None]
        out = self._hear(now_s, {member.home for member in members})
        assert self._heard is not None
        self._heard.accused, self._heard.reason = accused, verdict.reason
        return out

    def _verdict_on(self, heard: _Heard, stood: list[tuple[Stood, float]]) -> HangVerdict | None:
        if not self.roster.outlast:
            return self._silence(heard, stood)
        overdue = {one.worker: one.deadline_s for one, since_s in stood if one.deadline_s is not None and one.age_s + since_s > one.deadline_s}
        if not overdue:
            return None
        if heard.awaited:
            rare("a node says nothing of how its ranks stand")
            return HangVerdict((), "a node has not answered: it may house the one that all wait for", awaited=True)
        members = [
            Standing(one.worker, one.rank, Phase(one.phase), one.step, one.age_s + since_s, one.stopped, one.collectives, one.where, one.cut_off)
            for one, since_s in stood
        ]
        verdict = find_culprits(members=members, overdue=overdue)
        if not verdict.culprits and not verdict.awaited and any(message.exhausted for _, message in heard.answers.values()):
            return find_longest(members=members, overdue=overdue)
        return verdict

    def _silence(self, heard: _Heard, stood: list[tuple[Stood, float]]) -> HangVerdict | None:
        """Of a plain script, all ranks are hung once none of them, on any node, has printed anything for so long."""
        said = [message for _, message in heard.answers.values()]
        if heard.awaited or any(message.quiet_s is None or message.quiet_s <= message.silence_s for message in said):
            return None
        return HangVerdict(tuple(one.worker for one, _ in stood), f"no worker has printed anything for {said[0].silence_s:g} s")


def _still_accused(heard: _Heard, stood: list[tuple[Stood, float]]) -> HangVerdict:
    """Those of the accused that have not moved. Nobody, if one of them has: then it was no hang that all wait for."""
    still = {one.worker: one for one, _ in stood if one.worker in heard.accused and not _has_moved(heard.accused[one.worker], one)}
    if any(one.cut_off for one, _ in stood):
        rare("one that was accused cannot reach others")
        return HangVerdict((), "one that was accused cannot reach others", awaited=True)
    if len(still) < len(heard.accused):
        rare("one that was accused has moved")
        return HangVerdict((), "one that was accused has moved", awaited=True)
    return HangVerdict(tuple(still), heard.reason)


def _has_moved(before: Stood, now: Stood) -> bool:
    return (before.phase, before.step, before.collectives) != (now.phase, now.step, now.collectives) or now.age_s < before.age_s
