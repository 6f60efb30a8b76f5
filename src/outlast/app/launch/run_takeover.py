"""The part of a launcher that leads a run of several nodes, from the start or by election.

A node that is elected goes on from its own copy of the ledger, which it has kept as a voter
(runtime/agent/standby.py). It moves its ledger to the run's folder if it can see that folder and no
launcher has the folder open any more. Otherwise it moves the ledger to a folder of its own, which
is the run's folder from then on.
"""

from __future__ import annotations

import contextlib
import functools
import math
import os
import signal
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path

from outlast.app.launch import object_storage
from outlast.app.launch.live import LiveView
from outlast.app.launch.node_setup import (
    WorkerOutput,
    close_books,
    coordinator_options,
    copier_of,
    finish_uploads,
    folder_card,
    pager,
    say_end,
    state_of,
)
from outlast.app.launch.resuming import Beginning
from outlast.app.launch.torchrun import RunOptions
from outlast.engine.coordinator.machine import Coordinator
from outlast.engine.coordinator.options import CoordinatorOptions
from outlast.engine.coordinator.restore_sources import Restart
from outlast.engine.coordinator.stages import Stage
from outlast.engine.coordinator.takeover import RecoveredState
from outlast.engine.protocol.outputs import End
from outlast.errors import OutlastError, RunFolderError
from outlast.model import limits
from outlast.model.messages import Admitted, RunOver
from outlast.model.records import LED_ELSEWHERE, Interruption, Life, Record, Records
from outlast.runtime import clock, stop_signals
from outlast.runtime.agent.agent_driver import NodeParts
from outlast.runtime.agent.remote_agent import RemoteAgent
from outlast.runtime.agent.standby import Election, Standby
from outlast.runtime.coordinator.bookkeeping import Bookkeeping
from outlast.runtime.coordinator.cluster_coordinator import (
    Admission,
    ClusterCoordinator,
    Succession,
)
from outlast.runtime.coordinator.control_socket import ControlSocket
from outlast.runtime.coordinator.coordinator_driver import CoordinatorParts
from outlast.runtime.coordinator.evidence_gatherer import EvidenceGatherer, GathererPlace
from outlast.runtime.coordinator.pager import Pager
from outlast.runtime.coordinator.quorum import QuorumPlace
from outlast.runtime.coordinator.reported_lives import ReportedLives
from outlast.runtime.coordinator.upload_process import UploadProcess
from outlast.runtime.folders import node_folders
from outlast.runtime.folders.leader_file import write_leader
from outlast.runtime.folders.run_folder import RunFolder, read_card
from outlast.runtime.ledger.copier import LedgerCopier
from outlast.runtime.ledger.pointer import forget_pointer
from outlast.runtime.ledger.store import Ledger
from outlast.runtime.loop import Loop
from outlast.runtime.network.listener import ListeningSocket


@dataclass(frozen=True)
class LeaderPlace:
    """The things that a node needs to lead the run, now or later.

    options  the options of the run
    token    the shared secret by which nodes prove that they belong to the run; None: there is none
    facts    what the node learned when it was admitted
    script   the digest of the script on this node
    own      the run's folder if this node leads, and cannot use the folder of the launcher before
    """

    options: RunOptions
    loop: Loop
    view: LiveView
    sink: WorkerOutput
    token: bytes | None
    facts: Admitted
    script: str
    own: Path


@dataclass
class LedRun:
    """The things that are open while this node leads."""

    folder: RunFolder
    ledger: Ledger
    coordinator: ClusterCoordinator
    books: Bookkeeping
    pager: Pager | None
    control: ControlSocket
    copier: LedgerCopier
    uploads: UploadProcess | None = None
    is_over: bool = False  # the run has ended, and no node leads it on


