"""An agent that reaches its coordinator over a connection, as on each of several nodes.

It connects the agent's session (the lease and the numbered messages) with the connection on one
side, and with the processes of the node on the other.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from outlast.engine.agent.agent import Agent
from outlast.engine.cluster.agent_session import AgentSession, NodeOffer
from outlast.engine.protocol.outputs import (
    Deliver,
    HangUp,
    LeaveRun,
    Output,
    SendOverLink,
    SetTimer,
    StoreIsAt,
    Tell,
    ToCoordinator,
    Wipe,
)
from outlast.model import gauges, limits
from outlast.model.lives import message_of
from outlast.model.messages import (
    Admitted,
    AskEvidence,
    Broke,
    CopyKept,
    FromAgent,
    FromNode,
    FromWorker,
    Images,
    Leave,
    Lived,
    Logged,
    LogsAt,
    Message,
    ParityKept,
    Preempted,
    ProgressReport,
    RunOver,
    StoreUp,
    WorkerHung,
)
from outlast.model.records import Life
from outlast.runtime import clock
from outlast.runtime.agent.agent_driver import AgentDriver, NodeParts
from outlast.runtime.agent.dialler import Dialler
from outlast.runtime.agent.standby import Standby
from outlast.runtime.loop import LoopTimer
from outlast.runtime.network import trust
from outlast.runtime.outputs_queue import OutputQueue
from outlast.runtime.tiers.lease_page import LeasePage

BEATS_PER_LEASE = 5


@dataclass(frozen=True)
class Outside:
    """The connections of an agent to the world outside its node.

    facts           what the coordinator has told about the run
    dialler         the connection to it
    offer           what the node offers to the run
    left            is called once the run is over for this node
    standby         the part of this node that can take over from the coordinator; None: the run has
                    too few nodes for that
    hand_run_over   is called before this node leaves: a coordinator in this launcher hands the run
                    over. It returns False if no other node can take it over, so that this launcher
                    has to stay
    """

    facts: Admitted
    dialler: Dialler
    offer: NodeOffer
    left: Callable[[], object]
    standby: Standby | None = None
    hand_run_over: Callable[[], bool] = lambda: True


@dataclass
class _Told:
    """The newest reports that the coordinator has got.

    lives      reported lives, by worker and rank
    logged     what was reported of the training, over the connection that is there
    hung       workers that were reported to hang
    overdue    workers that the newest report of progress has shown as overdue
    preempted  whether it was told that this node is about to be taken away
    logs       where the logs of this node's workers are; None: not told over this connection
    """

    lives: dict[tuple[int, int], Lived] = field(default_factory=dict)
    logged: Logged | None = None
    hung: set[int] = field(default_factory=set)
    overdue: set[int] = field(default_factory=set)
    preempted: bool = False
    logs: LogsAt | None = None


class RemoteAgent:
    """Run the workers of one of several nodes. `begin`, then let the loop run, then `close`.

    `over` is how the run ended, or why this node has left it; None while it goes on. The dialler
    (`LinkEvents`) and the agent's driver (`AgentDriverEvents`) report to it.
    """

    def __init__(self, parts: NodeParts, outside: Outside) -> None:
        self.over: RunOver | None = None
        self._parts = parts
        self._outside = outside
        agent = Agent(now_s=clock.now_s(), hang_after_s=parts.options.hang_after_s, only_node=False)
        self._session = AgentSession(
            agent, offer=outside.offer, beat_s=outside.facts.lease_s / BEATS_PER_LEASE
        )
        self._queue = OutputQueue(self._carry_out)
        self._node = AgentDriver(parts, agent, self)
        self._lease = LeasePage(parts.vault.folder, create=True)
        self._timers: dict[str, LoopTimer] = {}
        self._told = _Told()
        if parts.keeper is not None:
            parts.keeper.on_kept = self._on_copy_kept
        self._heard_s = clock.now_s()  # when this agent last heard from the coordinator

    def begin(self) -> None:
        """Start the zygote, and enrol over the connection that is there."""
        self._node.open()
        self._look()
        if self._outside.standby is not None:
            self._outside.standby.set_agent(self)
            self._stand_by(self._outside.standby)
        self.on_admitted(self._outside.facts)

    def close(self) -> None:
        """Close the connections. Kill and reap the processes that remain."""
        if self._outside.standby is not None:
            self._outside.standby.close()
        self._outside.dialler.close()
        self._node.close()

    def leave(self, exit_code: int, reason: str) -> None:
        """End the processes of this node, and leave the run."""
        if self.over is None:
            self._on_over(RunOver(exit_code, "left", reason))

    def preempted(self, exit_code: int, reason: str) -> None:
        """Tell the coordinator that this node is about to be taken away.

        The coordinator then drains the node, or stops the run. This node leaves at once if the
        notice comes a second time, or if the coordinator cannot be reached.
        """
        if self._told.preempted or not self._session.is_in:
            self.leave(exit_code, reason)
            return
        self._told.preempted = True
        self._parts.tell(f"{reason}: this node is drained, or the run is stopped")
        self._do(self._session.pass_on([ToCoordinator(Preempted(reason))], now_s=clock.now_s()))

    @property
    def is_in(self) -> bool:
        """Return whether the agent can send a message to the coordinator now."""
        return self._session.is_in

    def _do(self, outputs: list[Output]) -> None:
        self._queue.do(outputs)
        self._lease.until_s = self._session.lent_until_s

    # --- carrying out what the agent decides ------------------------------------------------------

    def _carry_out(self, output: Output) -> None:
        if isinstance(output, SendOverLink):
            self._note_overdue(output.message)
            self._outside.dialler.send(output.message)
        elif isinstance(output, HangUp):
            self._outside.dialler.hang_up()
        elif isinstance(output, SetTimer):
            self._set_timer(output)
        elif isinstance(output, Wipe):
            for rank in self._parts.vault.ranks():
                if rank not in output.keep:
                    self._parts.vault.forget_after(rank, -1)
        elif isinstance(output, LeaveRun):
            self._on_dismissed(output.reason)
        elif isinstance(output, StoreIsAt):
            self._parts.specs.store_is_up(StoreUp(output.host, output.port))
        elif isinstance(output, Tell):
            self._parts.tell(output.text)
        else:
            if isinstance(output, Deliver) and isinstance(output.message, Leave):
                self._note_places()
            known = self._node.carry_out(output)
            assert known, output

    def _note_places(self) -> None:
        """Note where the processes stand before the first of them leaves its generation.

        The coordinator tells it to leave, or it has reported by itself that it cannot go on.
        """
        evidence = self._parts.evidence
        if evidence.note_places():
            self._parts.loop.call_soon(evidence.keep_stacks)

    def _note_overdue(self, message: Message) -> None:
        """Note which workers are reported as overdue: the coordinator may judge that they hang."""
        if isinstance(message, FromNode) and isinstance(message.message, ProgressReport):
            self._told.overdue = {
                one.worker
                for one in message.message.members
                if one.deadline_s is not None and one.age_s > one.deadline_s
            }

    def _on_dismissed(self, reason: str) -> None:
        if not self._outside.hand_run_over():
            self._parts.tell(f"{reason}; nobody can take the run over, so its coordinator stays")
            return
        self._parts.tell(f"{reason}; this launcher ends, and another one may be started here")
        self.leave(0, reason)

    def _set_timer(self, order: SetTimer) -> None:
        if (old := self._timers.pop(order.name, None)) is not None:
            old.cancel()
        if order.at_s is not None:
            name = order.name
            self._timers[name] = self._parts.loop.call_at(
                order.at_s,
                lambda: self._do(self._session.on_timer(now_s=clock.now_s(), name=name)),
            )

    # --- once a second ----------------------------------------------------------------------------

    def _look(self) -> None:
        now_s = clock.now_s()
        self._parts.loop.call_at(now_s + limits.LIVES_TOLD_S, self._look)
        self._node.look_after_files()
        if self.over is not None:
            return
        for life in self._parts.beacons.lives():
            self.tell_life(life)
        self._tell_logged()
        self._tell_logs()
        if self._outside.standby is not None:
            self._outside.standby.flush()
        if self._session.is_in:
            self._heard_s = now_s
        elif now_s - self._heard_s > limits.COORDINATOR_WAIT_S:
            why = self._outside.dialler.error
            waited = f"could not be reached for {limits.COORDINATOR_WAIT_S:g} s"
            self.leave(1, f"the coordinator {waited}{f': {why}' if why else ''}")

    def tell_life(self, life: Life) -> None:
        """Report a life to the coordinator, if it has changed."""
        message, key = message_of(life), (life.worker, life.rank)
        if self._told.lives.get(key) == message:
            return
        self._told.lives[key] = message
        if life.ended_s is not None:
            del self._told.lives[key]
        self._do(self._session.pass_on([ToCoordinator(message)], now_s=clock.now_s()))

    def _tell_logged(self) -> None:
        """Report what rank 0 has logged, if it is on this node and says something new.

        Nothing is kept for a coordinator that cannot be reached: it gets the newest values later.
        """
        said = self._parts.beacons.gauges()
        if said is None or not self._session.is_in:
            return
        message = gauges.to_message(said)
        if message != self._told.logged:
            self._told.logged = message
            self._do(self._session.pass_on([ToCoordinator(message)], now_s=clock.now_s()))

    def _tell_logs(self) -> None:
        """Tell where the logs of this node's workers are, if that has changed."""
        folders = self._parts.logs.folders()
        message = LogsAt(tuple(folders), tuple(folders.values()))
        if self._session.is_in and message != self._told.logs:
            self._told.logs = message
            self.say(message)

    def _on_copy_kept(self, message: CopyKept | ParityKept) -> None:
        if self.over is None:
            self._do(self._session.pass_on([ToCoordinator(message)], now_s=clock.now_s()))

    # --- the connection (LinkEvents) --------------------------------------------------------------

    def on_admitted(self, facts: Admitted) -> None:
        if facts.run != self._outside.facts.run:
            self.leave(1, f"another run is led there now: {facts.run}")
            return
        self._told.logged = None  # this may be another coordinator, which does not know it
        self._told.logs = None
        vault = self._parts.vault
        images = tuple(Images(rank, vault.steps(rank)) for rank in vault.ranks())
        transfer, keeper = vault.newest_transfer(), self._parts.keeper
        self._do(
            self._session.on_connected(
                images=tuple(one for one in images if one.steps),
                transfer=transfer,
                session=trust.session(),
                now_s=clock.now_s(),
                copies=() if keeper is None else keeper.kept_images(),
                parity=() if keeper is None else keeper.parity.all_rows(),
            )
        )

    def on_link(self, message: Message) -> None:
        standby = self._outside.standby
        if standby is not None and standby.on_link(message):
            return
        if isinstance(message, AskEvidence):
            if self._parts.secured is not None:
                self.say(self._parts.secured.answer(message))
            return
        if isinstance(message, RunOver):
            self._on_over(message)
        else:
            # A message that is not for an agent is ignored.
            self._do(self._session.on_link(message, now_s=clock.now_s()))  # type: ignore[arg-type]

    def on_broken(self) -> None:
        self._do(self._session.on_disconnected())

    def on_refused(self, reason: str) -> None:
        self.leave(1, reason)

    def _on_over(self, over: RunOver) -> None:
        self.over = over
        self._node.end(self._gone)

    def _gone(self) -> None:
        self._outside.dialler.close()
        self._outside.left()

    # --- while the coordinator is missing (AgentPort) ---------------------------------------------

    def _stand_by(self, standby: Standby) -> None:
        if self.over is None:
            self._parts.loop.call_at(
                clock.now_s() + self._outside.facts.lease_s / BEATS_PER_LEASE,
                lambda: self._stand_by(standby),
            )
            standby.ask_if_missing()

    @property
    def epoch(self) -> int:
        """Return the epoch of the newest coordinator that this agent has obeyed."""
        return self._session.epoch

    def say(self, message: Message) -> None:
        """Send a message that needs no number."""
        self._outside.dialler.send(message)

    def prolong_lease(self, asked_s: float) -> None:
        """Let the workers go on without the coordinator, for one lease from `asked_s`."""
        self._do(self._session.prolong_lease(asked_s=asked_s, now_s=clock.now_s()))

    def follow(self, address: tuple[str, int]) -> None:
        """Dial the coordinator at another address."""
        self._outside.dialler.redirect(address)

    # --- what the agent's driver reports (AgentDriverEvents) --------------------------------------

    def on_event(self, message: FromAgent) -> None:
        self._do(self._session.on_event(message, now_s=clock.now_s()))

    def on_worker(self, message: FromWorker) -> None:
        if isinstance(message, Broke):
            self._note_places()
        self._do(self._session.on_worker(message, now_s=clock.now_s()))

    def on_tick(self, outputs: list[Output]) -> None:
        add_place: list[Output] = []
        for output in outputs:
            if isinstance(output, ToCoordinator):
                if isinstance(output.message, WorkerHung):
                    self._told.hung.add(output.message.worker)
                output = ToCoordinator(self._node.add_place(output.message))
            add_place.append(output)
        self._do(self._session.pass_on(add_place, now_s=clock.now_s()))

    def preload_failed(self, error: str) -> None:
        self.leave(2, error)

    def zygote_ready(self, pid: int, imports_s: float) -> None:
        """Do nothing: the coordinator writes the ledger."""

    def is_hung(self, pid: int) -> bool:
        pids = self._node.host.pids()
        return any(pids.get(worker) == pid for worker in self._told.hung | self._told.overdue)

    def runs_plain(self) -> bool:
        return not self._session.housed.script
