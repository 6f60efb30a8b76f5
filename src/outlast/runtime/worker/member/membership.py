"""This process's place in the run: its rank, its generation and its process group.

It also moves the process from one generation to the next. There are three cases:

    start       a rank that starts, or enters main's function again, builds its group at once
    in place    a process that replaces a rank while the survivors wait in their steps builds its
                group at run.steps, where they build theirs
    hot spare   has no rank until it is given one

In the last two cases the process has a *solo group* until then: a process group of one, on which
DDP models can be made. There torch reports the true rank and world size to the script, but no code
may communicate with peers. So a spare parks before a collective, a new group or a mesh
(`_before_group_use`). If the script makes any of these itself, its ranks are not replaced in place.

Without `outlast run` there is no generation, and the process is alone or in torchrun's group.
"""

from __future__ import annotations

import _thread
import contextlib
import math
import os
import signal
import traceback
from collections.abc import Callable, Iterator
from types import FrameType
from typing import NoReturn

import torch
import torch.distributed as dist
from torch.distributed import TCPStore  # type: ignore[attr-defined]  # re-exported from C

from outlast.errors import CorruptError, OutlastError, Reenter, StepInterrupted, UsageError
from outlast.model import limits
from outlast.model.messages import IMAGE, Regroup
from outlast.model.terms import Cause, Phase, Waypoint
from outlast.runtime import clock
from outlast.runtime.worker.communication import ddp, groups, shared_rows
from outlast.runtime.worker.communication.guards import Guards
from outlast.runtime.worker.communication.shared_pages import SharedPages
from outlast.runtime.worker.communication.wake import SocketWatch
from outlast.runtime.worker.member import all_ranks, ballot_box
from outlast.runtime.worker.member.session import WorkerSession
from outlast.runtime.worker.process import devices, rank_variables, threads
from outlast.runtime.worker.process.error_text import one_line, traceback_end
from outlast.runtime.worker.process.peers import is_peer_failure
from outlast.runtime.worker.process.script_life import ScriptPlace
from outlast.runtime.worker.script.onlooker import GROUP_HINT
from outlast.runtime.worker.transfer.image_receiver import ImageUnreached

# never sent by the kernel or to us: only its Python handler is used
_INTERRUPT = int(signal.SIGRTMIN) + 7


