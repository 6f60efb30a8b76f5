"""What the policy makes of a verdict: once it has come the run has gone on, and whatever is done now undoes no commit.

    exclude   the node is barred: it is given no rank, spare or store any more; what lives there stays until it is lost
    drain     it is barred, and once another step is committed all stand still, its ranks are given up and come up elsewhere, as if the node were lost: an
              interruption that the run makes itself, which no budget of recovery pays for
    shrink    not yet: a drain that waits for a node with room; if none comes the run stops
    stop      as a signal does: the step in flight is committed first
    page      a line for those who watch, and the event in the ledger

A node is barred only while the others have room for all ranks; until then it waits for one. Ranks are not moved where that would undo something: state with
one owner for each shard lies on its node, so such ranks come up again where they were as long as the node lives; a script without outlast calls begins again
from the top. There a drain is an exclusion.

This module is pure.
"""

from __future__ import annotations

import typing
from dataclasses import dataclass, field, replace

from outlast.engine.coordinator.members import Member
from outlast.engine.policy import ActionVerdict, Past, blame, decide_action, past_from
from outlast.engine.protocol.housing import Housing
from outlast.engine.protocol.outputs import Output, Record, SetTimer, Tell, ToAgent
from outlast.engine.protocol.state import CoordinatorOptions, Stage
from outlast.engine.rare import rare
from outlast.engine.symptoms import exit_codes
from outlast.model import limits
from outlast.model.messages import Enrol, KillWorker
from outlast.model.policy import DISRUPTIVE, MOVING, OF_NODES, Action
from outlast.model.records import Event
from outlast.model.terms import Mechanism
from outlast.model.verdict import Verdict

DECIDED, BARRED, DRAINING, DEPARTED, STOPPED = "policy", "node_barred", "node_draining", "node_departed", "policy_stopped"  # events
PAST_KEPT_COUNT = 256  # before those that change no decision any more are forgotten
FAILED_EXIT = 1


@dataclass(frozen=True, slots=True)
class Departure:
    """A node that is to be taken out. `after_step`: the newest step that was committed when that was decided, or tried last. `until_s`: a shrink that finds no
    room ends the run then; None: it has all the time. `tries`: so often it may still be tried to move its ranks.
    """

    action: Action
    reason: str
    after_step: int
    until_s: float | None = None
    tries: int = limits.DRAIN_TRIES_COUNT


@dataclass(slots=True)
class Acted:
    """What the ledger tells a coordinator that comes after another: all decisions, the nodes that are barred, those that are to be emptied still, and
    the interruptions that the policy made itself. Times are taken as readings of the same clock.
    """

    past: list[Past] = field(default_factory=list)
    barred: set[str] = field(default_factory=set)
    departures: dict[str, Departure] = field(default_factory=dict)
    own: set[int] = field(default_factory=set)

    def take(self, event: Event) -> None:
        """In the order in which they were written."""
        if event.kind == DECIDED:
            past = past_from(event.data, at_s=event.at_s)
            self.past.append(past)
            if past.action in OF_NODES and not past.dry_run:
                self._depart(past, str(event.data["reason"]), typing.cast(int, event.data["step"]))
        elif event.kind == BARRED:
            self.barred.add(str(event.data["node"]))
        elif event.kind == DRAINING:
            self.own.add(typing.cast(int, event.data["interruption"]))
        elif event.kind == DEPARTED:
            self.departures.pop(str(event.data["node"]), None)

    def _depart(self, past: Past, reason: str, step: int) -> None:
        until_s = past.at_s + limits.NODE_WAIT_S if past.action is Action.SHRINK else None
        self.departures |= {node: Departure(past.action, reason, step, until_s) for node in past.nodes}


