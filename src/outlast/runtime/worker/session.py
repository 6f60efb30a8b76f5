"""One worker's connection to its agent.

That is the socket with its listener thread, the beacon, the book of seconds, and the state of the
protocol.

The listener thread hears the agent while the main thread computes or is blocked in a collective.
Both drive one `WorkerMachine` under one lock, and its outputs are carried out here. Messages are
sent. A `Wake` shuts the group's sockets, so that a blocked collective raises. A `Plan` wakes a
waiting main thread.
"""

from __future__ import annotations

import importlib
import os
import socket
import sys
import threading
import traceback
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from outlast.engine.protocol.outputs import Answer, Output, Plan, Say, Wake
from outlast.engine.protocol.worker import State, WorkerMachine
from outlast.errors import CapacityError, CorruptError, UsageError
from outlast.model import limits
from outlast.model.beacon import Beacon
from outlast.model.booking import Book
from outlast.model.messages import ForWorker, Hello, Message, Parked, Pong, Refused, Regroup, Warned
from outlast.model.terms import Cause, Phase, Tier
from outlast.runtime import clock, linux
from outlast.runtime.channel import BlockingChannel
from outlast.runtime.child import ChildSpec
from outlast.runtime.tiers.lease_page import LeasePage
from outlast.runtime.tiers.vault import Vault
from outlast.runtime.worker import (
    image_dialogue,
    image_fetch,
    marks,
    rank_variables,
    run_ends_folder,
    threads,
    trial_plan,
)
from outlast.runtime.worker.beacon_page import BeaconPage
from outlast.runtime.worker.error_text import one_line, text_with_line, traceback_end
from outlast.runtime.worker.onlooker import Onlooker
from outlast.runtime.worker.peers import is_peer_failure
from outlast.runtime.worker.places import place_of_process
from outlast.runtime.worker.witness import Witness


def _nothing() -> None:
    return None


def _minus_one() -> int:
    return -1


@dataclass(slots=True)
class GroupCalls:
    """Tell what the listener thread may do with the process group. Its maker sets these.

    wake          shut the group's sockets, so that a collective that is blocked raises
    interrupt     interrupt the main thread in the body of its step
    collectives   return how many collectives the script has called; -1: nobody counts them
    ended         the script has ended well; its sockets are still open
    """

    wake: Callable[[], object] = _nothing
    interrupt: Callable[[], None] = _nothing
    collectives: Callable[[], int] = _minus_one
    ended: Callable[[], object] = _nothing


