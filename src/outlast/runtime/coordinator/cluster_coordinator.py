"""The coordinator of a run on several nodes: its sessions, its listener and its driver.

It is in the launcher of the node that --rdzv-endpoint names, and after a takeover in that of a
voter. All agents reach it over connections. This includes the agent in the same launcher.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from outlast.engine.cluster.coordinator_sessions import CoordinatorSessions
from outlast.engine.cluster.voting import elected_s, takes_over_after_s
from outlast.engine.coordinator.machine import Coordinator
from outlast.engine.coordinator.options import CoordinatorOptions
from outlast.engine.coordinator.takeover import RecoveredState
from outlast.engine.protocol.outputs import End, LookForLauncher, Output, Record, Tell
from outlast.model import gauges, limits
from outlast.model.messages import (
    Admitted,
    Enrol,
    EvidenceFiles,
    EvidencePiece,
    FromNode,
    Kept,
    Knock,
    Logged,
    LogsAt,
    Message,
    Progress,
    RunOver,
    Voters,
)
from outlast.model.records import Event, Generation, Interruption, Life, Records
from outlast.model.wire import WIRE_VERSION
from outlast.runtime import clock
from outlast.runtime.coordinator.agent_listener import AgentListener
from outlast.runtime.coordinator.coordinator_driver import CoordinatorDriver, CoordinatorParts
from outlast.runtime.coordinator.launcher_watch import LauncherWatch
from outlast.runtime.coordinator.quorum import Quorum, QuorumPlace
from outlast.runtime.coordinator.reported_lives import ReportedLives
from outlast.runtime.software import difference, installed


@dataclass(frozen=True, slots=True)
class Admission:
    """The conditions for an agent to join, and the facts that an agent gets when it joins.

    listening  the socket at which agents are awaited. It listens already
    run        the run, as --rdzv-id names it
    script     the digest of the script that the coordinator's node runs; "" if there is no file
    token      the run's token; None: any process that can reach the address may join
    """

    listening: socket.socket
    run: str
    script: str
    token: bytes | None
    facts: Admitted


@dataclass(frozen=True, slots=True)
class Succession:
    """The things that a coordinator takes over from the one before it.

    state    what the copy of the ledger says
    named    the voters; `loyal` have voted for it, when it claimed the run at `claimed_s`
    records  all records of the copy, to be sent to the other voters
    """

    state: RecoveredState
    named: Voters
    loyal: tuple[str, ...]
    claimed_s: float
    records: Records


class ClusterCoordinator:
    """Lead a run on several nodes. `listen`, `start`, let the loop run, and then `close`.

    place    the node on which it leads
    lives    what agents report about their workers
    ended    is called once the run is over, and every agent has left or has had time to leave
    """

    def __init__(
        self,
        parts: CoordinatorParts,
        options: CoordinatorOptions,
        admission: Admission,
        *,
        place: QuorumPlace,
        lives: ReportedLives,
        ended: Callable[[], object],
    ) -> None:
        self.end: End | None = None
        self._parts = parts
        self._admission = admission
        self._lives = lives
        self._ended = ended
        self._warned: set[str] = set()  # nodes that run another script, and texts of warnings
        coordinator = Coordinator(
            options=replace(options, leads_on=place.node, cut_for_good_s=limits.CUT_FOR_GOOD_S)
        )
        sessions = CoordinatorSessions(
            coordinator, epoch=place.epoch, lease_s=admission.facts.lease_s
        )
        self.quorum = Quorum(place)
        self._listener = AgentListener(
            parts.loop,
            sessions,
            peers=options.nodes,
            owner=self._carry_out,
            token=admission.token,
            admit=self._receive,
            heard=self._heard,
            may_speak=self.quorum.copies.holds,
            asked=None if parts.control is None else parts.control.take_over,
        )
        self.quorum.stand_before(self._listener)
        self.driver = CoordinatorDriver(
            parts, coordinator, sessions, do=self._listener.carry_out, ended=self._on_end
        )
        self._launchers = LauncherWatch(parts.loop, ended=self.driver.on_launcher_ended)

    def listen(self) -> None:
        """Accept agents."""
        self._listener.open_at(self._admission.listening)

    def start(self) -> None:
        """Begin the run. It trains once enough nodes have joined."""
        self.driver.start()
        self._flush()  # the first status names the nodes that are waited for

    def take_over(self, after: Succession) -> None:
        """Lead the run after a coordinator that is gone. Training goes on meanwhile."""
        self.driver.coordinator.remember(after.state)
        lease_s = self._admission.facts.lease_s
        heard_s = elected_s(after.claimed_s, lease_s)
        self.quorum.succeed(after.named, after.records, loyal=after.loyal, heard_s=heard_s)
        for node, address in zip(after.named.nodes, after.named.addresses, strict=True):
            self._launchers.learn(node, address, reached=True)
        self._flush()
        self.driver.take_over(nodes=after.state.nodes, patience_s=takes_over_after_s(lease_s))

    def gather_left(self, interruptions: Iterable[Interruption]) -> None:
        """Gather the evidence on which the coordinator before this one has found no verdict."""
        if self._parts.gatherer is not None:
            self._parts.gatherer.go_on(interruptions)

    def tell(self, node: str, message: Message) -> None:
        """Send a message to a node if it is connected, outside its numbered messages."""
        self._listener.tell(node, message)

    def close(self) -> None:
        """Close all connections, and decide nothing any more."""
        self.quorum.close()
        self._launchers.close()
        if self._parts.gatherer is not None:
            self._parts.gatherer.stop()
        self.driver.stop()
        self._listener.close()

    def _flush(self) -> None:
        if not self.quorum.is_over:
            self._parts.loop.call_at(clock.now_s() + limits.LEDGER_FLUSH_S, self._flush)
            self.driver.flush()

    # --- agents that connect ----------------------------------------------------------------------

    def _receive(self, knock: Knock) -> Admitted | str:
        """Return the answer to an agent that knocks: the facts of the run, or why it is refused."""
        here = self._admission
        if knock.wire != WIRE_VERSION:
            return (
                f"node {knock.node} has outlast {knock.release}, which speaks version"
                f" {knock.wire} of the protocol, and this run speaks version {WIRE_VERSION}:"
                " install the same outlast on all nodes"
            )
        if knock.run != here.run:
            return (
                f"node {knock.node} looks for the run {knock.run!r} (--rdzv-id), and this is"
                f" {here.run!r}: give each run an endpoint of its own"
            )
        differs = bool(knock.script and here.script) and knock.script != here.script
        if differs and knock.node not in self._warned:
            self._warned.add(knock.node)
            script = Path(here.facts.script).name
            self._carry_out(
                Tell(
                    f"warning: node {knock.node} runs another script than {script} of this node:"
                    " its file has another content"
                )
            )
        return replace(here.facts, begun=self.quorum.named)

    def _compare(self, enrol: Enrol) -> None:
        """Warn of a node on which other versions are installed than on this one."""
        text = difference(f"node {enrol.node}", enrol.software, installed())
        if text and text not in self._warned:
            self._warned.add(text)
            self._carry_out(Tell(text))

    def _heard(self, node: str, message: Message) -> None:
        """Note committed steps, what rank 0 has logged, evidence, logs, and what voters report.

        Steps and logged values are for people, and for the ledger.
        """
        if isinstance(message, Kept):
            self.quorum.hear(node, message)
        elif isinstance(message, LogsAt):
            self._lives.note_logs(node, message)
        elif isinstance(message, EvidenceFiles | EvidencePiece):
            if self._parts.gatherer is not None:
                self._parts.gatherer.hear(node, message)
        elif isinstance(message, Enrol):
            self._launchers.forget(node)
            self._launchers.learn(node, message.votes or message.serves)
            self._compare(message)
            self.quorum.let_in(message)
        elif isinstance(message, FromNode) and isinstance(message.message, Progress):
            self._parts.books.step_seen(message.message.newest, clock.now_s())
        elif isinstance(message, FromNode) and isinstance(message.message, Logged):
            self._lives.gauges = gauges.of_message(message.message)

    # --- carrying out what the coordinator decides ------------------------------------------------

    def _carry_out(self, output: Output) -> None:
        if isinstance(output, Record) and isinstance(output.record, Life):
            self._note(output.record)
            return
        if isinstance(output, Record) and isinstance(output.record, Event):
            self._note_event(output.record)
        if isinstance(output, Record) and isinstance(output.record, Generation):
            self._name_voters()
        if isinstance(output, LookForLauncher):
            if self.end is not None:
                return  # the launchers end now, and that is not a loss
            until_s = clock.now_s() + takes_over_after_s(self._admission.facts.lease_s)
            self._launchers.look(output.node, until_s=until_s)
            return
        known = self.driver.carry_out(output)
        assert known, output
        if isinstance(output, Record) and output.at_once:
            self.quorum.wrote_at_once()

    def _name_voters(self) -> None:
        """Name the voters before the first generation is written. All nodes have joined by then."""
        if self.quorum.named:
            return
        voters = self.quorum.begin()
        others = ", ".join(voters[1:])
        words = (
            f"if this node is lost, one of {others} takes the run over"
            if voters
            else "with fewer than three nodes nobody can take the run over: this one must live"
        )
        self._carry_out(Tell(words))

    def _note(self, life: Life) -> None:
        self._lives.note(life, now_s=clock.now_s())
        if life.ended_s is not None:
            self._parts.books.life_over(life)

    def _note_event(self, event: Event) -> None:
        if event.kind == "node_lost":
            for life in self._lives.lose(str(event.data["node"])):
                self._parts.books.life_over(life)
            self.quorum.lose(str(event.data["node"]))

    def _on_end(self, end: End) -> None:
        """End the run, once the evidence of its last interruptions is gathered."""
        if self.end is not None:
            return
        self.end = end
        gatherer = self._parts.gatherer
        if gatherer is None:
            self._dismiss(end)
        else:
            gatherer.finish(self._parts.books.unresumed(), lambda: self._dismiss(end))

    def _dismiss(self, end: End) -> None:
        """Tell all agents that the run is over, and wait a while for them to leave."""
        if self.quorum.is_over:
            return  # this coordinator was closed meanwhile
        self.quorum.close()  # if voters leave now, this must not count as the loss of the majority
        self._launchers.close()
        reason = end.reason if not end.traceback else f"{end.reason}\n\n{end.traceback}"
        node, log = self._log_of_rank_0()
        self._listener.tell_all(RunOver(end.exit_code, end.state, reason, node, log))
        self._wait(clock.now_s() + limits.END_WAIT_S)

    def _log_of_rank_0(self) -> tuple[str, str]:
        """Return the node that rank 0 was on last, and the folder of its log there."""
        for member in self.driver.coordinator.roster.members():
            if member.rank == 0:
                node = member.process.host
                return node, self._lives.log_of(node, member.worker)
        return "", ""

    def _wait(self, until_s: float) -> None:
        now_s = clock.now_s()
        if not self._listener.nodes or now_s >= until_s:
            for life in self._lives.living():
                self._parts.books.life_over(replace(life, ended_s=now_s))
            self._ended()
            return
        self._parts.loop.call_at(now_s + limits.TICK_S, lambda: self._wait(until_s))
