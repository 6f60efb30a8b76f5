"""`outlast run` at work: one event loop that carries out what coordinator and agent decide.

It holds both state machines, the process host, the vault and the ledger. A queue carries the
messages between the two machines.
"""

from __future__ import annotations

import functools
import signal
import socket
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from outlast.engine.agent.agent import Agent
from outlast.engine.agent.worker_watch import Reading
from outlast.engine.coordinator.machine import Coordinator
from outlast.engine.coordinator.options import CoordinatorOptions
from outlast.engine.lateness import HeldUp, estimate_fault, held_up_by
from outlast.engine.protocol.outputs import (
    Deliver,
    End,
    FindCheckpoint,
    HostStore,
    Kill,
    Manifest,
    Output,
    Record,
    SaveLast,
    SetTimer,
    Spawn,
    Tell,
    Terminate,
    ToAgent,
    ToCoordinator,
)
from outlast.errors import OutlastError
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
from outlast.model.recorded import read_verdict
from outlast.model.records import Event, Interruption
from outlast.model.terms import Mechanism
from outlast.model.verdict import summary
from outlast.runtime import clock, stop_signals
from outlast.runtime.agent.host import ProcessHost
from outlast.runtime.agent.logs import WorkerLogs
from outlast.runtime.agent.processes import Exited
from outlast.runtime.agent.zygote_client import ZygoteClient
from outlast.runtime.coordinator.bookkeeping import Bookkeeping
from outlast.runtime.coordinator.evidence import Evidence
from outlast.runtime.coordinator.removals import Removals
from outlast.runtime.coordinator.saves import find_checkpoint, save_images, write_checkpoint
from outlast.runtime.coordinator.specs import Specs
from outlast.runtime.coordinator.starts import StartNews, Starts
from outlast.runtime.coordinator.store_hosts import FIRST_STORE_NUMBER, StoreHosts, StoreNews
from outlast.runtime.loop import Loop, Timer
from outlast.runtime.tiers.vault import Vault


@dataclass(frozen=True)
class Surroundings:
    """The parts that the launcher is given. They are open already, and their opener closes them."""

    loop: Loop
    logs: WorkerLogs
    vault: Vault
    books: Bookkeeping
    specs: Specs
    checkpoint_root: Path
    zygote: ZygoteClient | None
    preload: tuple[str, ...]
    first_path: str
    tell: Callable[[str], None]
    hang_after_s: float | None  # of silence, for a script without an outlast call; None: never
    evidence_folder: Path
    diagnose: tuple[str, ...]  # finds a verdict in a folder of evidence; () for none
    missing: Callable[[], str] = lambda: ""  # what of the run's folder is not where it was


