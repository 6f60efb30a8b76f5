"""Requests of people to a live run: stop it, save it, take work from a node.

    stop         end the run, as a signal does; the step in flight is committed first
    checkpoint   all ranks write a checkpoint of the step that is committed next
    cordon       the node is barred: it gets no more work, and the processes on it stay
    uncordon     the node gets work again, and a drain of it is called off
    drain        the node is barred, and its ranks move to other nodes between two steps
    drain_all    all nodes are drained, one after the other

With `--keep disk:auto` the run asks for checkpoints by itself; see timed_saves.py.

Each request is written to the ledger with its author and reason, and so is its last answer. An
answer says that the request is done, that it is refused and why, or what it waits for.

This module is pure.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from outlast.engine.coordinator.policy_actions import REQUESTED, PolicyActions
from outlast.engine.coordinator.run_parts import RunParts
from outlast.engine.coordinator.stages import Stage
from outlast.engine.coordinator.stop import StopRequest
from outlast.engine.coordinator.timed_saves import TimedSaves
from outlast.engine.protocol.outputs import AnswerRequest, End, Output, Record
from outlast.model.messages import Checkpointed, SaveNow
from outlast.model.records import Event
from outlast.model.texts import some

ANSWERED = "request_answered"
STOPPED_EXIT = 143  # as by SIGTERM


@dataclass(frozen=True, slots=True)
class RunRequest:
    """A request to a live run, and who made it.

    number  the driver's number for this request; negative: a notice of a node, whose answer is not
            needed
    what    the kind of request, as in the message `Request`, or "preempted"
    node    the node that the request is about; "" if none
    by      who asks, in words for people
    reason  why, in the words of the person who asks; may be ""
    """

    number: int
    what: str
    node: str
    by: str
    reason: str

    @property
    def why(self) -> str:
        """Return who asks and why, as a part of a sentence."""
        return f"asked for by {self.by}" + (f": {self.reason}" if self.reason else "")


@dataclass(slots=True)
class _OpenRequest:
    """A request that is not done yet.

    step        the newest committed step when the request came
    generation  the generation in which a rank was asked to save; -1: none was asked yet
    nodes       the nodes that are still to be drained, the present one first
    waits_for   the newest answer of what the request waits for
    """

    request: RunRequest
    step: int
    generation: int = -1
    nodes: list[str] = field(default_factory=list)
    waits_for: str = ""


class Requests:
    """Carry out the requests of people, and answer them.

    The coordinator makes one. It calls `take` for each request, `preempted` for each notice that a
    node is taken away, and `advance` whenever something has changed that a request may wait for:

        outputs = requests.take(now_s, RunRequest(1, "drain", "node-b", "alice", "a fan is broken"))
        outputs = requests.advance(now_s)
        outputs = requests.on_end(now_s, end)

    Each call returns an `AnswerRequest` for each request whose answer has changed. A request may
    never be done: a drain waits for a node with room as long as the run lives.
    """

    def __init__(self, run: RunParts, stop: StopRequest, policy: PolicyActions) -> None:
        self.run = run
        self.stop = stop
        self.policy = policy
        self._open: dict[int, _OpenRequest] = {}
        expected = run.options.expected_failures
        self.timed_saves = None if expected is None else TimedSaves(run, expected)
        self._notices = 0  # how often a node has said that it is about to be taken away

    def take(self, now_s: float, request: RunRequest) -> list[Output]:
        """Accept or refuse a new request, do what can be done now, and answer it."""
        data = self._facts(request)
        if why_not := self._why_not(request):
            refused = Event(now_s, 0.0, REQUESTED, data | {"refused": why_not})
            return [Record(refused), AnswerRequest(request.number, "refused", why_not)]
        return self._accept(now_s, request, data)

    def _facts(self, request: RunRequest) -> dict[str, object]:
        """Return a request as plain data for the ledger."""
        return {
            "number": request.number,
            "what": request.what,
            "node": request.node,
            "by": request.by,
            "reason": request.reason,
            "step": self.run.progress.step,
        }

    def _accept(self, now_s: float, request: RunRequest, data: dict[str, object]) -> list[Output]:
        """Write a request to the ledger, and begin to carry it out."""
        event = Event(now_s, 0.0, REQUESTED, data)
        self.policy.history.take(event)
        out: list[Output] = [Record(event, at_once=self.run.at_once)]
        one = self._open[request.number] = _OpenRequest(request, self.run.progress.step)
        return [*out, *self._begin(now_s, one), *self.advance(now_s)]

    def _begin(self, now_s: float, one: _OpenRequest) -> list[Output]:
        request = one.request
        match request.what:
            case "stop":
                how = f"the run is stopped, {request.why}"
                return self.stop.ask(now_s=now_s, reason=how, exit_code=STOPPED_EXIT)
            case "cordon":
                return self.policy.cordon(now_s, request.node, request.why)
            case "uncordon":
                return self.policy.uncordon(now_s, request.node, request.why)
            case "drain" | "preempted":
                one.nodes = [request.node]
                return self.policy.look_at_departures(now_s)
            case "drain_all":
                one.nodes = self._in_turn()
        return []

    def preempted(self, now_s: float, node: str, reason: str) -> list[Output]:
        """Drain a node that is about to be taken away. Stop the run if that is not possible.

        It is not possible if no other node has room, or if the ranks cannot move.
        """
        run = self.run
        self._notices += 1
        number = -self._notices  # the answer is not needed
        request = RunRequest(number, "preempted", node, f"node {node}", reason)
        if run.lifecycle.is_in(Stage.ENDED, Stage.STOPPING) or self.stop.end is not None:
            return []
        drains = self._why_no_move() == "" and self.policy.is_room_without(node)
        if not drains or not run.progress.trained:
            return self._stop_for(now_s, request)
        return self._accept(now_s, request, self._facts(request) | {"what": "drain"})

    def _stop_for(
        self, now_s: float, request: RunRequest, lack: str = "no other node has room for it"
    ) -> list[Output]:
        reason = f"node {request.node} is taken away ({request.reason}), and {lack}"
        return self.stop.ask(now_s=now_s, reason=reason, exit_code=STOPPED_EXIT)

    def _in_turn(self) -> list[str]:
        """Return all nodes in the order in which they are drained: first those that have ranks."""
        holding = {member.home for member in self.run.roster.live()}
        return sorted(self.run.nodes, key=lambda node: node not in holding)

    # --- what is refused -----------------------------------------------------------------------

    def _why_not(self, request: RunRequest) -> str:
        """Return why a request can never be carried out; "" if it can be, now or later."""
        run, nodes = self.run, self.run.nodes
        stops = run.lifecycle.is_in(Stage.STOPPING) or self.stop.end is not None
        if run.lifecycle.is_in(Stage.ENDED) or (request.what != "stop" and stops):
            return "the run is being stopped"
        if request.what in ("stop", "checkpoint"):
            return self._why_no_checkpoint() if request.what == "checkpoint" else ""
        if nodes.local:
            return "this run has one node, so no other node can take work from it"
        if request.what != "drain_all" and request.node not in nodes:
            return f"no node {request.node} is in this run; its nodes are {some(tuple(nodes))}"
        if request.what == "cordon" and not self.policy.is_room_without(request.node):
            return f"the other nodes have no room for all {run.options.world_size} ranks"
        if request.what == "uncordon" and not self.policy.is_given_up(request.node):
            return f"node {request.node} is not cordoned"
        return self._why_no_move() if request.what in ("drain", "drain_all") else ""

    def _why_no_checkpoint(self) -> str:
        return _NOT_SAVED if self._is_plain() else ""

    def _why_no_move(self) -> str:
        return _BEGINS_AGAIN if self._is_plain() else ""

    def _is_plain(self) -> bool:
        """Return True if the script trains without outlast calls.

        That is known once it has trained. A script that has not trained yet may still call outlast.
        """
        return not self.run.roster.outlast and self.run.progress.trained

    # --- open requests -------------------------------------------------------------------------

    def advance(self, now_s: float) -> list[Output]:
        """Do what can be done now for the open requests, and answer those whose state changed."""
        out: list[Output] = [] if self.timed_saves is None else self.timed_saves.look(now_s)
        for one in list(self._open.values()):
            match one.request.what:
                case "stop":
                    out += self._waits(one, self._stop_waits_for())
                case "checkpoint":
                    out += self._look_at_checkpoint(now_s, one)
                case "cordon" | "uncordon":
                    again = "no more work" if one.request.what == "cordon" else "work again"
                    out += self._done(now_s, one, f"node {one.request.node} is given {again}")
                case _:
                    out += self._look_at_drain(now_s, one)
        return out

    def on_shard(self, now_s: float, message: Checkpointed) -> list[Output]:
        """Note that a rank has written its shard of a checkpoint, or has failed to."""
        if message.error and not message.in_vault:
            return self.on_saved(now_s, step=message.step, error=message.error)
        if self.timed_saves is not None:
            self.timed_saves.on_shard(message)
        return self.advance(now_s)

    def on_saved(self, now_s: float, *, step: int, error: str) -> list[Output]:
        """Note that a checkpoint is complete, or has failed."""
        timed = self.timed_saves
        decided = [] if timed is None else timed.on_saved(now_s, step=step, error=error)
        return [*decided, *self.advance(now_s)]

    def on_end(self, now_s: float, end: End) -> list[Output]:
        """Answer all open requests, because the run has ended with `end`."""
        out: list[Output] = []
        for one in list(self._open.values()):
            if one.request.what == "stop":
                out += self._done(now_s, one, f"the run has stopped{self._where()}")
            else:
                out += self._refused(now_s, one, f"the run is over: {end.reason}")
        return out

    def _stop_waits_for(self) -> str:
        if self.run.lifecycle.is_in(Stage.STOPPING):
            return "all processes are being ended"
        if not self.run.roster.outlast:
            return "the workers were sent SIGTERM"
        return "the step in flight is committed first"

    def _where(self) -> str:
        """Return where the run has stopped, and which checkpoint it leaves."""
        step, saved = self.run.progress.step, self.run.sources.checkpoint
        if not self.run.roster.outlast:
            return ""
        if not saved.folder:
            return f" at step {step}, without a checkpoint"
        return f" at step {step}; the newest checkpoint is of step {saved.step}, in {saved.folder}"

    # --- a checkpoint --------------------------------------------------------------------------

    def _look_at_checkpoint(self, now_s: float, one: _OpenRequest) -> list[Output]:
        run, saved = self.run, self.run.sources.checkpoint
        if saved.folder and saved.step > one.step:
            return self._done(
                now_s, one, f"the checkpoint of step {saved.step} is in {saved.folder}"
            )
        failed = run.sources.failed
        training = run.lifecycle.is_in(Stage.TRAINING)
        told_here = training and one.generation == run.lifecycle.generation
        # A save that a regroup cut short is not refused: it is asked for again in this generation.
        if told_here and failed is not None and failed[0] > one.step:
            why = f"the checkpoint of step {failed[0]} failed: {failed[1]}"
            return self._refused(now_s, one, why)
        if why_not := self._why_no_checkpoint():
            return self._refused(now_s, one, why_not)
        if not training:
            plain = not run.roster.outlast
            why = (
                "the script has made no outlast call yet" if plain else "the run does not train now"
            )
            return self._waits(one, why)
        out: list[Output] = []
        if not told_here and (rank := run.spokesman()) is not None:
            one.generation = run.lifecycle.generation
            out += run.tell([(rank, SaveNow(one.request.why))])
        return [*out, *self._waits(one, "the next step is committed, and then saved")]

    # --- a drain -------------------------------------------------------------------------------

    def _look_at_drain(self, now_s: float, one: _OpenRequest) -> list[Output]:
        out: list[Output] = []
        while one.nodes:
            node = one.nodes[0]
            if not self.policy.is_given_up(node) and node in self.run.nodes:
                if one.waits_for and one.request.what != "drain_all":
                    why = f"node {node} is not cordoned any more"
                    return [*out, *self._refused(now_s, one, why)]
                out += self.policy.depart(now_s, node, one.request.why, dismisses=False)
            if self.policy.departs(node):
                return [*out, *self._waits(one, self._drain_waits_for(one))]
            if left := sorted(m.rank for m in self.run.roster.live() if m.home == node):
                ranks = some([str(rank) for rank in left])
                why = f"ranks {ranks} stay on node {node}: they could not be moved"
                out += self._refused(now_s, one, why)
                is_notice = one.request.number < 0
                lack = "its ranks could not be moved in time"
                return [*out, *self._stop_for(now_s, one.request, lack)] if is_notice else out
            one.nodes.pop(0)
            if one.request.what == "drain_all" and node in self.run.nodes:
                # The next node's ranks need room, so this node gets work again.
                out += self.policy.uncordon(now_s, node, "it was drained in turn")
        drained = f"node {one.request.node} is" if one.request.node else "all nodes were"
        return [*out, *self._done(now_s, one, f"{drained} drained")]

    def _drain_waits_for(self, one: _OpenRequest) -> str:
        node, more = one.nodes[0], len(one.nodes) - 1
        then = f"; {more} more after that" if more else ""
        if node not in self.run.nodes.barred:
            return f"no other node has room for the ranks of {node} yet{then}"
        if not self.run.roster.outlast:
            return f"{_NO_CALL}{then}"
        if not any(member.home == node for member in self.run.roster.live()):
            return f"the first step without node {node} is committed{then}"
        if self.run.roster.sharded and self.policy.regroup.drains.ranks:
            return f"the images of the ranks of {node} move to another node{then}"
        if not self.run.lifecycle.is_in(Stage.TRAINING):
            return f"the run does not train now; then the ranks of {node} move{then}"
        return f"the ranks of {node} move after the step in flight{then}"

    # --- answers -------------------------------------------------------------------------------

    def _waits(self, one: _OpenRequest, text: str) -> list[Output]:
        before, one.waits_for = one.waits_for, text
        return [] if text == before else [AnswerRequest(one.request.number, "waits", text)]

    def _done(self, now_s: float, one: _OpenRequest, text: str) -> list[Output]:
        return self._answer(now_s, one, "done", text)

    def _refused(self, now_s: float, one: _OpenRequest, text: str) -> list[Output]:
        return self._answer(now_s, one, "refused", text)

    def _answer(self, now_s: float, one: _OpenRequest, state: str, text: str) -> list[Output]:
        del self._open[one.request.number]
        number, what = one.request.number, one.request.what
        data = {"number": number, "what": what, "state": state, "text": text}
        return [Record(Event(now_s, 0.0, ANSWERED, data)), AnswerRequest(number, state, text)]


_NO_CALL = "the script has made no outlast call yet"
_NOT_SAVED = "the script makes no outlast calls, so outlast does not know its state"
_BEGINS_AGAIN = "the script makes no outlast calls, so its ranks would begin again from the top"
