"""Carry out what the policy decides about a verdict. By then the run has recovered and trains on.

    exclude   the node is barred: it gets no rank, spare or store any more. The processes on it stay
              until they are lost
    drain     the node is barred. After the next committed step all ranks stand still, and those of
              the node are given up and start elsewhere, as if the node were lost. The run has made
              this interruption itself, so no budget is charged
    shrink    not supported yet: it is a drain that waits for a node with room. If none comes within
              NODE_WAIT_S, the run stops
    stop      end the run, as a signal does: the step in flight is committed first
    page      show a line to the people who watch, and write an event to the ledger

A node is barred only if the other nodes have room for all ranks. Otherwise it waits for room.

Sharded state lies on the node of its owner. There all ranks first seal an image after each step,
and the images of the ranks move to another node before these are given up; see node_drain.py.

A drain is only an exclusion for a script without outlast calls, which would begin again from its
top.

This module is pure.
"""

from __future__ import annotations

import typing
from dataclasses import dataclass, field, replace

from outlast.engine.coordinator.barring import BARRED, bar
from outlast.engine.coordinator.member import Member
from outlast.engine.coordinator.node_drain import carried_until_s
from outlast.engine.coordinator.regroup import RegroupMachine
from outlast.engine.coordinator.run_parts import RunParts
from outlast.engine.coordinator.stages import Stage, Timer, cancel, set_timer
from outlast.engine.coordinator.stop import StopRequest
from outlast.engine.policy import ActionVerdict, Past, blame, decide_action, past_from
from outlast.engine.protocol.outputs import Output, Record, Tell, ToAgent
from outlast.engine.symptoms import exit_codes
from outlast.model import limits
from outlast.model.drain_words import drain_reason
from outlast.model.messages import Dismiss, SealEach
from outlast.model.policy import DISRUPTIVE, MOVING, OF_NODES, Action
from outlast.model.records import DRAINING, Event
from outlast.model.terms import FailureClass, Mechanism
from outlast.model.verdict import Verdict

# events
DECIDED, UNBARRED, DEPARTED, STOPPED, REQUESTED = (
    "policy",
    "node_unbarred",
    "node_departed",
    "policy_stopped",
    "request",  # a person asks for something
)
PAST_KEPT_COUNT = 256  # with more decisions, those that no longer matter are forgotten
FAILED_EXIT = 1


@dataclass(frozen=True, slots=True)
class Departure:
    """A node that is to be taken out of the run.

    after_step   the newest committed step when that was decided, or was tried last
    tries        how often moving its ranks may still be tried
    dismisses    its launcher is told to end once no rank is left on the node
    until_s      when a shrink that finds no room ends the run; None: never
    notice_s     when its launcher was told that the node will be taken away; None: it was not
    asked        True: a person or a notice asked for it; False: the policy decided it
    """

    action: Action
    reason: str
    after_step: int
    until_s: float | None = None
    tries: int = limits.DRAIN_TRIES_COUNT
    dismisses: bool = False
    notice_s: float | None = None
    asked: bool = False

    @property
    def empty_by_s(self) -> float | None:
        """Return until when ranks of sharded state have to have left the node; None: no limit."""
        return None if self.notice_s is None else self.notice_s + limits.NOTICE_DRAIN_S