class Acting(Housing):
    """Called by whoever has diagnosed: `on_verdict`."""

    def __init__(self, *, options: CoordinatorOptions) -> None:
        super().__init__(options=options)
        self._acted = Acted()
        self._next_look_s = 0.0  # for room, unless something changes before

    def on_verdict(self, *, now_s: float, interruption: int, verdict: Verdict) -> list[Output]:
        """An interruption of this run has a verdict. Of one that the policy made itself nothing is made; of a run that is over it is only said."""
        known = self.interruptions.known.get(interruption)
        if known is None or interruption in self._acted.own:
            rare("a verdict of nothing that the policy looks at")
            return []
        named = blame(verdict, home_of=lambda rank: self.lived.at(rank, known.generation), node_of=self._node_named)
        decided = decide_action(
            now_s=now_s, verdict=verdict, history=self._acted.past, policy=self.options.policy, outage=known.outage, blamed=named,
            codes=tuple(exit_codes((known.reason,))),
        )  # fmt: skip
        said = {"interruption": interruption, "outage": known.outage, "step": self.step, "class": verdict.failure_class.value}
        event = self.event(now_s, DECIDED, decided.facts() | said)
        self._acted.take(event)
        self._forget(now_s)
        out: list[Output] = [Record(event, at_once=not self.nodes.local)]
        if decided.action is not Action.RETRY:
            out.append(Tell(f"{'page: ' if decided.action is Action.PAGE else ''}interruption {interruption}: {decided.reason}"))
        goes_on = self.stage not in (Stage.STOPPING, Stage.ENDED)
        return [*out, *self._act(now_s, decided)] if decided.acts and goes_on else out

    def _node_named(self, name: str) -> str:
        """Evidence calls a node by its agent's name, or by its own, with or without its domain; "" where no node, or several, may be meant."""
        names = {node: node for node in (*self.roster.homes.values(), *self.nodes.room(()))}
        names |= {member.node: member.home for member in self.roster.members() if member.node}
        if name in names:
            return names[name]
        short = {home for known, home in names.items() if known.partition(".")[0] == name.partition(".")[0]}
        return short.pop() if len(short) == 1 else ""

    def _forget(self, now_s: float) -> None:
        past = self._acted.past
        if len(past) > PAST_KEPT_COUNT:
            since_s = now_s - self.options.policy.memory_s
            self._acted.past = [one for one in past if one.at_s > since_s or (one.action in DISRUPTIVE and not one.dry_run)]

    # --- acting ----------------------------------------------------------------------------------------------

    def _act(self, now_s: float, decided: ActionVerdict) -> list[Output]:
        if decided.action is Action.STOP:
            return self._stop_for(now_s, decided.reason)
        if decided.action is Action.SHRINK:
            rare("a run is to shrink")
            return [SetTimer("policy", self._next_s()), *self._look_at_departures(now_s)]
        return self._look_at_departures(now_s) if decided.action in OF_NODES else []

    def _stop_for(self, now_s: float, reason: str) -> list[Output]:
        if self._end is not None:
            rare("the policy stops a run that ends already")
            return []
        rare("the policy stops a run")
        event = Record(self.event(now_s, STOPPED, {"reason": reason}), at_once=not self.nodes.local)
        return [event, *self.ask_stop(now_s=now_s, reason=reason, exit_code=FAILED_EXIT)]

    def _next_s(self) -> float | None:
        waits = [one.until_s for node, one in self._acted.departures.items() if one.until_s is not None and node not in self.nodes.barred]
        return min(waits, default=None)

    def _on_policy_timer(self, now_s: float) -> list[Output]:
        """A run that was to shrink has waited for a node in place of the one that it was to give up."""
        for node, departure in self._acted.departures.items():
            if departure.until_s is not None and departure.until_s <= now_s and node not in self.nodes.barred:
                return self._stop_for(now_s, f"no node with room in place of {node} in {limits.NODE_WAIT_S:g} s; {departure.reason}")
        return [SetTimer("policy", next_s)] if (next_s := self._next_s()) is not None else []

    def node_joined(self, *, now_s: float, enrol: Enrol, by_s: float) -> list[Output]:
        out = super().node_joined(now_s=now_s, enrol=enrol, by_s=by_s)
        return [*out, *self._look_at_departures(now_s)]

    def _look_at_departures(self, now_s: float, *, changed: bool = True) -> list[Output]:
        """What can be done now: after each step, when a node comes, and when something is decided. What was in vain is not tried again at once, unless
        something has `changed`.
        """
        out: list[Output] = []
        if self.stage in (Stage.STOPPING, Stage.ENDED, Stage.REBUILDING) or (not changed and now_s < self._next_look_s):
            return out
        for node, departure in list(self._acted.departures.items()):
            if node not in self.nodes.barred and self._is_room_without(node):
                out += self._bar(now_s, node, departure)
            if node not in self.nodes.barred:
                self._next_look_s = now_s + limits.SILENT_LOOK_S
            elif departure.action not in MOVING:
                out += self._departed(now_s, node, self._who_live(node))
            elif self._may_move(node, departure):
                out += self._move_away(now_s, node, departure)
        return out

    @property
    def departs_soon(self) -> bool:
        """A node is left with the next step, or as soon as it is looked at again."""
        moves = self.roster.outlast and not self.roster.sharded
        return any(moves if node in self.nodes.barred else self._is_room_without(node) for node in self._acted.departures)

    def _who_live(self, node: str) -> list[Member]:
        return [member for member in self.roster.live() if member.home == node]

    def _departed(self, now_s: float, node: str, left: list[Member]) -> list[Output]:
        """All is done for it that will be."""
        del self._acted.departures[node]
        return [Record(self.event(now_s, DEPARTED, {"node": node, "left": sorted(member.rank for member in left)}), at_once=not self.nodes.local)]

    def _is_room_without(self, node: str) -> bool:
        """The others, as far as they can be heard, have room for all ranks: the policy brings no run to a standstill."""
        others = [room for other, room in self.nodes.room(()).items() if other != node and other not in self.nodes.silent]
        if sum(others) < self.options.world_size:
            rare("a node that is to be taken out is needed")
            return False
        return True

    def _bar(self, now_s: float, node: str, departure: Departure) -> list[Output]:
        rare("a node is barred")
        self.nodes.barred.add(node)
        out: list[Output] = [Record(self.event(now_s, BARRED, {"node": node, "reason": departure.reason}), at_once=True)]
        out.append(Tell(f"node {node} is given no more work{self._what_stays(departure)}"))
        for spare in self.roster.spares():
            if spare.home == node and not spare.condemned:
                rare("a spare on a node that is barred")
                spare.condemned = True
                out.append(ToAgent(KillWorker(spare.worker, f"node {node} is barred"), node))
        return out

    def _what_stays(self, departure: Departure) -> str:
        if departure.action not in MOVING:
            return "; what is there stays"
        if self.roster.sharded:
            return "; what is there stays until it is lost: its state has no other owner"
        return "; its ranks move away after the step in flight" if self.roster.outlast else "; a script without outlast calls is not begun again for it"

    # --- moving away -----------------------------------------------------------------------------------------

    def _may_move(self, node: str, departure: Departure) -> bool:
        """Training is under way, and another step is committed. Who hears nobody cannot be moved."""
        if self.stage is not Stage.TRAINING or self.interruptions.open or self._end is not None or self.step <= departure.after_step:
            return False
        return self.roster.outlast and not self.roster.sharded and node not in self.nodes.silent and not self.nodes.returning

    def _move_away(self, now_s: float, node: str, departure: Departure) -> list[Output]:
        there = self._who_live(node)
        if not there or not departure.tries:
            return self._departed(now_s, node, there)
        over = self.roster.first("finished", lambda m: m.finished or m.done) is not None
        if over or len(there) == self.options.world_size or not self._fits_elsewhere(frozenset(member.rank for member in there)):
            self._next_look_s = now_s + limits.SILENT_LOOK_S
            return []
        return self._empty(now_s, node, there, departure)

    def _empty(self, now_s: float, node: str, there: list[Member], departure: Departure) -> list[Output]:
        """A regroup in which its ranks are given up. They are killed only once all others stand still and one of them has all that is to be gone on from; if
        anything else has happened by then, that is dealt with first, and the drain is tried again.
        """
        rare("a node is drained")
        self._acted.departures[node] = replace(departure, after_step=self.step, tries=departure.tries - 1)
        reason = f"node {node} is drained: {departure.reason}"
        for index, member in enumerate(there):
            self.interruptions.fault(
                rank=member.rank, pid=0, node=member.node, mechanism=Mechanism.LOST_NODE, generation=self.generation, step=self.step, fault_s=now_s,
                fault_not_before_s=None, detected_s=now_s, same_event=index > 0, error="", traceback="", reason=reason,
            )  # fmt: skip
        own = self.interruptions.open[-1].id
        self._acted.own.add(own)
        self._fault_s = self._detected_s = now_s
        self._drained = frozenset(member.rank for member in there)
        begun = Record(self.event(now_s, DRAINING, {"node": node, "ranks": sorted(self._drained), "interruption": own}), at_once=True)
        out: list[Output] = [begun, *self._records(), Tell(reason)]
        if self._store_home == node:
            rare("the store moves off a node that is drained")
            self._store = None
            out += self._ask_store(now_s, reason)
        return [*out, *self._gather(now_s, limits.COMPANION_WAIT_S)]

    # --- after another coordinator ---------------------------------------------------------------------------

    def recall(self, acted: Acted) -> None:
        """Before `rebuild`. What waited for a step waits for another one."""
        self._acted = replace(acted)
        self.nodes.barred |= acted.barred

    def _rearm(self) -> list[Output]:
        next_s = self._next_s()
        return [] if next_s is None else [SetTimer("policy", next_s)]