class Leadership:
    """Lead the run from this node, or be ready to.

    The launcher makes one, passes the parts of the node to it (`set_parts`, `set_agent`), and calls
    `finish` at the end. On the node that leads from the start, the launcher calls
    `open_coordinator`; on a node that is elected later, the standby calls `lead`. After
    `hand_run_over` or `resign`, another node leads the run on.

    led      what is open if this node leads or has led; None: it never has
    standby  what this node does as a voter; None: it is not a voter
    """

    def __init__(self, place: LeaderPlace) -> None:
        self.led: LedRun | None = None
        self._place = place
        self._parts: NodeParts | None = None
        self.standby: Standby | None = None
        self._agent: RemoteAgent | None = None
        self._noticed = False  # while this node led, a signal said that its machine is taken away

    def set_parts(self, parts: NodeParts, standby: Standby | None) -> None:
        """Set the parts of this node. Call it before all other methods."""
        self._parts, self.standby = parts, standby

    def set_agent(self, agent: RemoteAgent) -> None:
        """Set the agent of this node, once it is made."""
        self._agent = agent

    def life_over(self, life: Life) -> None:
        """Report to the coordinator how long a process of this node lived, once it has ended."""
        if self._agent is not None:
            self._agent.tell_life(life)

    # --- the start as leader ----------------------------------------------------------------------

    def lead(self, election: Election) -> None:
        """Lead the run from now on, after this node was elected.

        Raises OutlastError if the run's folder cannot be opened, or the ledger cannot be moved.
        """
        place = self._place
        self._let_go()
        folder, ledger = self._open(election.ledger)
        records = ledger.read()
        state = recovered(records)
        engine = successor_options(place.options, records, ledger, state, election.epoch)
        led = self.open_coordinator(
            folder, ledger, engine, election.listening, lives=_lives_in(records),
            start_step=records.newest_step, epoch=election.epoch,
        )  # fmt: skip  # one argument a line would hide what happens
        led.coordinator.listen()
        place.view.print_line(f"this node leads the run now, and its ledger lies in {folder.path}")
        led.coordinator.take_over(
            Succession(state, election.named, election.loyal, election.claimed_s, records)
        )
        led.coordinator.gather_left(unjudged(records))
        self.listen()

    def open_coordinator(
        self, folder: RunFolder, ledger: Ledger, engine: CoordinatorOptions,
        listening: ListeningSocket, *, lives: ReportedLives, start_step: int, epoch: int = 1,
    ) -> LedRun:  # fmt: skip  # one argument a line would hide what happens
        """Open the coordinator on this node, with its ledger.

        engine      the options of the coordinator
        listening   the socket at which agents connect
        lives       the processes that live, as their agents have reported
        start_step  the newest step in the ledger
        epoch       the number of this leadership: one more for each node that leads
        """
        place, parts, standby = self._place, self._parts, self.standby
        nodes = place.options.nodes
        assert parts is not None and nodes is not None
        copier = copier_of(folder)

        def written_down(record: Record) -> None:
            copier.note(record)
            coordinator.quorum.copies.add(record)

        books = Bookkeeping(
            ledger=ledger, records=ledger.read(), start_step=start_step, living=lives.living,
            gauges=lambda: lives.gauges, show=place.view.update, log_of=lives.log_of,
            also=written_down,
        )  # fmt: skip  # one argument a line would hide what happens
        people = pager(place.options, folder, place.loop, books, place.view)
        control = ControlSocket(place.loop, folder.path, tell=place.view.print_line)
        coordinator_parts = CoordinatorParts(
            place.loop, books, parts.specs, parts.vault, parts.evidence,
            Path(place.facts.checkpoints), place.view.print_line, people, control,
            retention=place.options.checkpoints.retention,
            gatherer=self._gatherer(folder, lambda: coordinator),
        )  # fmt: skip  # one argument a line would hide what happens
        facts = replace(place.facts, folder=str(folder.path.resolve()))
        admission = Admission(listening, nodes.run, place.script, place.token, facts)

        def written() -> Records:
            ledger.flush()
            return ledger.read()

        quorum_place = QuorumPlace(
            place.loop, nodes.name, epoch, facts.lease_s, written,
            lambda: list(coordinator.driver.coordinator.nodes),
            (lambda position: None) if standby is None else standby.note_position, self.resign,
            place.view.print_line, books.record,
        )  # fmt: skip  # one argument a line would hide what happens
        coordinator = ClusterCoordinator(
            coordinator_parts,
            engine,
            admission,
            place=quorum_place,
            lives=lives,
            ended=place.loop.stop,
        )
        host, port = listening.getsockname()[:2]
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        with contextlib.suppress(OSError):  # it is a hint for nodes that are started later
            write_leader(folder.path, node=nodes.name, epoch=epoch, endpoint=address)
        uploads = object_storage.start_uploads(
            place.options, run=folder.run, root=Path(place.facts.checkpoints), loop=place.loop,
            tell=place.view.print_line, record=books.record,
        )  # fmt: skip  # one argument a line would hide what happens
        if folder.note:
            place.view.print_line(f"warning: {folder.note}")
        copier.begin(tell=place.view.print_line)
        self.led = LedRun(folder, ledger, coordinator, books, people, control, copier, uploads)
        return self.led

    def _gatherer(
        self, folder: RunFolder, lead: Callable[[], ClusterCoordinator]
    ) -> EvidenceGatherer:
        """Return what gathers the evidence of all nodes into the run's folder.

        lead   returns the coordinator, once it is made
        """
        place, parts = self._place, self._parts
        assert parts is not None

        def machine() -> Coordinator:
            return lead().driver.coordinator

        return EvidenceGatherer(
            GathererPlace(
                place.loop,
                folder.path / "evidence",
                send=lambda node, message: lead().tell(node, message),
                nodes=lambda: set(machine().nodes),
                generation=lambda: machine().generation,
                is_calm=lambda: machine().runs_plain or machine().stage is Stage.TRAINING,
                judge=parts.evidence.find_verdict,
                tell=place.view.print_line,
            )
        )

    def _open(self, ledger: Ledger) -> tuple[RunFolder, Ledger]:
        """Open the folder that is the run's from now on, and move the ledger there.

        Return both. The folder of the launcher before is used if it can be seen and locked.
        """
        place = self._place
        shared = Path(place.facts.folder)
        release, card = version("outlast"), folder_card(place.options)
        run = place.facts.run
        if node_folders.is_folder_of(shared, run):
            with contextlib.suppress(RunFolderError):  # the launcher that led still has it open
                name = str(read_card(shared)["name"])
                folder = RunFolder.take_over(
                    shared, run=run, name=name, version=release, options=card,
                    state=state_of(place.options, shared),
                )  # fmt: skip  # one argument a line would hide what happens
                return folder, _moved(ledger, folder)
        name = Path(place.options.program.script).stem
        folder = RunFolder.take_over(
            place.own, run=run, name=name, version=release, options=card,
            state=state_of(place.options, place.own),
        )  # fmt: skip  # one argument a line would hide what happens
        return folder, _moved(ledger, folder)

    # --- signals and requests ---------------------------------------------------------------------

    def listen(self) -> None:
        """Handle signals from now on, and requests of `outlast` commands while this node leads."""
        if self.led is not None:
            self.led.coordinator.driver.take_requests()
        for number in stop_signals.heeded():
            self._place.loop.add_signal(number, functools.partial(self._on_signal, number))

    def _on_signal(self, number: int) -> None:
        """Leave the run, or stop the run if this node leads it.

        Some signals are notices that the machine is taken away. Then the coordinator drains this
        node first. If this node leads, that is done only if another node can take the run over;
        otherwise the run is stopped.
        """
        reason, code = stop_signals.reason(number), stop_signals.exit_code(number)
        agent, led, notice = self._agent, self.led, number in stop_signals.NOTICES
        assert agent is not None
        if led is None:
            (agent.preempted if notice else agent.leave)(code, reason)
        elif notice and not self._noticed and agent.is_in and led.coordinator.quorum.successors:
            self._noticed = True
            agent.preempted(code, reason)
        else:
            led.coordinator.driver.ask_stop(reason, code)

    def hand_run_over(self) -> bool:
        """Hand the run over to another node, if this node leads.

        It is called when this node has no more ranks and is about to leave. Return False if no
        other node can take the run over; if the machine is taken away, the run is stopped then.
        """
        led = self.led
        if led is None:
            return True
        successors = led.coordinator.quorum.successors
        if not successors:
            if self._noticed:
                why = "this node is taken away, and nobody can take the run over"
                led.coordinator.driver.ask_stop(why, stop_signals.exit_code(signal.SIGTERM))
            return False
        self._step_down(
            led, f"this node hands the run over: {' or '.join(successors)} leads it from now on", 0
        )
        return True

    def resign(self) -> None:
        """Stop leading: without a majority of the voters, another node may lead by now."""
        led = self.led
        if led is None:
            return
        self._step_down(
            led,
            "this node has lost the majority of the voters, and leads the run no longer: what"
            " follows is in the ledger of the node that leads now",
            1,
        )

    def _step_down(self, led: LedRun, text: str, exit_code: int) -> None:
        """Close the coordinator and end the session in the ledger: another node leads on."""
        led.coordinator.close()
        if self._parts is not None:
            self._parts.evidence.stop()
        self._place.view.print_line(text)
        with contextlib.suppress(OutlastError):
            led.ledger.end_session(
                ended_s=clock.now_s(), state="stopped", exit_code=exit_code,
                reason=LED_ELSEWHERE,
            )  # fmt: skip  # one argument a line would hide what happens
        self._let_go()  # the folder too: the new leader may bring its ledger there

    def missing(self) -> str:
        """Return what of the run's folder is missing, in words; "" if nothing is.

        It is always "" on a node that does not lead.
        """
        return "" if self.led is None else self.led.folder.missing()

    def on_agent_left(self) -> None:
        """End the launcher's work once this node's agent has left the run.

        A node that leads ends the run as failed, unless it has ended already.
        """
        led, agent = self.led, self._agent
        if led is None:
            self._place.loop.stop()
        elif led.coordinator.end is None and agent is not None and agent.over is not None:
            over = agent.over
            led.coordinator.driver.do([End(over.exit_code, "failed", over.reason, "")])

    def on_verdict(self, interruption: int, verdict: Mapping[str, object]) -> None:
        """Pass the verdict of a diagnosis on this node to the coordinator, if it is here."""
        if self.led is not None:
            self.led.coordinator.driver.on_verdict(interruption, verdict)

    # --- the end ----------------------------------------------------------------------------------

    def finish(self, over: RunOver | None) -> int:
        """Write the end of the run down, if this node leads, and return the exit code."""
        led = self.led
        end = None if led is None else led.coordinator.end
        if over is not None and over.log:
            self._place.view.print_line(
                f"the log of rank 0 is in {over.log} on node {over.log_node}"
            )
        if led is None or end is None:
            assert over is not None
            if over.exit_code != 0 and over.exit_code not in stop_signals.EXIT_CODES:
                print(f"error: {over.reason}", file=sys.stderr)
            return over.exit_code
        assert self._parts is not None
        led.coordinator.close()
        self._parts.evidence.finish((), within_s=limits.LAST_DIAGNOSIS_S)
        self._place.sink.close()
        close_books(led.books, end, self._place.view)
        if led.uploads is not None:
            finish_uploads(led.uploads, led.ledger)
        self._move_ledger_back(led)
        led.is_over = True
        say_end(end, led.folder)
        return end.exit_code

    def _move_ledger_back(self, led: LedRun) -> None:
        """Move the ledger to the folder in which the run began, if this node sees that folder.

        The ledger stays where it is if another launcher still has that folder open. That launcher
        does not know yet that it leads no longer.
        """
        home = Path(self._place.facts.folder)
        run, name = led.folder.run, led.folder.name
        if led.folder.path == home or not node_folders.is_folder_of(home, run):
            return
        release, card = version("outlast"), folder_card(self._place.options)
        with contextlib.suppress(OutlastError, OSError):
            folder = RunFolder.take_over(
                home, run=run, name=name, version=release, options=card, state=led.folder.state
            )
            led.copier.close(is_last=False)
            forget_pointer(led.folder.path)
            led.folder.close()
            led.folder = folder
            if folder.state is None:
                led.ledger = _moved(led.ledger, folder)
            led.copier = copier_of(folder)

    def close(self) -> None:
        """Close what is open."""
        self._let_go()

    def _let_go(self) -> None:
        """Close what was open while this node led."""
        if self.led is not None:
            if self.led.uploads is not None:
                self.led.uploads.close()
            if self.led.pager is not None:
                self.led.pager.close()
            self.led.control.close()
            self.led.coordinator.close()
            self.led.ledger.close()
            self.led.copier.close(is_last=self.led.is_over)
            self.led.folder.close()
            self.led = None