@dataclass(slots=True)
class PolicyHistory:
    """The decisions and actions of the policy. A new coordinator rebuilds them from the ledger.

    past         the decisions, oldest first
    barred       nodes that get no more work
    departures   nodes that are still to be taken out
    own          the ids of interruptions that the policy has made itself
    dismissed    nodes whose launchers were told to end
    """

    past: list[Past] = field(default_factory=list)
    barred: set[str] = field(default_factory=set)
    departures: dict[str, Departure] = field(default_factory=dict)
    own: set[int] = field(default_factory=set)
    dismissed: set[str] = field(default_factory=set)

    def take(self, event: Event) -> None:
        """Apply one event of the ledger. Call it for each event, in their order."""
        if event.kind == DECIDED:
            past = past_from(event.data, at_s=event.at_s)
            self.past.append(past)
            if past.action in OF_NODES and not past.dry_run:
                self._depart(past, str(event.data["reason"]), typing.cast(int, event.data["step"]))
        elif event.kind == REQUESTED:
            self._ask(event)
        elif event.kind == BARRED:
            self.barred.add(str(event.data["node"]))
        elif event.kind == UNBARRED:
            self.barred.discard(str(event.data["node"]))
            self.dismissed.discard(str(event.data["node"]))
            self.departures.pop(str(event.data["node"]), None)
        elif event.kind == DRAINING:
            self.own.add(typing.cast(int, event.data["interruption"]))
        elif event.kind == DEPARTED:
            self.departures.pop(str(event.data["node"]), None)
            if event.data.get("dismissed"):
                self.dismissed.add(str(event.data["node"]))

    def _ask(self, event: Event) -> None:
        """Note that a person asked for a drain."""
        if event.data["what"] == "drain" and not event.data.get("refused"):
            why, step = f"asked for by {event.data['by']}", typing.cast(int, event.data["step"])
            reason = f"{why}: {event.data['reason']}" if event.data["reason"] else why
            is_notice = typing.cast(int, event.data["number"]) < 0
            self.departures[str(event.data["node"])] = Departure(
                Action.DRAIN,
                reason,
                step,
                dismisses=True,
                notice_s=event.at_s if is_notice else None,
                asked=True,
            )

    def forget(self, *, since_s: float) -> None:
        """Forget decisions from before `since_s`, except those that a budget counts for ever."""
        self.past = [
            one
            for one in self.past
            if one.at_s > since_s or (one.action in DISRUPTIVE and not one.dry_run)
        ]

    def _depart(self, past: Past, reason: str, step: int) -> None:
        until_s = past.at_s + limits.NODE_WAIT_S if past.action is Action.SHRINK else None
        self.departures |= {
            node: Departure(past.action, reason, step, until_s) for node in past.nodes
        }


