"""The driver of a node's agent: it carries out what the agent decides on the node.

It owns the processes of the node, the hosts of the store, and what is read about them: beacons,
exits, evidence. It decides nothing, and does not know of other nodes.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Protocol

from outlast.engine.agent.agent import Agent
from outlast.engine.agent.worker_watch import Reading
from outlast.engine.lateness import HeldUp, estimate_fault, held_up_by
from outlast.engine.protocol.outputs import Deliver, HostStore, Kill, Output, Spawn, Terminate
from outlast.model import limits
from outlast.model.messages import (
    FromAgent,
    FromWorker,
    Joined,
    Message,
    Regroup,
    WorkerExited,
    WorkerFailedToStart,
    WorkerLingers,
    WorkerStarted,
    ZygoteLost,
)
from outlast.runtime import clock
from outlast.runtime.agent.beacons import Beacons
from outlast.runtime.agent.copy_keeper import CopyKeeper
from outlast.runtime.agent.evidence import EvidenceCollector
from outlast.runtime.agent.host import ProcessHost
from outlast.runtime.agent.logs import WorkerLogs
from outlast.runtime.agent.oom import OomKill
from outlast.runtime.agent.processes import Exited
from outlast.runtime.agent.removals import Removals
from outlast.runtime.agent.secured_evidence import SecuredEvidence
from outlast.runtime.agent.specs import Specs
from outlast.runtime.agent.starts import StartNews, Starts
from outlast.runtime.agent.store_hosts import FIRST_STORE_NUMBER, StoreHosts, StoreNews
from outlast.runtime.agent.zygote_client import ZygoteClient
from outlast.runtime.image_writer.writer_process import WriterProcess
from outlast.runtime.loop import Loop
from outlast.runtime.tiers.vault import Vault


@dataclass(frozen=True)
class NodeOptions:
    """This says how a node starts its processes, and when it regards them as hung.

    zygote         forks the workers; None: each is started as a fresh interpreter
    preload        modules that are imported before workers are forked
    first_path     the script's folder, where these modules may be
    hang_after_s   the seconds of silence after which a script without an outlast call counts as
                   hung; None: it never does
    greets         workers say Hello once they run; a program (--no-python) never does
    """

    zygote: ZygoteClient | None
    preload: tuple[str, ...]
    first_path: str
    hang_after_s: float | None
    greets: bool


@dataclass(frozen=True)
class NodeParts:
    """The parts of a node, which are open already. The code that opened them also closes them.

    missing   returns in words what is missing of the run's folder; "": nothing is
    keeper    keeps copies for ranks of other nodes; None if there is only one node
    secured   keeps the evidence of this node, and sends it; None if there is only one node
    """

    node: str
    loop: Loop
    logs: WorkerLogs
    vault: Vault
    beacons: Beacons
    specs: Specs
    evidence: EvidenceCollector
    options: NodeOptions
    tell: Callable[[str], None]
    missing: Callable[[], str] = lambda: ""
    keeper: CopyKeeper | None = None
    secured: SecuredEvidence | None = None


class AgentDriverEvents(Protocol):
    """The driver's calls to its owner, which hands them to the agent, and acts on its outputs."""

    def on_event(self, message: FromAgent) -> None:
        """Handle an event of a process of this node."""

    def on_worker(self, message: FromWorker) -> None:
        """Handle a message of a worker."""

    def on_tick(self, outputs: list[Output]) -> None:
        """Carry out what the agent asks for after it has looked at its workers."""

    def preload_failed(self, error: str) -> None:
        """Handle a module of --preload that cannot be imported."""

    def zygote_ready(self, pid: int, imports_s: float) -> None:
        """Note that the zygote can be forked now. Its imports took `imports_s` seconds."""

    def is_hung(self, pid: int) -> bool:
        """Return True if this process is known to hang."""

    def runs_plain(self) -> bool:
        """Return True if the script has made no outlast call so far."""