class Session:
    """Tie one worker to its agent. `start` makes the one of this process.

    The main thread drives the machine with `do`, says in which phase it is with `enter`, and waits
    for a plan with `wait_plan`. The listener thread runs from `listen` until the process ends.

    What it does not promise. It outlives no agent: if the socket closes, the process exits at once.
    Messages are sent in order, but whether they arrive is the agent's matter.
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
        """Begin to hear the launcher, as soon as there is a thread for that.

        Without one the process ends soon, and the launcher starts it again later.
        """
        self._witness.begin()
        try:
            threads.start(self._listen, "outlast-listener", within_s=limits.THREAD_WAIT_S)
        except CapacityError as error:
            sys.exit(f"outlast: {error.message}")
        self._channel.send(Hello(self.spec.worker, os.getpid()))

    def wait_for_rank(self) -> ChildSpec:
        """Park a spare until it is given a rank.

        The seconds before that are booked nowhere; the rank's book opens then.
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

        An error of usage ends the run, because it would come again.
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
        self.do(
            lambda m: m.broke(
                mechanism=mechanism,
                error=one_line(error),
                traceback=traceback_end(text),
                now_s=clock.now_s(),
            )
        )

    def exits(self) -> None:
        """Note that the script ends by `sys.exit`: peers are not told that it left its loop."""
        self.calls.ended = _nothing

    def finish(self, exit_code: int) -> None:
        """Report that the script is over. The interpreter's end follows.

        A script that ends well before the last step has meant to.
        """
        if exit_code == 0:
            self.calls.ended()
            if self.machine.state is State.TRAINING:
                self.do(lambda machine: machine.finished(stopped=False))
            self.enter(Phase.EXIT, cause=Cause.SHUTDOWN)
            return
        self._report_failed_script(exit_code)
        self.enter(Phase.EPILOGUE, cause=Cause.SHUTDOWN)

    def _report_failed_script(self, exit_code: int) -> None:
        """Report that the script fails, before the sockets close.

        Otherwise a peer that misses this rank would report first, and be blamed. A script that has
        raised has been reported before.
        """
        if self.machine.attached:
            error = f"the script left with exit code {exit_code}"
            self.do(
                lambda m: m.broke(
                    mechanism="exception", error=error, traceback="", now_s=clock.now_s()
                )
            )

    # --- what the main thread says ---

    def do(self, act: Callable[[WorkerMachine], list[Output] | None]) -> None:
        """Drive the machine from the main thread."""
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
        """Follow `plan` from here on. Return False if it is not the newest any more."""
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

    def look_at_lease(self) -> None:
        """End this process, before it does anything that counts, if its node's lease is over.

        Its rank is about to be given away, and its agent may not be there to end it.
        """
        lease = self.vault.lease
        if lease is not None and not self.machine.may_act(
            lent_until_s=lease.until_s, now_s=clock.now_s()
        ):
            os._exit(limits.ORPHAN_EXIT_CODE)

    def fetch_transfer(self, plan: Regroup, generation: int | None) -> None:
        """Bring the transfer image of `plan` here, if it lies on another node.

        Raises ImageUnreached if that node cannot be reached.
        """
        self._fetch(image_fetch.Wanted(generation, plan.step), plan.source)

    def fetch_twin(self, plan: Regroup) -> bool:
        """Bring the image of this rank's twin here, as one of this rank.

        Return False if it lies here, and is the twin's. Raises as `fetch_transfer` does.
        """
        wanted = image_fetch.Wanted(None, plan.step, plan.twin, plan.rank)
        return self._fetch(wanted, plan.twin_source)

    def fetch_copy(self, plan: Regroup) -> bool:
        """Bring the copy of this rank's image here, as one that it has sealed itself.

        Return False if this node keeps the copy. Raises as `fetch_transfer` does.
        """
        wanted = image_fetch.Wanted(None, plan.step, plan.rank, plan.rank, copy=True)
        return self._fetch(wanted, plan.twin_source)

    def _fetch(self, wanted: image_fetch.Wanted, source: str) -> bool:
        self.look_at_lease()
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
        self, phase: Phase, *, cause: Cause | None = None, learn: bool = False,
        tier: Tier | None = None,
    ) -> float:  # fmt: skip
        """Note that the main thread is in `phase` from now on. Return the time.

        `learn`: the phase before ended well, so its length counts. `tier`: what a stall that ends
        was for; None: what is usual for its phase.
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
        joined = self.onlooker.joined  # before that, the onlooker counts the steps
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
                self._channel.send(output.message)
            elif isinstance(output, Wake):
                self.calls.wake()
                self.calls.interrupt()
            elif isinstance(output, Plan):
                with self._lock:
                    self._lock.notify_all()
            elif isinstance(output, Answer):
                self._channel.send(
                    Pong(
                        self.spec.worker, output.nonce, self.calls.collectives(), place_of_process()
                    )
                )
                self._witness.testify()


def start(spec: ChildSpec, sock: socket.socket) -> Session:
    """Start this process's session. Bootstrap calls it in every worker, before the script."""
    global _current
    session = Session(spec, sock)
    _current = session
    session.onlooker.begin()
    if spec.kind == "hot":
        rank_variables.ask_in_front_of(session.wait_for_rank)
    if (plan := trial_plan.asked()) is not None:
        # it imports torch, which a script without torch must not pay for
        importlib.import_module("outlast.runtime.worker.trial").begin(
            plan, worker=spec.worker, run_folder=spec.run_folder, vault=spec.vault_folder
        )
    if run_ends_folder.asked():
        importlib.import_module("outlast.runtime.worker.run_ends").begin(spec.worker)
    session.listen()
    return session


def current() -> Session | None:
    """Return this process's session, or None if the script runs without `outlast run`."""
    return _current


_current: Session | None = None
_FOR_WORKER: tuple[type, ...] = typing.get_args(ForWorker)
