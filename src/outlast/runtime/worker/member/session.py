"""`WorkerSession`: one worker's connection to its agent, and the pages that show its state.

A session has a socket with a listener thread, the beacon, the book of seconds, and the state of the
protocol (`WorkerMachine`).

The listener thread reads the agent's messages while the main thread computes or is blocked in a
collective. Both threads drive one WorkerMachine under one lock, and its outputs are carried out
here. A `Say` is sent to the agent. A `Wake` shuts the group's sockets, so that a blocked collective
raises. A `WakeForPlan` wakes a main thread that waits for it.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
import traceback
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from outlast.engine.protocol.outputs import (
    AnswerPing,
    Output,
    Say,
    SendOut,
    Wake,
    WakeForPlan,
)
from outlast.engine.protocol.worker import WorkerMachine, WorkerState
from outlast.errors import CapacityError, CorruptError, Reenter, StepInterrupted, UsageError
from outlast.model import limits
from outlast.model.beacon import Beacon
from outlast.model.booking import Book
from outlast.model.messages import (
    ForWorker,
    FromWorker,
    Hello,
    Inventory,
    Message,
    Parked,
    Pong,
    Refused,
    Regroup,
    Warned,
)
from outlast.model.terms import Cause, Phase, Tier
from outlast.runtime import clock, linux
from outlast.runtime.child import ChildSpec
from outlast.runtime.network.channel import BlockingChannel
from outlast.runtime.tiers.lease_page import LeasePage
from outlast.runtime.tiers.vault import Vault
from outlast.runtime.worker.instructions import marks, trial_plan
from outlast.runtime.worker.process import threads
from outlast.runtime.worker.process.beacon_page import BeaconPage
from outlast.runtime.worker.process.error_text import (
    first_line,
    one_line,
    text_with_line,
    traceback_end,
)
from outlast.runtime.worker.process.peers import is_peer_failure
from outlast.runtime.worker.process.places import place_of_process
from outlast.runtime.worker.process.witness import Witness
from outlast.runtime.worker.script.onlooker import Onlooker
from outlast.runtime.worker.transfer import image_dialogue, image_fetch, parity_fetch


def _nothing() -> None:
    return None


def _unsent(_: SendOut) -> None:
    """Send nothing: this process has no image. The coordinator calls the drain off."""


def _minus_one() -> int:
    return -1


@dataclass(slots=True)
class GroupCalls:
    """Functions that act on the process group. `Membership` sets them when the script joins.

    wake          shut the group's sockets, so that a collective that is blocked raises
    interrupt     interrupt the main thread in the body of its step
    collectives   return how many collectives the script has called; -1: they are not counted
    cut_off       return the ranks that do not acknowledge what was sent to them, each with the
                  number of bytes
    cut_at_wake   return the same as it was when the sockets were shut; call it after `wake`
    ended         called when the script has ended well, while the sockets are still open
    send_out      send the image of a step to another node, while the main thread stands still
    """

    wake: Callable[[], object] = _nothing
    interrupt: Callable[[], None] = _nothing
    collectives: Callable[[], int] = _minus_one
    cut_off: Callable[[], dict[int, int]] = dict
    cut_at_wake: Callable[[], dict[int, int]] = dict
    ended: Callable[[], object] = _nothing
    send_out: Callable[[SendOut], object] = _unsent


class WorkerSession:
    """One worker's connection to its agent. `start` makes the one of this process:

        session.enter(Phase.BODY)                       # shown in the beacon, and booked
        session.do(lambda machine: machine.donated(step=7))     # drive the protocol machine
        plan = session.wait_plan(newer_than=3)          # block until a plan has come

    The main thread calls these. The listener thread runs from `listen` until the process ends. If
    the socket closes, the agent is gone, and the process exits at once.

    Messages are sent in order. It is not promised that the coordinator receives them: the agent
    hands them on, and may die.
    """

    def __init__(self, spec: ChildSpec, sock: socket.socket) -> None:
        self.spec = spec
        self.machine = WorkerMachine(worker=spec.worker)
        self.vault = Vault.open(Path(spec.vault_folder))
        if spec.options.get("leased"):  # this is one of several nodes
            self.vault.lease = LeasePage(self.vault.folder)
        self.calls = GroupCalls()
        self._channel = BlockingChannel(sock)
        self._lock = threading.Condition()
        now_s = clock.now_s()
        self._page = BeaconPage(
            self.vault.beacon(spec.worker, create=True),
            Beacon(worker=spec.worker, pid=os.getpid(), rank=spec.rank),
            now_s=now_s,
        )
        self._drilled = marks.any_planned()
        self._witness = Witness(
            Path(spec.run_folder) / "evidence",
            self.vault.folder / f"recorder-{spec.worker}",
            spec.worker,
        )
        self.onlooker = Onlooker(self)
        self.publish(now_s)

    # --- starting and ending ---

    def listen(self) -> None:
        """Start the listener thread, and say Hello to the agent.

        If no thread can be started within THREAD_WAIT_S, the process exits. The launcher starts it
        again later.
        """
        self._witness.begin()
        try:
            threads.start(self._listen, "outlast-listener", within_s=limits.THREAD_WAIT_S)
        except CapacityError as error:
            sys.exit(f"outlast: {error.message}")
        self._channel.send(Hello(self.spec.worker, os.getpid()))

    def wait_for_rank(self) -> ChildSpec:
        """Park this spare until it is given a rank, and return its new spec.

        The seconds before that are not booked: the rank's book begins with the plan.
        """
        self.vault.expect_transfer()
        self.enter(Phase.PARKED)
        self._channel.send(Parked(self.spec.worker, self.spec.kind))
        trial_plan.note_parked()
        plan = self.wait_plan()
        self.take_rank(plan)
        return self.spec

    def take_rank(self, plan: Regroup) -> None:
        """Turn a spare into a rank: its environment, beacon and book are the rank's from here
        on.
        """
        local = plan.local_rank if plan.local_rank >= 0 else plan.rank % self.spec.local_world_size
        os.environ.update(
            RANK=str(plan.rank),
            LOCAL_RANK=str(local),
            GROUP_RANK=str(plan.rank // self.spec.local_world_size),
            ROLE_RANK=str(plan.rank),
        )
        self.spec = replace(self.spec, kind="rank", rank=plan.rank, env=dict(os.environ))
        now_s = clock.now_s()
        self._page.take_rank(plan.rank, now_s=now_s)
        linux.set_name(f"outlast-rank{plan.rank}")
        self.publish(now_s)

    def user_failed(self, error: BaseException) -> None:
        """Report the error that ended the script, so that its traceback reaches the ledger.

        A UsageError ends the run, because it would come again.
        """
        if isinstance(error, UsageError):
            self.refuse(error, error.exit_code)
            return
        text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
        self.machine.born_in(self.spec.generation)
        mechanism = (
            "corrupt"
            if isinstance(error, CorruptError)
            else "collective"
            if is_peer_failure(error)
            else "exception"
        )
        # An error after this process was told to leave may follow from that. Any other error is its
        # own.
        unwound = isinstance(error, StepInterrupted | Reenter | KeyboardInterrupt)
        self.do(
            lambda m: m.broke(
                mechanism=mechanism,
                error=one_line(error),
                traceback=traceback_end(text),
                now_s=clock.now_s(),
                ends=mechanism == "exception" and not unwound,
            )
        )

    def exits(self, exit_code: int, message: str) -> None:
        """Note that the script ends by `sys.exit`. Its peers are then not told that it has left."""
        self.calls.ended = _nothing
        if exit_code:
            self._report_failed_script(exit_code, message)

    def finish(self, exit_code: int) -> None:
        """Report that the script is over. The interpreter shuts down next.

        If a script returns without an error before its last step, that was its intention.
        """
        if exit_code == 0:
            self.calls.ended()
            if self.machine.state is WorkerState.TRAINING:
                self.do(lambda machine: machine.finished(stopped=False))
            self.enter(Phase.EXIT, cause=Cause.SHUTDOWN)
            return
        self._report_failed_script(exit_code)
        # The coordinator has to know that a script has ended in a phase
        # (`Situation.ended_in_run_phase`).
        in_phase = self.beacon.phase is Phase.EVALUATION
        last = Phase.EVALUATION if in_phase else Phase.EPILOGUE
        self.enter(last, cause=Cause.SHUTDOWN)

    def _report_failed_script(self, exit_code: int, message: str = "") -> None:
        """Report that the script has failed, while the sockets are still open.

        Otherwise a peer that loses its connection might report first, and be blamed. Nothing more
        is sent if the error was reported before.
        """
        if self.machine.attached:
            said = first_line(message)
            error = f"the script left with exit code {exit_code}{f': {said}' if said else ''}"
            self.do(
                lambda m: m.broke(
                    mechanism="exception", error=error, traceback="", now_s=clock.now_s()
                )
            )

    # --- what the main thread reports ---

    def do(self, act: Callable[[WorkerMachine], list[Output] | None]) -> None:
        """Call `act` with the protocol machine, and carry out its outputs. For the main thread."""
        with self._lock:
            outputs = act(self.machine)
        self._carry_out(outputs or [])

    def wait_plan(self, *, newer_than: int = 0) -> Regroup:
        """Block until there is a plan of a generation above `newer_than`, and return it.

        The plan stays in the machine.
        """
        with self._lock:
            while (plan := self.machine.newer_plan(than=newer_than)) is None:
                self._lock.wait()
            return plan

    def take_plan(self, plan: Regroup) -> bool:
        """Take `plan` as the one to follow. Return False if a newer one has come."""
        with self._lock:
            if self.machine.plan is not plan:
                return False
            self.machine.follow()
            return True

    def refuse(self, error: BaseException, exit_code: int) -> None:
        """Ask for the run to stop, because the script or its input cannot work."""
        self._channel.send(Refused(self.spec.worker, text_with_line(error), exit_code))

    def warn(self, text: str) -> None:
        self._channel.send(Warned(self.spec.worker, text))

    def say(self, message: Message) -> None:
        self._channel.send(message)

    def mark(self, name: str, step: int) -> None:
        """Mark a place at which a drill may inject a fault."""
        if self._drilled:
            marks.mark(name, rank=self.beacon.rank, step=step, generation=self.machine.generation)

    # --- several nodes ---

    def exit_if_lease_is_over(self) -> None:
        """End this process at once if the lease of its node is over.

        Call it before each vote, seal, restore and commit. The rank is about to be given away, and
        the agent may be unable to kill the process.
        """
        lease = self.vault.lease
        if lease is not None and not self.machine.may_act(
            lent_until_s=lease.until_s, now_s=clock.now_s()
        ):
            os._exit(limits.ORPHAN_EXIT_CODE)

    def fetch_transfer(self, plan: Regroup, generation: int | None) -> None:
        """Fetch the transfer image of `plan`, if it is on another node.

        It raises ImageUnreached if that node cannot be reached.
        """
        self._fetch(image_fetch.Wanted(generation, plan.step), plan.source)

    def fetch_twin(self, plan: Regroup) -> bool:
        """Fetch the image of this rank's twin, and store it as an image of this rank.

        Return False if the twin is on this node, so that its image can be read from the vault. It
        raises as `fetch_transfer` does.
        """
        wanted = image_fetch.Wanted(None, plan.step, plan.twin, plan.rank)
        return self._fetch(wanted, plan.twin_source)

    def fetch_copy(self, plan: Regroup) -> bool:
        """Fetch the copy of this rank's image, and store it as one that the rank has sealed.

        If the plan says so, the image is rebuilt from parity. Return False if this node keeps the
        copy itself. It raises as `fetch_transfer` does, and CorruptError.
        """
        if plan.private == "parity":
            self.exit_if_lease_is_over()
            parity_fetch.rebuild(self.vault, plan, self.image_key, lambda: self.machine.broken)
            return True
        wanted = image_fetch.Wanted(None, plan.step, plan.rank, plan.rank, copy=True)
        return self._fetch(wanted, plan.twin_source)

    def _fetch(self, wanted: image_fetch.Wanted, source: str) -> bool:
        self.exit_if_lease_is_over()
        if source in ("", self.spec.options.get("serves", "")):
            return False
        server = image_dialogue.Server(source, self.image_key)
        image_fetch.fetch(self.vault, wanted, server, lambda: self.machine.broken)
        return True

    @property
    def image_key(self) -> bytes:
        """Return the run's key for images; empty: it has none."""
        return bytes.fromhex(str(self.spec.options.get("image_key", "")))

    # --- beacon and book ---

    @property
    def beacon(self) -> Beacon:
        """Return the page on which this worker shows where it is."""
        return self._page.beacon

    @property
    def book(self) -> Book:
        """Return the book in which this worker's seconds are counted."""
        return self._page.book

    def enter(
        self,
        phase: Phase,
        *,
        cause: Cause | None = None,
        learn: bool = False,
        tier: Tier | None = None,
    ) -> float:
        """Note that the main thread is in `phase` from now on. Return the time (`clock.now_s`).

        cause   what the seconds from now on are booked as; None: no change
        learn   the phase that ends was a normal one: learn a deadline from its length
        tier    the tier that a stall which ends here was for; None: the usual one of its phase
        """
        now_s = clock.now_s()
        self._page.enter(phase, cause=cause, learn=learn, now_s=now_s, tier=tier)
        self.publish(now_s, learned=learn)
        return now_s

    def show_target(self, step: int) -> None:
        """Show the people who watch which step is the last one of the loop."""
        self._page.show_target(step)

    def show_logged(self, step: int, values: Mapping[str, float]) -> None:
        """Show the people who watch what was logged in a step that is committed."""
        self._page.show_logged(step, values)

    def publish(self, now_s: float, *, learned: bool = False) -> None:
        """Write the beacon. `learned`: its table of typical seconds has changed."""
        joined = self.onlooker.joined  # until the script joins, the onlooker counts its steps
        self._page.publish(self.machine, counts_steps=joined, learned=learned, now_s=now_s)

    # --- the listener thread ---

    def _listen(self) -> None:
        """Handle messages of the agent until the socket closes. Then end this process (boundary).

        A worker must not live on without its agent.
        """
        for message in self._channel:
            if isinstance(message, _FOR_WORKER):
                with self._lock:
                    outputs = self.machine.on_message(typing.cast(ForWorker, message))
                self._carry_out(outputs)
        os._exit(limits.ORPHAN_EXIT_CODE)

    def _carry_out(self, outputs: list[Output]) -> None:
        for output in outputs:
            if isinstance(output, Say):
                self._channel.send(self._with_cut_off(output.message))
            elif isinstance(output, Wake):
                self.calls.wake()
                self.calls.interrupt()
            elif isinstance(output, WakeForPlan):
                with self._lock:
                    self._lock.notify_all()
            elif isinstance(output, SendOut):
                self.calls.send_out(output)
            elif isinstance(output, AnswerPing):
                done, where = self.calls.collectives(), place_of_process()
                cut = self.calls.cut_off()
                cut_off, counts = tuple(cut), tuple(cut.values())
                pong = Pong(self.spec.worker, output.nonce, done, where, cut_off, counts)
                self._channel.send(pong)
                self._witness.testify()

    def _with_cut_off(self, message: FromWorker) -> FromWorker:
        """Return an inventory with the bytes that peers did not acknowledge.

        Other messages are returned as they are. An inventory is sent after the sockets were shut,
        so its numbers are those from just before.
        """
        if not isinstance(message, Inventory):
            return message
        cut = self.calls.cut_at_wake()
        return replace(message, cut_off=tuple(cut), cut_off_bytes=tuple(cut.values()))


def make_current(session: WorkerSession) -> None:
    """Make this the session that `current` returns. A process has one session in its life."""
    global _current
    _current = session


def current() -> WorkerSession | None:
    """Return this process's session, or None if the script runs without `outlast run`."""
    return _current


_current: WorkerSession | None = None
_FOR_WORKER: tuple[type, ...] = typing.get_args(ForWorker)