class AgentDriver:
    """Carry out what the agent of a node decides. `open`, then let the loop run, then `close`.

    The process host reports to it (`HostEvents`).
    """

    def __init__(self, parts: NodeParts, agent: Agent, events: AgentDriverEvents) -> None:
        self._parts = parts
        self._agent = agent
        self._events = events
        loop = parts.loop
        self.host = ProcessHost(loop, self, parts.logs)
        self._stores = StoreHosts(
            loop,
            self.host,
            parts.specs,
            StoreNews(
                said=events.on_event,
                tell=parts.tell,
                hopeless=lambda reason: self._starts.store_is_hopeless(reason),
            ),
        )
        self._starts = Starts(
            loop,
            self.host,
            parts.specs,
            StartNews(given_up=self._given_up, tell=parts.tell),
            greets=parts.options.greets,
        )
        self._looks = _Looks()
        self._writer = WriterProcess(
            loop, parts.vault.folder, tell=parts.tell, orphaned=events.on_worker
        )
        self._removals = Removals(parts.vault, missing=parts.missing, tell=parts.tell)
        self._is_over = False

    def open(self) -> None:
        """Start the zygote, and begin the ticks at which the workers are looked at."""
        options = self._parts.options
        self.host.open()
        if options.zygote is not None:
            self.host.start_zygote(
                preload=options.preload, first_path=options.first_path, client=options.zygote
            )
        self._tick()

    def end(self, then: Callable[[], None]) -> None:
        """Kill all processes of the node, and call `then` once they are gone: the run is over."""
        self._is_over = True
        self._stores.end()
        self._starts.end()
        self.host.stop_all(term_grace_s=0.0, then=then)

    def close(self) -> None:
        """Kill and reap the remaining processes."""
        self.host.close()
        self._writer.close()

    def look_after_files(self) -> None:
        """Check whether the vault or the run's folder was removed. It is called once a second."""
        self._removals.look_for_folder()
        self._hold_vault()

    # --- what the agent orders --------------------------------------------------------------------

    def carry_out(self, output: Output) -> bool:
        """Carry out one output. Return False if it is not an output of an agent."""
        if isinstance(output, Deliver):
            message = output.message
            if isinstance(message, Regroup):
                message = self._parts.specs.takes_rank(output.worker, message)
                self._writer.roll_back(generation=message.generation, step=message.step)
            self.host.send(output.worker, message)
        elif isinstance(output, Kill):
            self._kill(output.worker)
        elif isinstance(output, Spawn):
            self._parts.beacons.started(output)
            self._starts.order(output)
        elif isinstance(output, Terminate):
            self.host.terminate(output.worker, interrupt=output.interrupt)
        elif isinstance(output, HostStore):
            self._stores.order(plain=self._events.runs_plain())
        else:
            return False
        return True

    def add_place(self, message: FromAgent | FromWorker) -> FromAgent | FromWorker:
        """Return the message.

        A WorkerLingers without a place gets one, as it is seen from outside.
        """
        if not isinstance(message, WorkerLingers) or message.where:
            return message
        pid = self.host.pids().get(message.worker, 0)
        where = self._parts.evidence.find_place(message.worker, pid) if pid else ""
        return replace(message, where=where)

    def _kill(self, worker: int) -> None:
        if self._starts.killed(worker):
            return  # it never starts, and that is reported like any other end
        if (pid := self.host.pids().get(worker)) is not None and not self._is_over:
            self._parts.evidence.before_kill(worker, pid, hung=self._events.is_hung(pid))
        self.host.kill(worker)

    def _hold_vault(self) -> None:
        if not self._is_over:  # after the end, the part that opened the vault removes it
            self._removals.hold_vault()

    # --- periodic work ----------------------------------------------------------------------------

    def _tick(self) -> None:
        now_s, parts = clock.now_s(), self._parts
        parts.loop.call_at(now_s + limits.TICK_S, self._tick)
        self._looks.note(now_s)
        if self._removals.vault_is_gone:
            self._hold_vault()
        readings: dict[int, Reading] = {}
        for worker, pid in self.host.pids().items():
            if worker < FIRST_STORE_NUMBER:
                closely = self._agent.looks_closely(worker, now_s=now_s)
                reading = parts.beacons.look(worker, pid, now_s=now_s, closely=closely)
                if reading is not None:
                    readings[worker] = reading
        heard_s: Mapping[int, float] | None = None
        if parts.options.hang_after_s is not None:
            heard_s = parts.logs.heard_s()
        self._events.on_tick(self._agent.on_tick(readings, now_s=now_s, heard_s=heard_s))

    # --- events of the process host (HostEvents) --------------------------------------------------

    def on_started(self, worker: int, pid: int, at_s: float) -> None:
        if worker >= FIRST_STORE_NUMBER:
            self._stores.on_started(worker, pid)
            return
        self._parts.beacons.forked(worker, pid)
        self._events.on_event(WorkerStarted(worker, pid, self._parts.node, at_s))

    def on_failed(self, worker: int, error: str) -> None:
        if worker >= FIRST_STORE_NUMBER:
            self._stores.on_failed(worker, error)
        else:
            self._starts.failed(worker, error)

    def _given_up(self, worker: int, error: str) -> None:
        """Report a worker that could not be started, and is not tried again."""
        self._parts.specs.slots.free(worker)
        self._events.on_event(WorkerFailedToStart(worker, error))

    def on_exit(self, exited: Exited) -> None:
        if exited.worker >= FIRST_STORE_NUMBER:
            self._stores.on_exit(exited)
            return
        self._hold_vault()  # its successor is about to open the files of this rank
        killed = exited.signal == signal.SIGKILL
        error = self._parts.specs.last_words(exited.worker, killed=killed)
        if self._starts.tries_again(exited, error):
            return
        self._parts.specs.slots.free(exited.worker)
        if not self._is_over and (exited.exit_code != 0 or exited.signal is not None):
            self._parts.evidence.ended(exited)
        beacon, steps = self._parts.beacons.ended(exited)
        committed = beacon.step if beacon is not None else 0
        phase = beacon.phase.value if beacon is not None else "boot"
        moved_s = beacon.at_ns / 1e9 if beacon is not None and beacon.at_ns else None
        fault = estimate_fault(
            seen_s=exited.at_s,
            moved_s=moved_s,
            looked_s=self._looks.looked_s,
            held_up=self._looks.held_up,
        )
        self._events.on_event(
            WorkerExited(
                exited.worker,
                exited.pid,
                exited.exit_code,
                exited.signal,
                exited.oom is OomKill.OURS,
                committed,
                steps,
                steps,
                phase,
                exited.at_s,
                fault.fault_s,
                error,
                exited.oom is OomKill.SOMEBODY,
            )
        )

    def on_message(self, worker: int, message: Message) -> None:
        if worker >= FIRST_STORE_NUMBER:
            self._stores.on_message(worker, message)
        elif getattr(message, "worker", worker) == worker:
            self._starts.heard(worker)
            if isinstance(message, Joined) and self._parts.specs.saves_to_disk:
                self._writer.start()
            if isinstance(message, Joined) and self._removals.is_first_of(worker):
                self._hold_vault()  # this rank has created its files by now
            self._events.on_worker(_from_worker(message))

    def on_channel_closed(self, worker: int, reason: str) -> None:
        """Kill a worker that has no channel any more, because it cannot get messages."""
        self.host.kill(worker)

    def on_zygote_ready(self, pid: int, imports_s: float) -> None:
        self._events.zygote_ready(pid, imports_s)

    def on_zygote_lost(self, reason: str) -> None:
        self._events.on_event(ZygoteLost(reason))

    def on_fallback(self, reason: str) -> None:
        self._parts.tell(
            "warning: workers are spawned, not forked, which takes seconds instead of milliseconds:"
            f" {reason}"
        )

    def on_preload_failed(self, error: str) -> None:
        self._events.preload_failed(error)


class _Looks:
    """This says when the launcher last looked at its processes, and when it last did not run."""

    def __init__(self) -> None:
        self.looked_s = clock.now_s()  # the time of the newest tick
        self.held_up: HeldUp | None = None

    def note(self, now_s: float) -> None:
        """Note that the launcher looks at its processes now."""
        self.held_up = held_up_by(looked_s=self.looked_s, now_s=now_s) or self.held_up
        self.looked_s = now_s


def _from_worker(message: Message) -> FromWorker:
    # The machine's assertion answers a worker that says anything else.
    return message  # type: ignore[return-value]
