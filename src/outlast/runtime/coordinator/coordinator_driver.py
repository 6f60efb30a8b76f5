"""`CoordinatorDriver`: carries out what the coordinator decides, except what goes to agents.

These are timers, the ledger, checkpoints, lines for people, and answers to requests. The driver
makes no decisions.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from outlast.engine.cluster.coordinator_sessions import CoordinatorSessions
from outlast.engine.coordinator.machine import Coordinator
from outlast.engine.coordinator.requests import RunRequest
from outlast.engine.durable import Retention
from outlast.engine.protocol.outputs import (
    AnswerRequest,
    End,
    FindCheckpoint,
    Output,
    Record,
    SaveLast,
    SetTimer,
    Tell,
    WriteManifest,
)
from outlast.errors import OutlastError
from outlast.model import limits
from outlast.model.recorded import read_verdict
from outlast.model.records import Event, Interruption
from outlast.model.verdict import summary
from outlast.runtime import clock, stop_signals
from outlast.runtime.agent.evidence import EvidenceCollector
from outlast.runtime.agent.specs import Specs
from outlast.runtime.coordinator.bookkeeping import Bookkeeping
from outlast.runtime.coordinator.control_socket import ControlSocket
from outlast.runtime.coordinator.evidence_gatherer import EvidenceGatherer
from outlast.runtime.coordinator.pager import Pager
from outlast.runtime.coordinator.pruner import Pruner
from outlast.runtime.coordinator.saves import (
    find_checkpoint,
    find_kept,
    save_images,
    write_checkpoint,
)
from outlast.runtime.loop import Loop, LoopTimer
from outlast.runtime.tiers.vault import Vault


@dataclass(frozen=True)
class CoordinatorParts:
    """The parts of a run that the coordinator's driver uses.

    They are open already. The code that opened them closes them. `evidence` and `vault` are those
    of the node on which the driver runs. `gatherer` gathers the evidence of several nodes; None:
    there is one node.
    """

    loop: Loop
    books: Bookkeeping
    specs: Specs
    vault: Vault
    evidence: EvidenceCollector
    checkpoint_root: Path
    tell: Callable[[str], None]
    pager: Pager | None = None
    control: ControlSocket | None = None
    retention: Retention = field(default_factory=Retention)
    gatherer: EvidenceGatherer | None = None


class CoordinatorDriver:
    """Carry out what the coordinator decides.

    coordinator   the coordinator itself
    lead          what gets the start and the timers: the coordinator, or with several nodes the
                  CoordinatorSessions around it
    do            carries out the outputs of a call, those to agents included
    ended         is called once the run is over
    """

    def __init__(
        self,
        parts: CoordinatorParts,
        coordinator: Coordinator,
        lead: Coordinator | CoordinatorSessions,
        *,
        do: Callable[[list[Output]], object],
        ended: Callable[[End], object],
    ) -> None:
        self.coordinator = coordinator
        self._parts = parts
        self._lead = lead
        self._carry = do
        self._ended = ended
        self._timers: dict[str, LoopTimer] = {}
        self._unflushed = 0  # how many flushes of the ledger in a row have failed
        self._pruner = Pruner(parts.checkpoint_root, parts.retention)

    def listen(self) -> None:
        """Handle requests, and the signals that stop a run.

        These raise no exception from now on.
        """
        for number in stop_signals.heeded():
            self._parts.loop.add_signal(
                number,
                functools.partial(
                    self.ask_stop, stop_signals.reason(number), stop_signals.exit_code(number)
                ),
            )
        self.take_requests()

    def take_requests(self) -> None:
        """Receive the requests that people send with a command."""
        if self._parts.control is not None:
            self._parts.control.open(self._on_request)

    def start(self) -> None:
        """Begin the run."""
        self._carry(self._lead.start(now_s=clock.now_s()))

    def take_over(self, *, nodes: Mapping[str, int], patience_s: float) -> None:
        """Take over from a coordinator that has died; see `CoordinatorSessions.rebuild`."""
        lead = self._lead
        assert isinstance(lead, CoordinatorSessions)
        self._carry(lead.rebuild(now_s=clock.now_s(), nodes=nodes, patience_s=patience_s))

    def on_launcher_ended(self, node: str) -> None:
        """Count a node as lost, because its launcher has ended.

        All processes that this launcher had started are lost with it.
        """
        lead = self._lead
        assert isinstance(lead, CoordinatorSessions)
        self._carry(lead.on_launcher_ended(node, now_s=clock.now_s()))

    def stop(self) -> None:
        """Cancel all timers, and wait until older checkpoints are removed."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        self._pruner.finish()
        self._tell_what_stays()

    def do(self, outputs: list[Output]) -> None:
        """Carry out the outputs of a call of the coordinator itself."""
        lead = self._lead
        if isinstance(lead, CoordinatorSessions):
            outputs = lead.pass_on(outputs, now_s=clock.now_s())
        self._carry(outputs)

    # --- what the coordinator asks for ------------------------------------------------------------

    def carry_out(self, output: Output) -> bool:
        """Carry out one output. Return False if it is not an output of a coordinator."""
        books = self._parts.books
        if isinstance(output, SetTimer):
            self._set_timer(output)
        elif isinstance(output, Record):
            books.record(output.record)
            if self._parts.pager is not None and isinstance(output.record, Event):
                self._parts.pager.note(output.record)
            if isinstance(output.record, Interruption) and output.record.resumed_s is not None:
                self._resumed(output.record)
        elif isinstance(output, Tell):
            self._parts.tell(output.text)
            books.record(Event(clock.now_s(), clock.wall_s(), "told", {"text": output.text}))
        elif isinstance(output, WriteManifest):
            self._write_manifest(output)
        elif isinstance(output, SaveLast):
            self._save_last(output)
        elif isinstance(output, FindCheckpoint):
            self._find_checkpoint()
        elif isinstance(output, AnswerRequest):
            if self._parts.control is not None:
                self._parts.control.answer(output.number, output.state, output.text)
        elif isinstance(output, End):
            self._end(output)
        else:
            return False
        return True

    def _set_timer(self, order: SetTimer) -> None:
        if (old := self._timers.pop(order.name, None)) is not None:
            old.cancel()
        if order.at_s is not None:
            name = order.name
            self._timers[name] = self._parts.loop.call_at(
                order.at_s,
                lambda: self._carry(self._lead.on_timer(now_s=clock.now_s(), name=name)),
            )

    def _resumed(self, interruption: Interruption) -> None:
        """Show that training goes on, and write the evidence, which had to wait until now."""
        parts = self._parts
        parts.loop.call_soon(lambda: parts.books.show(self.coordinator, now_s=clock.now_s()))
        evidence = parts.evidence if parts.gatherer is None else parts.gatherer
        parts.loop.call_soon(lambda: evidence.close(interruption))

    def on_verdict(self, interruption: int, verdict: Mapping[str, object]) -> None:
        """Record and show the verdict of a diagnosis, and let the policy act on it."""
        self._parts.books.record(
            Event(
                clock.now_s(),
                clock.wall_s(),
                "verdict",
                {"interruption": interruption, "verdict": dict(verdict)},
            )
        )
        self._parts.tell(f"interruption {interruption}: {summary(verdict)}")
        if self._parts.pager is not None:
            self._parts.pager.on_verdict(interruption, verdict)
        try:
            read = read_verdict(verdict, source=f"the verdict on interruption {interruption}")
        except OutlastError as error:
            # supervision boundary: a verdict that cannot be read is shown, and not acted on
            self._parts.tell(f"no policy is asked: {error}")
        else:
            self.do(
                self.coordinator.on_verdict(
                    now_s=clock.now_s(), interruption=interruption, verdict=read
                )
            )

    def ask_stop(self, reason: str, exit_code: int) -> None:
        """Stop the run.

        The step in flight is committed first, unless a stop was requested before.
        """
        self.do(self.coordinator.ask_stop(now_s=clock.now_s(), reason=reason, exit_code=exit_code))

    def _on_request(self, request: RunRequest) -> None:
        self.do(self.coordinator.on_request(now_s=clock.now_s(), request=request))

    def _end(self, end: End) -> None:
        """Answer the open requests, and end the run."""
        self.do(self.coordinator.requests.on_end(clock.now_s(), end))
        if self._parts.control is not None:
            self._parts.control.stop_listening()
        self._ended(end)

    # --- checkpoints ------------------------------------------------------------------------------

    def _write_manifest(self, order: WriteManifest) -> None:
        parts = self._parts
        folder, error = write_checkpoint(
            parts.checkpoint_root, order, parts.specs.run_id, self.coordinator.generation
        )
        if folder:
            self._pruner.ask()
        self.do(
            self.coordinator.on_manifest(
                now_s=clock.now_s(), step=order.step, folder=folder, error=error
            )
        )

    def _save_last(self, order: SaveLast) -> None:
        """Write the newest state to the disk, because the run gives up. Return where it is."""
        parts = self._parts
        folder, error = save_images(
            parts.vault,
            parts.checkpoint_root,
            order,
            parts.specs.run_id,
            self.coordinator.generation,
            self.coordinator.run.options.world_size,
        )
        if error:
            parts.tell(f"warning: the state of step {order.step} cannot be saved: {error}")
            return
        hint = "`outlast run --resume` goes on from there"
        parts.tell(f"the state of step {order.step} is saved in {folder}; {hint}")

    def _find_checkpoint(self) -> None:
        """Read the copies in the vault, and the checkpoints if they may be newer.

        This may block, because no worker is alive. A source that cannot be read does not count
        (supervision boundary).
        """
        root, run = self._parts.checkpoint_root, self.coordinator.run
        kept_step, refused = find_kept(self._parts.vault, run.options.world_size)
        step, folder = 0, ""
        if kept_step <= run.sources.checkpoint.step:
            try:
                step, folder, also = find_checkpoint(root, self._parts.specs.run_id)
            except OSError as error:
                also = [f"no checkpoint is used: {root} cannot be read: {error.strerror}"]
            refused += also
        self.do(
            self.coordinator.on_checkpoint_found(
                now_s=clock.now_s(),
                step=step,
                folder=folder,
                refused=tuple(refused),
                kept_step=kept_step,
            )
        )

    def _tell_what_stays(self) -> None:
        if error := self._pruner.take_error():
            self._parts.tell(
                f"warning: older checkpoints are not removed: {error}; they are removed with the"
                " next one, or by `outlast ckpt prune`"
            )

    # --- the ledger -------------------------------------------------------------------------------

    def flush(self, *, imports: bool = False) -> None:
        """Flush the ledger. It is called once a second (supervision boundary).

        If it cannot be written, that is reported once and stops nothing. `imports` tells whether
        the process that workers are forked from is not done with its imports.
        """
        self._tell_what_stays()
        tell, now_s = self._parts.tell, clock.now_s()
        deadlines = {
            name: timer.when_s for name, timer in self._timers.items() if timer.when_s > now_s
        }
        try:
            self._parts.books.flush(
                self.coordinator, now_s=now_s, deadlines=deadlines, imports=imports
            )
        except OutlastError as error:
            self._unflushed += 1
            if self._unflushed == limits.LEDGER_TRIES_COUNT:
                tell(
                    "warning: the ledger cannot be written, and is tried again each second:"
                    f" {error}"
                )
        else:
            if self._unflushed >= limits.LEDGER_TRIES_COUNT:
                tell("the ledger can be written again; nothing that was to be written is missing")
            self._unflushed = 0