def _moved(ledger: Ledger, folder: RunFolder) -> Ledger:
    """Move the ledger to where it lies while this node leads, and let readers find it there."""
    moved = ledger.moved_to(folder.ledger, pid=os.getpid())
    folder.point_to_ledger()
    return moved


# --- the state in the copy of the ledger ----------------------------------------------------------


def recovered(records: Records) -> RecoveredState:
    """Return the state that a new coordinator goes on from, out of a ledger's last session."""
    part, state = records.sessions[-1], RecoveredState()
    written: list[tuple[float, Record]] = [(one.at_s, one) for one in part.events]
    written += [(one.began_s, one) for one in part.generations]
    for _, record in sorted(written, key=lambda one: one[0]):
        state.take(record)
    for interruption in part.interruptions:
        state.take(interruption)
    state.generation = max(state.generation, records.newest_generation)
    return state


def unjudged(records: Records) -> list[Interruption]:
    """Return the interruptions of the last session that are over and have no verdict."""
    part = records.sessions[-1]
    judged = {one.data.get("interruption") for one in part.events if one.kind == "verdict"}
    return [
        one
        for one in part.interruptions
        if one.parent is None and one.resumed_s is not None and one.id not in judged
    ]


def _lives_in(records: Records) -> ReportedLives:
    """Return the processes that have not ended, as they were reported last."""
    lives = ReportedLives()
    for life in records.sessions[-1].lives:
        if life.ended_s is None:
            settled_s = (life.opened_s or life.assigned_s) + math.fsum(life.seconds.values())
            lives.note(life, now_s=min(clock.now_s(), settled_s))
    return lives


def successor_options(
    options: RunOptions, records: Records, ledger: Ledger, state: RecoveredState, epoch: int
) -> CoordinatorOptions:
    """Return the options of a coordinator of `epoch`, which goes on counting from the ledger."""
    newest, resumed = ledger.newest(), records.sessions[-1].resumed
    beginning, step, source = Beginning(), resumed.get("step"), resumed.get("from")
    if isinstance(step, int) and step > 0:
        start = Restart(step, "checkpoint", "checkpoint", str(source))
        beginning = Beginning(start, (str(source), step), highest=records.highest_step)
    made = coordinator_options(options, beginning, newest)
    return replace(
        made,
        generation=state.generation,
        first_worker=max(made.first_worker, epoch * limits.WORKERS_PER_EPOCH_COUNT),
    )