class Membership:
    """This process's membership of the run: its rank, its generation, and its process group.

    `Membership.of` makes it, and it lives as long as the process. `stand_still` leaves a generation
    and returns the next plan, and `build` makes the group of that plan. Between the two there is no
    process group, and a collective of the script raises. `session` is None without `outlast run`.
    """

    def __init__(self, session: WorkerSession | None, *, reenters: bool) -> None:
        self.session = session
        self.reenters = reenters
        self.guards = Guards()
        self.watch = SocketWatch()
        self.script = ScriptPlace()
        self.ballots = ballot_box.BallotBox()  # of this generation
        self._made = groups.MadeGroups()
        self._rank = 0
        self.world_size = 1
        self.local_world_size = 1

    @classmethod
    def of(cls, session: WorkerSession | None, *, reenters: bool) -> Membership:
        member = cls(session, reenters=reenters)
        if session is None:
            member._join_without_launcher()
        else:
            member._join(session)
        return member

    # --- for other parts ---

    @property
    def generation(self) -> int:
        return 0 if self.session is None else self.session.machine.generation

    @property
    def has_group(self) -> bool:
        """Return whether the run's process group exists (the solo group does not count)."""
        return self._made.group is not None

    @property
    def pages(self) -> SharedPages | None:
        """Return the memory that all ranks of this generation share; None: they share none."""
        return self.ballots.pages

    @property
    def is_spare(self) -> bool:
        return self.session is not None and self.session.spec.rank < 0

    def replayed(self) -> Regroup | None:
        """Return the newest plan if it asks this process to replay the last committed step first.

        Otherwise return None. The result of a replayed step is dropped.
        """
        plan = None if self.session is None else self.session.wait_plan(newer_than=-1)
        return plan if plan is not None and plan.replay else None

    def goes_on_from(self) -> int:
        """Return the step from which the newest plan goes on; 0 without a launcher."""
        return 0 if self.session is None else self.session.wait_plan(newer_than=-1).step

    def rank(self) -> int:
        """Return this process's rank. A spare parks here until it has one.

        If that happens in the body of a rehearsed step, StepInterrupted is raised then.
        """
        if self.is_spare:
            rehearsing, self.script.in_body = self.script.in_body, False
            self.park()
            if rehearsing:
                raise StepInterrupted
        return self._rank

    def local_rank(self) -> int:
        """Return this process's index on its node. A spare parks here, as in `rank`."""
        self.rank()
        return self._local_rank

    @property
    def _local_rank(self) -> int:
        given = None if self.session is None else self.session.spec.env.get("LOCAL_RANK")
        return self._rank % self.local_world_size if given is None else int(given)

    def park(self) -> None:
        """Wait for a rank, then enter its generation as far as possible before run.steps."""
        assert self.session is not None
        self.session.wait_for_rank()
        self._enter_generation()

    def ensure_group(self) -> None:
        """Prepare for a mesh of the script: a spare parks first.

        The mesh belongs to one generation, and `guards` notes the line that made it.
        """
        self.guards.need(group=True)
        if self.session is None:
            self.solo_group()  # does nothing under torchrun, which has made a group

    def _before_group_use(self, group: bool) -> None:
        """Prepare for a collective of the script, or with `group` for a group or mesh of its own.

        guards.py calls this (`Calls.on_need`). After run.steps was called, a process without the
        run's group may be in a rehearsed step, or in code between calls of run.steps that are
        skipped. A collective there runs on the solo group, and its result does not count. A new
        group cannot be made on the solo group. So a spare parks, and then repeats on the run's
        group what it has done so far.
        """
        if self._made.group is not None:
            return  # this process is in the run's group already
        if self.script.in_steps and not group:
            return  # a collective may run on the solo group, as described above
        was_spare, in_body = self.is_spare, self.script.in_body
        self.rank()  # a spare parks here
        if self._made.group is not None:
            return  # the spare has a rank now, and its plan has built the group
        if self.script.rehearses and in_body:
            raise StepInterrupted
        if self.script.rehearses and was_spare and self.reenters:
            raise Reenter
        all_ranks.call(self)

    def solo_group(self) -> None:
        """Make a process group of one, so that DDP models can be made without peers."""
        if not dist.is_initialized():
            threads.wait_for_threads(lambda: False, self._lacks_threads)
            with self.guards.ours():
                self._made.solo = groups.solo()
            if self.session is not None:
                self.guards.calls.stands_for = self._stands_for

    def _stands_for(self) -> tuple[int, int] | None:
        """Return the rank and world size to tell the script while it is in the solo group.

        None means those of the solo group itself, as in a rehearsal.
        """
        return None if self.is_spare or self.script.rehearses else (self._rank, self.world_size)

    def rehearse(self, on: bool) -> None:
        """Note that a step whose result is not kept begins, or is over."""
        self.script.rehearses = on
        self.script.rehearsed = self.script.rehearsed or on

    @contextlib.contextmanager
    def refusing(self) -> Iterator[None]:
        """End the whole run if an OutlastError is raised inside this context.

        All ranks run the same script, so they would all fail in the same way. The exception is
        CorruptError: an image of this rank is damaged. That ends only this process, and the run
        goes on from an older image.
        """
        try:
            yield
        except CorruptError:
            raise
        except OutlastError as error:
            self.refuse(error)

    def refuse(self, error: OutlastError) -> NoReturn:
        """End the run with `error`, and raise it."""
        self.script.in_body = False
        if self.session is not None:
            self.session.refuse(error, error.exit_code)
        raise error

    # --- joining ---

    def _join_without_launcher(self) -> None:
        ddp.install(self._wrapping)
        if "RANK" in os.environ and "MASTER_ADDR" in os.environ:
            self.local_world_size = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
            if not dist.is_initialized():
                device = devices.take(int(os.environ.get("LOCAL_RANK", "0")))
                backend = devices.backend(self.local_world_size)
                dist.init_process_group(backend, device_id=device if "nccl" in backend else None)
            self._rank, self.world_size = dist.get_rank(), dist.get_world_size()
            self.ballots = ballot_box.without_launcher(self._rank, self.world_size)

    def _join(self, session: WorkerSession) -> None:
        self.world_size, self.local_world_size = (
            session.spec.world_size,
            session.spec.local_world_size,
        )
        self._take_over_from_script(session)
        self.guards.install(on_rank_read=self.rank if self.is_spare else None)
        self.guards.calls.on_need = self._before_group_use
        if self.is_spare:
            devices.before_first_use(self.rank)
            rank_variables.ask_in_front_of(self.rank)
        ddp.install(self._wrapping)
        session.calls.collectives = self._collectives
        session.calls.cut_off = self.watch.cut_off
        session.calls.cut_at_wake = lambda: self.watch.cut_at_wake
        session.calls.wake = self._wake
        session.calls.interrupt = self._interrupt
        session.calls.ended = self._ended
        signal.signal(_INTERRUPT, self._on_interrupt)
        self.watch.keys.mine = ballot_box.node_key(str(session.spec.options.get("serves", "")))
        self.watch.install()
        session.enter(Phase.SETUP)
        if self.is_spare:
            self._connect(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
            self.solo_group()
        else:
            self._enter_generation()
        if self._rank == 0 and devices.are_shared(self.local_world_size):
            session.warn(
                f"{self.local_world_size} ranks share {torch.cuda.device_count()} GPU(s) of a node:"
                " gloo carries their collectives, by way of the host, because NCCL refuses that"
            )
        self.register(
            recovery_mode="reenter" if self.reenters else "respawn",
            sharded=False,
            exact=True,
            note="",
            at_steps=False,
        )

    def _take_over_from_script(self, session: WorkerSession) -> None:
        """Raise UsageError if the script has made its process group by itself.

        A process that replaces a rank could not enter that group.
        """
        session.onlooker.retire()
        if dist.is_initialized():
            line = session.onlooker.made_at or "the script"
            self.refuse(
                UsageError(
                    f"{line}: init_process_group was called before outlast.join()", hint=GROUP_HINT
                )
            )

    @contextlib.contextmanager
    def _wrapping(self) -> Iterator[None]:
        """Prepare for the script's own DDP(model), so that it does what run.replicate does."""
        if not self.has_group:
            self.solo_group()
        with self.guards.ours():
            yield

    def _enter_generation(self) -> None:
        """Enter the newest generation, as far as that is possible before run.steps.

        If a peer is lost meanwhile, enter the next one.
        """
        assert self.session is not None
        while True:
            plan = self.session.wait_plan()
            try:
                if self._follow_first_plan(plan):
                    return
            except Exception as error:  # boundary: a peer was lost while the group was built
                self.cut_short(error)

    def _follow_first_plan(self, plan: Regroup) -> bool:
        """Follow the first plan of this process, or the first after main's function was re-entered.

        Return False if a newer plan has come.
        """
        assert self.session is not None
        self._rank, self.world_size = plan.rank, plan.world_size
        devices.take(self._local_rank)  # before anything of the next group is made
        if plan.replicated == "donor":  # survivors wait in run.steps: build the group there
            self.session.do(lambda machine: machine.detach())
            machine = self.session.machine
            self._connect(plan.store_host, plan.store_port, lambda: machine.plan is not plan)
            self.solo_group()
            return True
        if (
            self._made.solo is not None
            and self.reenters
            and (self.script.rehearsed or ddp.any_made())
        ):
            # The replicas of this spare are made on the solo group. Enter main's function again, so
            # that they are made on the run's group.
            raise Reenter
        if not self.session.take_plan(plan):
            return False
        self.session.enter(Phase.REGROUP)
        self.session.mark("grouping", self.session.beacon.step)
        self.build(plan)
        self.came_to(Waypoint.IN_SCRIPT)
        self.session.enter(Phase.SETUP)
        return True

    def register(
        self,
        *,
        recovery_mode: str,
        sharded: bool,
        exact: bool,
        note: str,
        at_steps: bool = True,
        alike: tuple[int, ...] = (),
    ) -> None:
        """Tell the coordinator how this rank can be recovered (the fields of `Registered`)."""
        if self.session is not None:
            self.session.do(
                lambda machine: machine.register(
                    recovery_mode=recovery_mode,
                    sharded=sharded,
                    exact=exact,
                    note=note,
                    at_steps=at_steps,
                    alike=alike,
                )
            )

    def came_to(self, waypoint: Waypoint) -> None:
        """Say how far this rank has come on its way into the generation of its newest plan."""
        assert self.session is not None
        self.session.do(lambda machine: machine.underway(waypoint))

    # --- the group ---

    def build(self, plan: Regroup) -> float:
        """Leave the old group, and enter that of `plan`. Return the seconds that this took.

        Raises what torch raises when a peer is lost meanwhile.
        """
        assert self.session is not None
        began_s = clock.now_s()
        self.destroy()
        # The old group is destroyed before this wait, because that ends its threads. Before the
        # first step nothing is lost if the run ends, so that wait is limited. Later it is not,
        # because a person may raise the limit.
        within_s = math.inf if plan.high_water > 0 else limits.FIRST_THREADS_WAIT_S
        with self.refusing():
            threads.wait_for_threads(lambda: self.broken, self._lacks_threads, within_s=within_s)
        self.came_to(Waypoint.CONNECTS)
        device = devices.of(self._local_rank)
        with self.guards.ours(), devices.current(device):
            self.watch.begins(plan.rank)
            store = self._connect(plan.store_host, plan.store_port, lambda: self.broken)
            self._made.group = groups.build(
                store=store,
                generation=plan.generation,
                rank=plan.rank,
                world_size=plan.world_size,
                backend=devices.backend(self.local_world_size),
                timeout_s=limits.GROUP_TIMEOUT_S,
                device=device,
                watch=self.watch,
                cancelled=lambda: self.broken,
                serves=str(self.session.spec.options.get("serves", "")),
            )
        with self.refusing():  # no rank votes in an older generation: its group is built
            self.ballots = ballot_box.open_box(
                self.session,
                plan,
                local_world_size=self.local_world_size,
                keys=self.watch.keys.heard,
            )
        return clock.now_s() - began_s

    def _lacks_threads(self) -> None:
        """Tell people what this rank waits for."""
        if self.session is not None:
            who = f"rank {self._rank}" if self._rank >= 0 else "a spare"
            self.session.warn(
                f"{who} (pid {os.getpid()}) can start no more threads: {threads.LACKING}; it waits"
                " until it can"
            )

    def _connect(
        self, host: str, port: int, cancelled: Callable[[], bool] | None = None
    ) -> TCPStore:
        """Connect to the store, unless this process is connected to it. This may take long.

        cancelled   returns True once the launcher has replaced this store. None: the store is not
                    the launcher's, and may be started at any time, so refused connections are
                    tried again
        """
        if (
            self._made.store is None
            or self._made.store_address != (host, port)
            or self.watch.store_lost
        ):
            self._made.store = groups.connect(
                host,
                port,
                limits.STORE_DEADLINE_S,
                self.watch,
                refused_s=math.inf if cancelled is None else limits.STORE_REFUSED_S,
                cancelled=cancelled or (lambda: False),
            )
            self._made.store_address = (host, port)
        return self._made.store

    def destroy(self) -> None:
        """Leave the process group, and the votes that belong to it."""
        for group in (self._made.group, self._made.solo):
            if group is not None:
                groups.destroy(group)
        self._made.group = self._made.solo = None
        self.ballots = ballot_box.BallotBox()
        self.guards.calls.stands_for = None

    def _collectives(self) -> int:
        return self.ballots.collectives()

    def _wake(self) -> None:
        """End what blocks the main thread in this generation. The listener thread calls this."""
        self.ballots.wake()
        self.watch.wake()

    def reenter(self) -> None:
        """Prepare to enter main's function again, in the generation of the newest plan."""
        assert self.session is not None
        session = self.session
        self.guards.calls.on_held = None
        self.script.in_steps = self.script.rehearses = self.script.rehearsed = False
        if self._made.solo is not None:
            self.destroy()  # the solo group of a spare, which is not needed again
        session.do(lambda machine: machine.forget_state())
        session.enter(Phase.REGROUP, cause=Cause.REGROUP)
        self._enter_generation()
        session.enter(Phase.SETUP)

    def _ended(self) -> None:
        """Tell peers that wait for this rank in a step that it has left its loop for good.

        This process may end now, so what it has sent in its last vote leaves it first.
        """
        if not self.broken:
            with contextlib.suppress(RuntimeError):  # a peer is lost: the coordinator knows
                self.ballots.flush()
        if self.pages is not None and self.script.left_loop_at and not self.broken:
            self.pages.has_left(self.script.left_loop_at)

    # --- leaving a generation ---

    @property
    def broken(self) -> bool:
        return self.session is not None and self.session.machine.broken

    def broke(self, error: BaseException) -> None:
        """Report that `error` keeps this rank from going on in this generation.

        The report says whether the error is collateral of a lost peer, or the rank's own.
        """
        assert self.session is not None
        mechanism, text = (
            ("collective", "")
            if self.is_collateral(error)
            else ("exception", "".join(traceback.format_exception(error)))
        )
        if (name := self.script.unset(error)) is not None:
            self.session.warn(
                f"{name} is not set in this process: an earlier step had set it in the process that"
                f" this one replaces. Keep it: kept = run.values({name}=...), run.state(...,"
                " kept=kept)"
            )
        now_s = clock.now_s()
        unreached: tuple[int, ...] = (IMAGE,) if isinstance(error, ImageUnreached) else ()
        if isinstance(error, groups.PeersUnreached):
            unreached = error.ranks
        self.session.do(
            lambda machine: machine.broke(
                mechanism=mechanism,
                error=one_line(error),
                traceback=traceback_end(text),
                now_s=now_s,
                unreached=unreached,
            )
        )

    def is_collateral(self, error: BaseException) -> bool:
        """Return whether `error` is the consequence of a lost peer, and not this rank's own."""
        known = (StepInterrupted, groups.Cancelled, shared_rows.Cut)
        unreached = isinstance(error, (ImageUnreached, groups.PeersUnreached))
        return self.broken or unreached or isinstance(error, known) or is_peer_failure(error)

    def left_function(self, error: Exception) -> Regroup | None:
        """Report that an error left main's function, and wait for the plan to enter it again.

        Return that plan. It is None without a launcher, and for a spare, which no plan can help.
        """
        if self.session is None or self.is_spare:
            return None
        self.register(recovery_mode="reenter", sharded=False, exact=True, note="")
        return self.cut_short(error)

    def cut_short(self, error: BaseException, *, in_hook: bool = False) -> Regroup:
        """Report `error`, pause, and return the plan of the next generation."""
        self.broke(error)
        return self.stand_still(in_hook=in_hook)

    def stand_still(self, *, in_hook: bool) -> Regroup:
        """Send the inventory of what this rank holds. Wait for the next plan, and return it."""
        assert self.session is not None
        session, seen = self.session, self.generation
        session.mark("still", session.beacon.step)
        session.enter(Phase.WAIT)
        session.do(lambda machine: machine.stand_still(in_hook=in_hook))
        plan = session.wait_plan(newer_than=seen)
        session.enter(Phase.REGROUP)
        return plan

    def wait_to_be_killed(self) -> NoReturn:
        """Wait to be killed: the state is handed over.

        A successor takes the rank as soon as the kernel says that this process is gone.
        """
        while True:
            signal.pause()

    # --- interrupting the body ---

    def _interrupt(self) -> None:
        """Interrupt the main thread at its next bytecode. The listener thread calls this."""
        if self.script.in_body:
            _thread.interrupt_main(_INTERRUPT)  # type: ignore[arg-type]  # any number is taken

    def _on_interrupt(self, number: int, frame: FrameType | None) -> None:
        """Raise StepInterrupted in the main thread, if it runs the user's own code.

        Code of torch or of outlast is never left half-way.
        """
        if not self.script.in_body or not self.broken or frame is None:
            return
        name = frame.f_code.co_filename
        if (
            _OURS not in name
            and f"{os.sep}torch{os.sep}" not in name
            and not name.startswith("<frozen")
        ):
            raise StepInterrupted


_OURS = f"{os.sep}outlast{os.sep}runtime{os.sep}"
