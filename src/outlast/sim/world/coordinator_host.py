"""The host of the coordinator: its timers, its ledger, its death, and its successor."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Protocol

from outlast.engine.cluster.coordinator_sessions import CoordinatorSessions
from outlast.engine.coordinator.machine import Coordinator
from outlast.engine.coordinator.options import CoordinatorOptions
from outlast.engine.coordinator.requests import RunRequest
from outlast.engine.coordinator.restore_sources import Restart
from outlast.engine.coordinator.stages import Stage
from outlast.engine.coordinator.takeover import RecoveredState
from outlast.engine.protocol.outputs import (
    AnswerRequest,
    End,
    FindCheckpoint,
    LookForLauncher,
    Output,
    Record,
    SendOverLink,
    SetTimer,
    Tell,
    ToAgent,
    TurnAway,
    WriteManifest,
)
from outlast.model import limits
from outlast.model.messages import Beat, Enrol, ForAgent, Grant, LinkMessage
from outlast.model.records import Event, Interruption
from outlast.model.verdict import Verdict
from outlast.sim.options import NODES_MAX
from outlast.sim.rules.final_observations import EventWritten, TextShown
from outlast.sim.rules.observations import ManifestOrdered
from outlast.sim.shortcuts.identical_nodes import Echo, IdenticalNodes
from outlast.sim.shortcuts.parted import Parted
from outlast.sim.world.chance import Chance
from outlast.sim.world.coordinator_watch import CoordinatorWatch, WatchedParts, brief
from outlast.sim.world.node import Node
from outlast.sim.world.simulated_ledger import SimulatedLedger
from outlast.sim.world.timeline import FIXED, ROUTINE
from outlast.sim.world.verdicts import Verdicts, policy_of

LEASES = "leases"  # the name of the timer of the sessions
KEEP_READ_S = 0.005  # time to read all copies in the vault


class Hosting(WatchedParts, Protocol):
    """The parts of the world that the coordinator can reach."""

    @property
    def chance(self) -> Chance: ...

    @property
    def verdicts(self) -> Verdicts: ...

    def command(self, command: ForAgent) -> None: ...

    def noted(self, record: Interruption) -> None: ...

    def ended(self, end: End) -> None: ...


class CoordinatorHost:
    """Drive the coordinator, which is outlast's own machine, let it die, and start another one.

    Its life    `begin` starts it. `hear`, `on_link` and its timers drive it. Its outputs are
                carried out at once. `die` ends it with all that it knew. Some seconds later another
                one reads the ledger and takes over.
    Not here    Whether its decisions are right. The watch looks at each decision, and the rules
                check it.

    epoch      the number of coordinators so far
    sessions   the sessions with the agents of several nodes; None if there is one node
    answers    the answers to people's requests
    """

    def __init__(self, world: Hosting) -> None:
        self.watch = CoordinatorWatch(world)
        self.ledger = SimulatedLedger(world.frame)
        self.epoch = 1
        self.lives = True
        self.answers: list[AnswerRequest] = []
        self._world = world
        self._frame = world.frame
        self._timers: dict[str, int] = {}  # name of a timer -> number of its event
        self.coordinator = self._coordinator(generation=0, interruption=1)
        self.sessions = self._new_sessions()

    @property
    def interruptions(self) -> dict[int, Interruption]:
        """Return the interruptions, by number, as the ledger has them."""
        return self.ledger.interruptions

    @property
    def homes(self) -> Mapping[int, Mapping[int, str]]:
        """Return the node of each rank in each generation."""
        return self.watch.plans.homes

    @property
    def read(self) -> tuple[int, int]:
        """Return the checkpoint that all ranks last began from, and the epoch that ordered it.

        The checkpoint is given by its step.
        """
        return self.watch.plans.read

    @property
    def spent(self) -> int | None:
        """Return the tokens that the budgets have spent; None if a later coordinator leads."""
        budgets = self.coordinator.budgets
        return (
            len(budgets.respawns.spent) + len(budgets.restarts.spent) if self.epoch == 1 else None
        )

    def has_noted(self, kind: str) -> bool:
        """Return True if the ledger has an event of this kind."""
        return self.ledger.has_noted(kind)

    def _coordinator(self, *, generation: int, interruption: int) -> Coordinator:
        given = self._frame.options
        return Coordinator(
            options=CoordinatorOptions(
                given.ranks,
                Restart(),
                spares=given.spares,
                spare_kind=given.spare_kind,
                max_restarts=given.max_restarts,
                durable=bool(given.checkpoint_every),
                nodes=given.nodes if given.nodes > 1 else 0,
                generation=generation,
                first_interruption=interruption,
                first_worker=1 + (self.epoch - 1) * limits.WORKERS_PER_EPOCH_COUNT,
                policy=policy_of(given.policy),
                peer_copies=int(given.peer_copies),
                peers=given.peers,
                parity=given.code,
            )
        )

    def _new_sessions(self) -> CoordinatorSessions | None:
        if self._frame.options.nodes < 2:
            return None
        return CoordinatorSessions(
            self.coordinator,
            epoch=self.epoch,
            lease_s=self._frame.options.beat_s * limits.LEASE_BEATS,
        )

    @property
    def _lead(self) -> CoordinatorSessions | Coordinator:
        """Return the machine that gets the start and the timers."""
        return self.sessions if self.sessions is not None else self.coordinator

    # --- driving ----------------------------------------------------------------------------------

    def begin(self) -> None:
        """Start the run."""
        lead = self._lead
        self.led(lambda: lead.start(now_s=self._frame.now_s))

    def hear(self, news: Any) -> None:
        """Receive a message of the agent, if there is one node."""
        self._watch_hears(news)
        self.led(lambda: self.coordinator.on_message(news, now_s=self._frame.now_s))

    def _watch_hears(self, news: Any, *, traced: bool = True) -> None:
        alone = self.sessions is None
        self.watch.hear(news, self.coordinator, epoch=self.epoch, alone=alone, traced=traced)

    def on_link(self, node: str, message: LinkMessage) -> None:
        """Receive a message of the agent of one of several nodes."""
        sessions, now_s = self.sessions, self._frame.now_s
        if not self.lives or sessions is None:
            return
        news = getattr(message, "message", message)
        self._watch_hears(news, traced=node not in self._frame.untold)
        if not (isinstance(message, Enrol) and sessions.turns_away(message, now_s=now_s)):
            self.watch.enrolments.hear(
                node,
                message,
                is_in=node in self.coordinator.nodes,
                first_epoch=self.epoch == 1,
                now_s=now_s,
            )
        self.led(lambda: sessions.on_link(node, message, now_s=self._frame.now_s))

    def from_twins(self, twins: IdenticalNodes, message: LinkMessage) -> None:
        """Receive a message from each of these nodes, one after the other.

        `message` has the form in which the first of them sends it.
        """
        sessions = self.sessions
        if not self.lives or sessions is None:
            return
        now_s = self._frame.now_s
        if self._world.chance.begins:
            for place, (name, said) in zip(
                twins.likeness.members, twins.said(message), strict=True
            ):
                self._frame.timeline.at(
                    now_s, partial(self.on_link, name, said), priority=place - NODES_MAX
                )
            return
        self._watch_hears(getattr(message, "message", message))
        for name, said in twins.said(message):
            coordinator, committed = self.coordinator, self._world.steps.committed
            before = coordinator.generation, coordinator.stage
            outputs = sessions.on_link(name, said, now_s=now_s)
            if outputs or before != (coordinator.generation, coordinator.stage):
                self._follow(outputs, coordinator, before, committed)

    def beaten(self, node: Node, beat: Beat, *, now_s: float) -> list[Output]:
        """Return the outputs of the last heartbeat of a stretch, at its time."""
        sessions = self.sessions
        assert sessions is not None
        self.watch.enrolments.beats(node.name)
        granted = sessions.on_beats(node.name, beat, now_s=now_s)
        for name, _ in () if node.twins is None else node.twins.others():
            also = sessions.on_beats(name, beat, now_s=now_s)
            if [getattr(line, "message", line) for line in also] != [
                getattr(line, "message", line) for line in granted
            ]:
                raise Parted(f"node {name} is granted another lease than {node.name}")
        return granted

    def on_disconnected(self, node: str) -> None:
        """Note that the link of a node has broken."""
        sessions = self.sessions
        if self.lives and sessions is not None:
            self.led(lambda: sessions.on_disconnected(node))

    def ask_stop(self, *, reason: str, exit_code: int) -> None:
        """Ask the coordinator to end the run."""
        now_s = self._frame.now_s
        self.led(
            lambda: self._through_sessions(
                self.coordinator.ask_stop(now_s=now_s, reason=reason, exit_code=exit_code)
            )
        )

    def on_request(self, request: RunRequest) -> None:
        """Pass a person's request to the coordinator."""
        now_s = self._frame.now_s
        self.led(
            lambda: self._through_sessions(
                self.coordinator.on_request(now_s=now_s, request=request)
            )
        )

    def on_verdict(self, interruption: int, verdict: Verdict) -> None:
        """Pass the verdict on an interruption to the coordinator."""
        now_s = self._frame.now_s
        self.led(
            lambda: self._through_sessions(
                self.coordinator.on_verdict(now_s=now_s, interruption=interruption, verdict=verdict)
            )
        )

    def drains(self, node: str) -> None:
        """Note that the policy begins to drain a node."""
        self.watch.plans.drains(node, self.coordinator)

    def _through_sessions(self, outputs: list[Output]) -> list[Output]:
        return (
            self.sessions.pass_on(outputs, now_s=self._frame.now_s)
            if self.sessions is not None
            else outputs
        )

    def led(self, act: Callable[[], list[Output]]) -> None:
        """Drive the coordinator, look at its plans, and carry out its outputs."""
        coordinator, committed = self.coordinator, self._world.steps.committed
        before = coordinator.generation, coordinator.stage
        self._follow(act(), coordinator, before, committed)

    def _follow(
        self,
        outputs: list[Output],
        coordinator: Coordinator,
        before: tuple[int, Stage],
        committed: int,
    ) -> None:
        """Carry out `outputs`, and let the rules see them.

        before      the generation and the stage before
        committed   the newest committed step before
        """
        self.watch.acted(
            outputs,
            coordinator,
            before,
            committed,
            epoch=self.epoch,
            alone=self.sessions is None,
        )
        for output in outputs:
            self._carry_out(output)
        if coordinator.stage is not before[1] and coordinator is self.coordinator:
            self._world.strikes.at_stage(coordinator.stage.value)

    # --- outputs ----------------------------------------------------------------------------------

    def _carry_out(self, output: Output) -> None:
        world, frame = self._world, self._frame
        match output:
            case SendOverLink():
                self._send(output)
            case LookForLauncher():
                self._look_for_launcher(output.node)
            case TurnAway():
                world.population.line_to(output.node).down(output.message)
            case ToAgent():
                self._order_here(output.message)
            case SetTimer():
                self._set_timer(output)
            case Record():
                self._record(output)
            case Tell():
                frame.say(f"coordinator tells: {output.text}")
                early = world.accounts.spare_ended_early_s is not None
                frame.see(TextShown(output.text, early or frame.options.nodes > 1))
            case AnswerRequest():
                frame.say(f"request {output.number} {output.state}: {output.text}")
                self.answers.append(output)
            case WriteManifest():
                self._write_manifest(output)
            case FindCheckpoint():
                self._find_checkpoint()
            case End():
                for answer in self.coordinator.requests.on_end(frame.now_s, output):
                    self._carry_out(answer)
                world.ended(output)
            case _:
                raise AssertionError(output)

    def _look_for_launcher(self, name: str) -> None:
        """Find out whether a node's launcher has ended.

        If the machine has power, it refuses connections to the launcher. Otherwise nothing answers.
        """
        epoch, gone = self.epoch, partial(self._world.population.lost_power, name)
        if not gone() or self._world.chance.machines.between(0.0, 1.0) < 0.5:
            return

        def ended() -> None:
            sessions = self.sessions
            if self.lives and self.epoch == epoch and sessions is not None and gone():
                self.led(lambda: sessions.on_launcher_ended(name, now_s=self._frame.now_s))

        self._frame.timeline.after(limits.LAUNCHER_GONE_S, ended)

    def _send(self, output: SendOverLink) -> None:
        """Send an order to the agent of one of several nodes."""
        world, node = self._world, output.node
        line = world.population.line_to(node)
        if isinstance(line, Echo):  # the trace does not show these nodes if no policy acts
            line.down(output.message)
            return
        if type(output.message) is not Grant and node not in self._frame.untold:
            self._frame.say(
                f"to {node}: {brief(getattr(output.message, 'message', output.message))}"
            )
        order = getattr(output.message, "message", None)
        self.watch.ordered(node, order)
        world.verdicts.ordered(node, order)
        line.down(output.message)

    def _order_here(self, order: ForAgent) -> None:
        """Send an order to the agent of the only node."""
        self._frame.say(f"coordinator: {brief(order)}")
        self.watch.ordered_here(order, self.coordinator)
        self._world.command(order)

    def _record(self, output: Record) -> None:
        world, record = self._world, output.record
        if isinstance(record, Interruption):
            self.ledger.rewrite(record, epoch=self.epoch)
            world.noted(record)
            world.verdicts.noted(record)
        elif isinstance(record, Event):
            if record.kind == "checkpoint_refused":
                self.watch.plans.read = -1, -1
            elif record.kind == "node_lost":
                self.watch.plans.lose_node(str(record.data["node"]))
            self._frame.see(EventWritten(record.kind, record.data, self.epoch))
            world.verdicts.written(record)
        self.ledger.add(record, at_once=output.at_once)

    # --- checkpoints ------------------------------------------------------------------------------

    def _write_manifest(self, order: WriteManifest) -> None:
        step = order.step
        self._frame.see(ManifestOrdered(step))
        self._world.disks.write_manifest(
            order, lambda folder, error: self._manifest_written(step, folder, error)
        )

    def _manifest_written(self, step: int, folder: str, error: str) -> None:
        now_s, coordinator = self._frame.now_s, self.coordinator
        self.led(
            lambda: self._through_sessions(
                coordinator.on_manifest(now_s=now_s, step=step, folder=folder, error=error)
            )
        )

    def _find_checkpoint(self) -> None:
        """Look for the newest copies, and for checkpoints if these may be newer."""
        if self._kept_step() > self.coordinator.run.sources.checkpoint.step:
            self._world.disks.in_turn(KEEP_READ_S, lambda: self._checkpoint_found(0, "", ()))
        else:
            self._world.disks.find(self._checkpoint_found)

    def _kept_step(self) -> int:
        return self._world.population.kept_step(self._frame.options.ranks)

    def _checkpoint_found(self, step: int, folder: str, refused: tuple[str, ...]) -> None:
        now_s, coordinator, kept_step = self._frame.now_s, self.coordinator, self._kept_step()
        self.led(
            lambda: self._through_sessions(
                coordinator.on_checkpoint_found(
                    now_s=now_s, step=step, folder=folder, refused=refused, kept_step=kept_step
                )
            )
        )

    # --- timers -----------------------------------------------------------------------------------

    def _set_timer(self, order: SetTimer) -> None:
        # At these times nothing has to be done, or nothing that a stretch must not skip.
        idle = order.name == "spares" and not self._frame.options.spares
        timeline, sort = self._frame.timeline, ROUTINE if idle or order.name == LEASES else FIXED
        if (before := self._timers.pop(order.name, None)) is not None:
            timeline.cancel(before, sort=sort)
        if order.at_s is not None:
            self._timers[order.name] = timeline.after(
                order.at_s - self._frame.now_s, partial(self._due, order.name), sort=sort
            )

    def _due(self, name: str) -> None:
        del self._timers[name]
        if self._frame.end is None:
            lead = self._lead
            self.led(lambda: lead.on_timer(now_s=self._frame.now_s, name=name))

    # --- death and rebuilding ---------------------------------------------------------------------

    def die(self, *, for_s: float) -> None:
        """End the coordinator with all that it knew. Another one takes over `for_s` later."""
        if not self.lives:
            return
        self.lives = False
        self.watch.forget()
        for name in list(self._timers):
            self._set_timer(SetTimer(name, None))
        for node in self._world.population.nodes:
            node.link.drop()
        self.ledger.lose_unflushed()
        self._frame.timeline.after(for_s, self._start_over, sort=FIXED)

    def _start_over(self) -> None:
        if self._frame.end is not None:
            return
        self.epoch += 1
        self.watch.starts_over()
        self.lives = True
        remembered = RecoveredState()
        for _, record in self.ledger.records:
            remembered.take(record)
        self.coordinator = self._coordinator(
            generation=remembered.generation,
            interruption=max(remembered.interruptions, default=0) + 1,
        )
        self.coordinator.remember(remembered)
        self.sessions = sessions = self._new_sessions()
        assert sessions is not None, "a coordinator dies alone only where there are several nodes"
        self._frame.say(f"a coordinator of epoch {self.epoch} comes")
        self.led(lambda: sessions.rebuild(now_s=self._frame.now_s, nodes=remembered.nodes))