class Launcher:
    """Run the coordinator and the agent of one node in one event loop.

    `listen`, then `run`, which returns when the run is over.

    The process host reports to it (`HostEvents`).
    """

    def __init__(self, around: Surroundings, options: CoordinatorOptions) -> None:
        self._around = around
        self._loop = around.loop
        self._node = socket.gethostname()
        self._coordinator = Coordinator(options=options)
        self._agent = Agent(now_s=clock.now_s(), hang_after_s=around.hang_after_s)
        self._host = ProcessHost(around.loop, self, around.logs)
        self._timers: dict[str, Timer] = {}
        self._outputs: deque[Output] = deque()
        self._stores = StoreHosts(
            around.loop, self._host, around.specs, StoreNews(said=self._event, tell=around.tell)
        )
        self._starts = Starts(
            around.loop, self._host, around.specs,
            StartNews(given_up=self._given_up, tell=around.tell), greets=options.greets,
        )  # fmt: skip
        self._looked_s = clock.now_s()  # the newest tick
        self._held_up: HeldUp | None = None
        self._removals = Removals(around.vault, missing=around.missing, tell=around.tell)
        self._unflushed = 0  # flushes of the ledger in a row that failed
        self._end: End | None = None
        self._evidence = Evidence(
            loop=around.loop,
            folder=around.evidence_folder,
            vault=around.vault.folder,
            standing=around.books.standing,
            logs=around.logs.paths,
            command=around.diagnose,
            on_verdict=self._on_verdict,
        )

    def listen(self) -> None:
        """Take the signals that stop a run. They raise nothing from now on."""
        for number in stop_signals.heeded():
            self._loop.add_signal(
                number, functools.partial(self._on_signal, number, stop_signals.exit_code(number))
            )

    def run(self) -> End:
        self._host.open()
        if self._around.zygote is not None:
            self._host.start_zygote(
                preload=self._around.preload,
                first_path=self._around.first_path,
                client=self._around.zygote,
            )
        self._tick()
        self._flush()
        self._do(self._coordinator.start(now_s=clock.now_s()))
        self._loop.run()
        self._host.close()
        assert self._end is not None
        self._evidence.finish(self._around.books.unresumed(), within_s=limits.LAST_DIAGNOSIS_S)
        return self._end

    # --- carrying out -----------------------------------------------------------------------------

    def _do(self, outputs: list[Output]) -> None:
        """Carry out outputs in order. The outputs that they lead to come after them."""
        running = bool(self._outputs)
        self._outputs.extend(outputs)
        if running:
            return
        while self._outputs:
            output = self._outputs[0]
            self._carry_out(output)
            self._outputs.popleft()

    def _carry_out(self, output: Output) -> None:
        now_s = clock.now_s()
        if isinstance(output, ToAgent):
            self._do(self._agent.on_command(output.message, now_s=now_s))
        elif isinstance(output, ToCoordinator):
            self._do(self._coordinator.on_message(self._placed(output.message), now_s=now_s))
        elif isinstance(output, Deliver):
            if isinstance(output.message, Regroup):
                self._around.specs.takes_rank(output.worker, output.message)
            self._host.send(output.worker, output.message)
        elif isinstance(output, Kill):
            self._kill(output.worker)
        elif isinstance(output, Spawn):
            self._spawn(output)
        elif isinstance(output, SetTimer):
            self._set_timer(output)
        elif isinstance(output, Record):
            self._around.books.record(output.record)
            if isinstance(output.record, Interruption) and output.record.resumed_s is not None:
                self._resumed(output.record)
        elif isinstance(output, Tell):
            self._around.tell(output.text)
            self._around.books.record(Event(now_s, clock.wall_s(), "told", {"text": output.text}))
        else:
            self._carry_out_rare(output)

    def _carry_out_rare(self, output: Output) -> None:
        if isinstance(output, Terminate):
            self._host.terminate(output.worker)
        elif isinstance(output, HostStore):
            self._stores.order(plain=not self._coordinator.roster.outlast)
        elif isinstance(output, Manifest):
            self._write_manifest(output)
        elif isinstance(output, SaveLast):
            self._save_last(output)
        elif isinstance(output, FindCheckpoint):
            self._find_checkpoint()
        elif isinstance(output, End):
            self._end = output
            self._stores.end()
            self._starts.end()
            self._host.stop_all(term_grace_s=0.0, then=self._loop.stop)

    def _placed(self, message: FromAgent | FromWorker) -> FromAgent | FromWorker:
        """Look from outside where a process stands that does not end and cannot say it itself."""
        if not isinstance(message, WorkerLingers) or message.where:
            return message
        pid = self._host.pids().get(message.worker, 0)
        where = self._evidence.find_place(message.worker, pid) if pid else ""
        return replace(message, where=where)

    def _resumed(self, interruption: Interruption) -> None:
        """Show that training goes on, and close the evidence: now there is time for both."""
        self._loop.call_soon(
            lambda: self._around.books.show(self._coordinator, now_s=clock.now_s())
        )
        self._loop.call_soon(lambda: self._evidence.close(interruption))

    def _on_verdict(self, interruption: int, verdict: Mapping[str, object]) -> None:
        self._around.books.record(
            Event(
                clock.now_s(),
                clock.wall_s(),
                "verdict",
                {"interruption": interruption, "verdict": dict(verdict)},
            )
        )
        self._around.tell(f"interruption {interruption}: {summary(verdict)}")
        try:
            read = read_verdict(verdict, source=f"the verdict on interruption {interruption}")
        except OutlastError as error:
            # supervision boundary: what says something else is shown, and not acted on
            self._around.tell(f"no policy is asked: {error}")
        else:
            self._do(
                self._coordinator.on_verdict(
                    now_s=clock.now_s(), interruption=interruption, verdict=read
                )
            )

    def _hold_vault(self) -> None:
        if self._end is None:  # after the end, the part that opened the vault removes it
            self._removals.hold_vault()

    def _spawn(self, order: Spawn) -> None:
        self._around.books.started(order)
        self._starts.order(order)

    def _kill(self, worker: int) -> None:
        if self._starts.killed(worker):
            return  # it never starts, and that is reported like any other end
        if (pid := self._host.pids().get(worker)) is not None and self._end is None:
            hung = any(
                pid in one.pids and one.mechanism is Mechanism.HANG
                for one in self._around.books.unresumed()
            )
            self._evidence.before_kill(worker, pid, hung=hung)
        self._host.kill(worker)

    def _set_timer(self, order: SetTimer) -> None:
        if (old := self._timers.pop(order.name, None)) is not None:
            old.cancel()
        if order.at_s is not None:
            name = order.name
            self._timers[name] = self._loop.call_at(
                order.at_s,
                lambda: self._do(self._coordinator.on_timer(now_s=clock.now_s(), name=name)),
            )

    def _write_manifest(self, order: Manifest) -> None:
        folder, error = write_checkpoint(
            self._around.checkpoint_root,
            order,
            self._around.specs.run_id,
            self._coordinator.generation,
        )
        self._do(
            self._coordinator.on_manifest(
                now_s=clock.now_s(), step=order.step, folder=folder, error=error
            )
        )

    def _save_last(self, order: SaveLast) -> None:
        """Write the newest state to the disk, and say where it is: the run gives up."""
        folder, error = save_images(
            self._around.vault, self._around.checkpoint_root, order, self._around.specs.run_id,
            self._coordinator.generation, self._around.specs.workers,
        )  # fmt: skip
        if error:
            self._around.tell(f"warning: the state of step {order.step} cannot be saved: {error}")
            return
        hint = "`outlast run --resume` goes on from there"
        self._around.tell(f"the state of step {order.step} is saved in {folder}; {hint}")

    def _find_checkpoint(self) -> None:
        """Read the checkpoints. No process is alive that would have to wait.

        A checkpoint that cannot be read does not count (supervision boundary).
        """
        try:
            step, folder, refused = find_checkpoint(self._around.checkpoint_root)
        except OSError as error:
            step, folder, refused = (
                0,
                "",
                [f"{self._around.checkpoint_root} cannot be read: {error.strerror}"],
            )
        self._do(
            self._coordinator.on_checkpoint_found(
                now_s=clock.now_s(), step=step, folder=folder, refused=tuple(refused)
            )
        )

    def _event(self, message: FromAgent) -> None:
        self._do(self._agent.on_event(message, now_s=clock.now_s()))

    def _on_signal(self, number: int, exit_code: int) -> None:
        name = signal.Signals(number).name
        self._do(
            self._coordinator.ask_stop(
                now_s=clock.now_s(), reason=f"the launcher received {name}", exit_code=exit_code
            )
        )

    # --- periodic work ----------------------------------------------------------------------------

    def _tick(self) -> None:
        now_s = clock.now_s()
        self._loop.call_at(now_s + limits.TICK_S, self._tick)
        self._held_up = held_up_by(looked_s=self._looked_s, now_s=now_s) or self._held_up
        self._looked_s = now_s
        if self._removals.vault_is_gone:
            self._hold_vault()
        readings: dict[int, Reading] = {}
        for worker, pid in self._host.pids().items():
            if worker < FIRST_STORE_NUMBER:
                reading = self._around.books.look(
                    worker, pid, now_s=now_s, closely=self._agent.looks_closely(worker, now_s=now_s)
                )
                if reading is not None:
                    readings[worker] = reading
        heard_s = self._around.logs.heard_s() if self._around.hang_after_s is not None else None
        self._do(self._agent.on_tick(readings, now_s=now_s, heard_s=heard_s))

    def _flush(self) -> None:
        """Flush the ledger (supervision boundary).

        If it cannot be written, that is reported once and stops nothing.
        """
        self._loop.call_at(clock.now_s() + limits.LEDGER_FLUSH_S, self._flush)
        self._removals.look_for_folder()
        self._hold_vault()
        try:
            now_s = clock.now_s()
            deadlines = {
                name: timer.when_s for name, timer in self._timers.items() if timer.when_s > now_s
            }
            self._around.books.flush(self._coordinator, now_s=now_s, deadlines=deadlines)
        except OutlastError as error:
            self._unflushed += 1
            if self._unflushed == limits.LEDGER_TRIES_COUNT:
                self._around.tell(
                    "warning: the ledger cannot be written, and is tried again each second:"
                    f" {error}"
                )
        else:
            if self._unflushed >= limits.LEDGER_TRIES_COUNT:
                self._around.tell(
                    "the ledger can be written again; nothing that was to be written is missing"
                )
            self._unflushed = 0

    # --- the process host's news (HostEvents) -----------------------------------------------------

    def on_started(self, worker: int, pid: int, at_s: float) -> None:
        if worker >= FIRST_STORE_NUMBER:
            self._stores.on_started(worker, pid)
            return
        self._around.books.forked(worker, pid, at_s)
        self._event(WorkerStarted(worker, pid, self._node, at_s))

    def on_failed(self, worker: int, error: str) -> None:
        if worker >= FIRST_STORE_NUMBER:
            self._stores.on_failed(worker, error)
        else:
            self._starts.failed(worker, error)

    def _given_up(self, worker: int, error: str) -> None:
        """Take in that a worker could not be started, and is not tried again."""
        self._event(WorkerFailedToStart(worker, error))

    def on_exit(self, exited: Exited) -> None:
        if exited.worker >= FIRST_STORE_NUMBER:
            self._stores.on_exit(exited)
            return
        self._hold_vault()  # its successor is about to open the files that it has left
        error = self._around.specs.last_words(exited.worker)
        if self._starts.tries_again(exited, error):
            return
        if self._end is None and (exited.exit_code != 0 or exited.signal is not None):
            self._evidence.ended(exited)
        beacon, steps = self._around.books.ended(exited)
        committed = beacon.step if beacon is not None else 0
        phase = beacon.phase.value if beacon is not None else "boot"
        moved_s = beacon.at_ns / 1e9 if beacon is not None and beacon.at_ns else None
        fault = estimate_fault(seen_s=exited.at_s, moved_s=moved_s, held_up=self._held_up)
        self._event(
            WorkerExited(
                exited.worker,
                exited.pid,
                exited.exit_code,
                exited.signal,
                bool(exited.oom),
                committed,
                steps,
                steps,
                phase,
                exited.at_s,
                fault.fault_s,
                error,
            )
        )

    def on_message(self, worker: int, message: Message) -> None:
        now_s = clock.now_s()
        if worker >= FIRST_STORE_NUMBER:
            self._stores.on_message(worker, message)
        elif getattr(message, "worker", worker) == worker:
            self._starts.heard(worker)
            if isinstance(message, Joined) and self._removals.is_first_of(worker):
                self._hold_vault()  # this rank has made its files by now
            self._do(self._agent.on_worker(_from_worker(message), now_s=now_s))

    def on_channel_closed(self, worker: int, reason: str) -> None:
        """Kill a worker that has no channel any more, because it cannot be led."""
        self._host.kill(worker)

    def on_zygote_ready(self, pid: int, imports_s: float) -> None:
        self._around.books.record(
            Event(clock.now_s(), clock.wall_s(), "zygote", {"pid": pid, "imports_s": imports_s})
        )

    def on_zygote_lost(self, reason: str) -> None:
        self._event(ZygoteLost(reason))

    def on_fallback(self, reason: str) -> None:
        self._around.tell(f"warning: workers are spawned, not forked: {reason}")

    def on_preload_failed(self, error: str) -> None:
        self._do([End(2, "failed", error, "")])


def _from_worker(message: Message) -> FromWorker:
    return message  # type: ignore[return-value]  # a worker that says anything else is answered by the machine's assertion