class PolicyActions:
    """Ask the policy about each verdict, and carry out what it decides.

    The coordinator makes one for the whole run, and calls it when an interruption was diagnosed:

        outputs = policy.on_verdict(now_s=now_s, interruption=1, verdict=verdict)
        outputs = policy.look_at_departures(now_s)    # after each step, and when a node comes

    A decision that cannot be carried out at once is kept as a `Departure`. It is tried again after
    a step, when a node joins, and when its timer is due. `recover` and `rearm` continue the
    decisions of a coordinator before this one, from the ledger.

    A departure may never be carried out: the policy takes no node out if the run would then lack
    room.
    """

    def __init__(self, run: RunParts, stop: StopRequest, regroup: RegroupMachine) -> None:
        self.run = run
        self.stop = stop
        self.regroup = regroup
        self.rules = run.options.policy
        self.history = PolicyHistory()
        self._next_look_s = 0.0  # for room, unless something changes before
        self._asked_in = -1  # the generation in which ranks were asked to seal after each step

    def on_verdict(self, *, now_s: float, interruption: int, verdict: Verdict) -> list[Output]:
        """Decide what is done about a diagnosed interruption, and begin to do it.

        Nothing is done about an interruption that the policy has made itself. If the run is over,
        the decision is only recorded.
        """
        run = self.run
        known = run.interruptions.known.get(interruption)
        if known is None or interruption in self.history.own:
            # The interruption is unknown (too old), or the policy has made it itself.
            return []
        named = blame(
            verdict,
            home_of=lambda rank: run.history.at(rank, known.generation),
            node_of=self._node_named,
        )
        decided = decide_action(
            now_s=now_s,
            verdict=verdict,
            history=self.history.past,
            policy=self.rules,
            outage=known.outage,
            blamed=named,
            codes=tuple(exit_codes((known.reason,))),
        )
        facts = {
            "interruption": interruption,
            "outage": known.outage,
            "step": run.progress.step,
            "class": verdict.failure_class.value,
        }
        event = Event(now_s, 0.0, DECIDED, decided.facts() | facts)
        self.history.take(event)
        self._forget(now_s)
        out: list[Output] = [Record(event, at_once=run.at_once)]
        if decided.action is not Action.RETRY:
            page = "page: " if decided.action is Action.PAGE else ""
            out.append(Tell(f"{page}interruption {interruption}: {decided.reason}"))
        goes_on = not run.lifecycle.is_in(Stage.STOPPING, Stage.ENDED)
        return [*out, *self._act(now_s, decided)] if decided.acts and goes_on else out

    def _node_named(self, name: str) -> str:
        """Return the node that evidence calls `name`; "": none fits, or several do.

        Evidence names a node as its agent does, or by its host name, with or without the domain.
        """
        roster = self.run.roster
        nodes = (*roster.homes.values(), *self.run.nodes.room(()))
        names = {node: node for node in nodes}
        names |= {
            member.process.host: member.home for member in roster.members() if member.process.host
        }
        if name in names:
            return names[name]
        host = name.partition(".")[0]
        short = {home for known, home in names.items() if known.partition(".")[0] == host}
        return short.pop() if len(short) == 1 else ""

    def _forget(self, now_s: float) -> None:
        """Forget decisions that no later decision depends on."""
        if len(self.history.past) > PAST_KEPT_COUNT:
            self.history.forget(since_s=now_s - self.rules.memory_s)

    # --- acting --------------------------------------------------------------------------------

    def _act(self, now_s: float, decided: ActionVerdict) -> list[Output]:
        if decided.action is Action.STOP:
            return self._stop_for(now_s, decided.reason)
        if decided.action is Action.SHRINK:
            # The drain waits for a node with room; until then the run has a deadline.
            return [*self._wait_again(), *self.look_at_departures(now_s)]
        return self.look_at_departures(now_s) if decided.action in OF_NODES else []

    def _stop_for(self, now_s: float, reason: str) -> list[Output]:
        if self.stop.end is not None:
            # The run ends already.
            return []
        # The event is written down first: the next coordinator has to know it.
        event = self.run.noted(now_s, STOPPED, {"reason": reason})
        return [event, *self.stop.ask(now_s=now_s, reason=reason, exit_code=FAILED_EXIT)]

    def _next_s(self) -> float | None:
        """Return when the run ends unless a node comes, or None if it waits for none."""
        waits = [
            one.until_s
            for node, one in self.history.departures.items()
            if one.until_s is not None and node not in self.run.nodes.barred
        ]
        return min(waits, default=None)

    def _wait_again(self) -> list[Output]:
        next_s = self._next_s()
        return [cancel(Timer.POLICY) if next_s is None else set_timer(Timer.POLICY, next_s)]

    def on_timer(self, now_s: float) -> list[Output]:
        """End a run that was to shrink: no other node came in time."""
        for node, departure in self.history.departures.items():
            until_s = departure.until_s
            if until_s is not None and until_s <= now_s and node not in self.run.nodes.barred:
                waited = f"no node with room in place of {node} in {limits.NODE_WAIT_S:g} s"
                return self._stop_for(now_s, f"{waited}; {departure.reason}")
        return self.rearm()

    def look_at_departures(self, now_s: float, *, changed: bool = True) -> list[Output]:
        """Do what can be done now for nodes that are to be taken out.

        It is called after each step, when a node joins, and after each decision. A try that failed
        is not repeated at once, unless something has `changed`.
        """
        out: list[Output] = []
        if self.run.lifecycle.is_in(Stage.STOPPING, Stage.ENDED, Stage.REBUILDING):
            return out
        if not changed and now_s < self._next_look_s:
            return out
        barred = self.run.nodes.barred
        for node, departure in list(self.history.departures.items()):
            if node not in barred and self.is_room_without(node):
                out += self._bar(now_s, node, departure)
            if node not in barred:
                self._next_look_s = now_s + limits.SILENT_LOOK_S
            elif departure.action not in MOVING or self._is_too_late(now_s, departure):
                out += self._departed(now_s, node, self._who_live(node))
            elif self._may_move(node, departure):
                out += self._move_away(now_s, node, departure)
            else:
                out += self._ask_to_seal(node)
        return out

    @property
    def departs_soon(self) -> bool:
        """Return True if a node will be taken out after the next step, or at the next look."""
        moves = self.run.roster.outlast
        barred = self.run.nodes.barred
        return any(
            moves if node in barred else self.is_room_without(node)
            for node in self.history.departures
        )

    # --- what people ask for (requests.py) -----------------------------------------------------

    def is_given_up(self, node: str) -> bool:
        """Return True if `node` gets no more work, now or soon."""
        return node in self.run.nodes.barred or node in self.history.departures

    def departs(self, node: str) -> bool:
        """Return True while something is still to be done for a node that is given up."""
        return node in self.history.departures

    def cordon(self, now_s: float, node: str, reason: str) -> list[Output]:
        """Give `node` no more work. The processes that run there stay."""
        if node in self.run.nodes.barred:
            return []
        return self._bar(now_s, node, Departure(Action.EXCLUDE, reason, self.run.progress.step))

    def uncordon(self, now_s: float, node: str, reason: str) -> list[Output]:
        """Give `node` work again."""
        self.history.departures.pop(node, None)
        self.run.nodes.unbar(node)
        data: dict[str, object] = {"node": node, "reason": reason}
        return [
            Record(Event(now_s, 0.0, UNBARRED, data), at_once=True),
            Tell(f"node {node} is given work again, {reason}"),
            set_timer(Timer.SPARES, now_s + limits.SPARE_REFILL_DELAY_S),
        ]

    def depart(self, now_s: float, node: str, reason: str, *, dismisses: bool) -> list[Output]:
        """Begin to drain `node`. `dismisses`: its launcher is told to end then."""
        step = self.run.progress.step
        self.history.departures[node] = Departure(
            Action.DRAIN, reason, step, dismisses=dismisses, asked=True
        )
        return self.look_at_departures(now_s)

    def _who_live(self, node: str) -> list[Member]:
        return [member for member in self.run.roster.live() if member.home == node]

    def _departed(self, now_s: float, node: str, left: list[Member]) -> list[Output]:
        """Write down that the departure of `node` is over. `left`: members that stay there."""
        departure = self.history.departures.pop(node)
        dismissed = departure.dismisses and not left and node in self.run.nodes
        data: dict[str, object] = {"node": node, "left": sorted(member.rank for member in left)}
        if dismissed:
            data["dismissed"] = True
        out: list[Output] = [self.run.noted(now_s, DEPARTED, data)]
        if dismissed:
            self.run.nodes.dismiss(node)
            out.append(ToAgent(Dismiss(f"node {node} is drained: {departure.reason}"), node))
        return out

    def is_room_without(self, node: str) -> bool:
        """Return True if the other nodes that have a connection have room for all ranks."""
        nodes = self.run.nodes
        others = [
            room
            for other, room in nodes.room(()).items()
            if other != node and other not in nodes.silent
        ]
        return sum(others) >= self.run.options.world_size

    def _bar(self, now_s: float, node: str, departure: Departure) -> list[Output]:
        return bar(self.run, now_s, node, departure.reason, self._what_stays(departure))

    def _what_stays(self, departure: Departure) -> str:
        roster = self.run.roster
        if departure.action not in MOVING:
            return "; what is there stays"
        if roster.sharded:
            return "; its ranks move away once their images are on another node"
        if roster.outlast:
            return "; its ranks move away after the step in flight"
        return "; a script without outlast calls is not begun again for it"

    # --- moving away ---------------------------------------------------------------------------

    def _may_move(self, node: str, departure: Departure) -> bool:
        """Return True if the ranks of `node` can be moved now.

        The run must have committed another step. Under sharded state, all ranks must have begun to
        seal an image after each step: then no committed step is lost.
        """
        run = self.run
        if run.roster.sharded and departure.tries and self._who_live(node):
            now = run.lifecycle.generation
            ready = run.roster.first("seals", lambda m: m.script.seals_in != now) is None
        else:
            ready = run.progress.step > departure.after_step
        return ready and self._is_calm(node)

    def _is_calm(self, node: str) -> bool:
        """Return True if nothing else happens to the run that would disturb a drain of `node`.

        The run has to train, without an open interruption. The node needs a connection. Plain
        scripts are never moved.
        """
        run = self.run
        busy = bool(run.interruptions.open) or self.stop.end is not None
        if busy or not run.lifecycle.is_in(Stage.TRAINING) or not run.roster.outlast:
            return False
        return node not in run.nodes.silent and not run.nodes.returning

    def _ask_to_seal(self, node: str) -> list[Output]:
        """Ask the ranks, once in a generation, to seal an image after each step: `node` is drained.

        One rank is asked, and its vote tells the others.
        """
        run, generation = self.run, self.run.lifecycle.generation
        if not run.roster.sharded or self._asked_in == generation or not self._is_calm(node):
            return []
        if not self._who_live(node) or (rank := run.spokesman()) is None:
            return []
        self._asked_in = generation
        return run.tell([(rank, SealEach(f"node {node} is drained"))])

    def _is_too_late(self, now_s: float, departure: Departure) -> bool:
        """Return True if ranks of sharded state have not left a node that is taken away in time."""
        run, by_s = self.run, departure.empty_by_s
        trains = run.roster.sharded and run.lifecycle.is_in(Stage.TRAINING)
        return trains and by_s is not None and now_s >= by_s

    def _move_away(self, now_s: float, node: str, departure: Departure) -> list[Output]:
        run, there = self.run, self._who_live(node)
        if not there or not departure.tries:
            return self._departed(now_s, node, there)
        over = run.roster.first("finished", lambda m: m.script.finished or m.life.done) is not None
        everybody = len(there) == run.options.world_size
        if over or everybody or not run.fits_elsewhere(frozenset(m.rank for m in there)):
            self._next_look_s = now_s + limits.SILENT_LOOK_S
            return []
        return self._empty(now_s, node, there, departure)

    def _empty(
        self, now_s: float, node: str, there: list[Member], departure: Departure
    ) -> list[Output]:
        """Begin a regroup in which the ranks of `node` are given up.

        They are killed only once all ranks stand still, and a rank elsewhere holds the state. If
        anything else has happened by then, that is handled first, and the drain is tried again.
        """
        run, step = self.run, self.run.progress.step
        again = replace(departure, after_step=step, tries=departure.tries - 1)
        self.history.departures[node] = again
        reason = drain_reason(node, departure.reason)
        for index, member in enumerate(there):
            run.interruptions.fault(
                rank=member.rank,
                pid=0,
                node=member.process.host,
                mechanism=Mechanism.LOST_NODE,
                generation=run.lifecycle.generation,
                step=step,
                fault_s=now_s,
                fault_not_before_s=None,
                detected_s=now_s,
                same_event=index > 0,
                error="",
                traceback="",
                reason=reason,
            )
        if departure.asked:
            maintenance = FailureClass.HOST_MAINTENANCE
            run.interruptions.classify(failure_class=maintenance, reason=reason)
        own = run.interruptions.open[-1].id
        self.history.own.add(own)
        ranks = frozenset(member.rank for member in there)
        data = {"node": node, "ranks": sorted(ranks), "interruption": own}
        begun = Record(Event(now_s, 0.0, DRAINING, data), at_once=True)
        out: list[Output] = [begun, *run.records(), Tell(reason)]
        if run.store.home == node:
            # The drained node hosts the store, so order one elsewhere.
            run.store.forget()
            out += run.order_store(now_s, reason)
        until_s = carried_until_s(now_s, again.empty_by_s)
        return [*out, *self.regroup.drain(now_s, ranks, until_s=until_s)]

    # --- after another coordinator -------------------------------------------------------------

    def recover(self, earlier: PolicyHistory) -> None:
        """Continue from what the ledger says. Call it before the coordinator's `rebuild`.

        A departure that waited for the next step waits for another one now.
        """
        self.history = replace(earlier)
        for node in earlier.barred:
            self.run.nodes.bar(node)
        for node in earlier.dismissed:
            self.run.nodes.dismiss(node)

    def rearm(self) -> list[Output]:
        """Set the timer of a run that was to shrink, and waits for a node."""
        next_s = self._next_s()
        return [] if next_s is None else [set_timer(Timer.POLICY, next_s)]
