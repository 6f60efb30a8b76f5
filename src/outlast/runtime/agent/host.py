"""The processes of one node: start them, report their ends, and kill them.

It decides nothing. A child's life: `start` -> on_started or on_failed -> (on_message ...) ->
on_exit. Exits come from pidfds, at once. The zombie is kept until the rest of its session is gone.
Until then its number may still be used to kill that rest, so the kernel must not give it to another
process. The launcher is a subreaper: processes that workers leave behind become its children and
are reaped without a message. A process that left its worker's session on purpose (setsid) is left
alone.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable
from typing import Protocol

from outlast.model.limits import HOUSEKEEPING_S, OOM_LOOK_S
from outlast.model.messages import Message
from outlast.runtime.agent.forks import ForkEvents, ForkQueue
from outlast.runtime.agent.helpers import HelperKeeper
from outlast.runtime.agent.logs import WorkerLogs
from outlast.runtime.agent.oom import OomKill, OomWatch
from outlast.runtime.agent.processes import Child, Exited, Handover, spawn
from outlast.runtime.agent.zygote_client import ZygoteClient
from outlast.runtime.child import ChildSpec
from outlast.runtime.clock import now_s
from outlast.runtime.linux import become_subreaper, is_ending
from outlast.runtime.loop import Loop, LoopTimer
from outlast.runtime.network.channel import Channel


class HostEvents(ForkEvents, Protocol):
    """The host's calls to its driver. They come from the loop, never from a call to the host."""

    def on_started(self, worker: int, pid: int, at_s: float) -> None: ...
    def on_failed(self, worker: int, error: str) -> None: ...
    def on_exit(self, exited: Exited) -> None: ...
    def on_message(self, worker: int, message: Message) -> None: ...
    def on_channel_closed(self, worker: int, reason: str) -> None: ...


class ProcessHost:
    """Start, watch and end the processes of one node. `open` comes first, `close` last."""

    def __init__(self, loop: Loop, events: HostEvents, logs: WorkerLogs) -> None:
        self._loop = loop
        self._events = events
        self._logs = logs
        self._oom = OomWatch()
        self._children: dict[int, Child] = {}
        self.keeper = HelperKeeper(loop)
        self._forks = ForkQueue(
            loop,
            events,
            started=self._started,
            failed=self._failed,
            spawn=self._spawn,
            keeper=self.keeper,
            for_memory=lambda: self._oom.judge(now_s()).is_possible,
        )
        self._housekeeping: LoopTimer | None = None
        self._then: Callable[[], None] | None = None

    def open(self) -> None:
        """Become the parent of all orphans, and watch for OOM kills and ends of children."""
        become_subreaper()
        self._loop.add_signal(signal.SIGCHLD, self._schedule_housekeeping)
        self._look_for_oom()

    def start_zygote(
        self,
        *,
        preload: tuple[str, ...] = (),
        first_path: str = "",
        client: ZygoteClient | None = None,
    ) -> None:
        """Start the zygote. Without a call to this, workers are spawned.

        `first_path` is the script's folder, where `preload` modules may lie. `client` is a zygote
        that runs already.
        """
        self._forks.begin(preload, first_path, client)

    @property
    def zygote_pid(self) -> int:
        """Return the zygote's pid, or 0 while there is none."""
        return self._forks.pid

    @property
    def imports(self) -> bool:
        """Return True while workers wait for the imports of the process that forks them."""
        return self._forks.imports

    def pids(self) -> dict[int, int]:
        """Return the pid of each worker that runs."""
        return {
            worker: child.pid
            for worker, child in self._children.items()
            if child.pid and not child.exited
        }

    def holds(self, worker: int) -> bool:
        """Return True from the start of this worker until its process is reaped."""
        return worker in self._children

    # --- starting ---------------------------------------------------------------------------------

    def start(self, spec: ChildSpec) -> None:
        """Start a child. It is asynchronous: on_started or on_failed follows.

        The place of its logs is the LOCAL_RANK of a rank, `store_<worker>` for a host of the store,
        and `spare_<worker>` for a spare.
        """
        assert spec.worker not in self._children, "a worker's number is never given twice"
        try:
            handover = Handover.make()
        except OSError as error:
            reason = f"no descriptors for it: {error.strerror}"
            self._loop.call_soon(lambda: self._events.on_failed(spec.worker, reason))
            return
        worker = spec.worker
        channel = Channel(
            self._loop,
            handover.sock,
            on_message=lambda message: self._events.on_message(worker, message),
            on_close=lambda reason: self._events.on_channel_closed(worker, reason),
        )
        child = self._children[worker] = Child(spec, handover, channel)
        local_rank = spec.env.get("LOCAL_RANK")
        place = (
            int(local_rank)
            if local_rank is not None and spec.kind == "rank"
            else f"{'store' if spec.kind == 'store' else 'spare'}_{worker}"
        )
        self._logs.attach(
            worker,
            handover.stdout,
            handover.stderr,
            attempt=spec.attempt,
            place=place,
            rank=spec.rank,
        )
        self._forks.ask(child)

    def send(self, worker: int, message: Message) -> None:
        """Send a message to a worker. It is dropped if the worker is gone."""
        if child := self._children.get(worker):
            child.channel.send(message)

    def _spawn(self, child: Child) -> None:
        """Start a child as a fresh interpreter: there is no zygote to fork it."""
        try:
            child.process = spawn(child.spec, child.handover)
        except OSError as error:
            self._failed(child, f"spawn: {error.strerror}")
            return
        self._started(child, child.process.pid)

    def _started(self, child: Child, pid: int) -> None:
        """Watch a process that has begun. Let it run, or kill it if that has been ordered since."""
        child.handover.close_theirs()
        try:
            child.watch(pid)
        except ProcessLookupError:
            self._failed(child, "it ended before it could be watched")
            return
        except OSError as error:  # its gate is then closed, and that ends the process
            self._failed(child, f"no descriptor to watch it by: {error.strerror}")
            return
        self._loop.add_reader(child.pidfd, lambda: self._seen_to_end(child))
        self._events.on_started(child.spec.worker, pid, now_s())
        if child.killed:
            child.kill()
        else:
            child.handover.open_gate()

    def _failed(self, child: Child, error: str) -> None:
        if child.handover.theirs:
            child.handover.close_theirs()
        self._forget(child)
        self._events.on_failed(child.spec.worker, error)
        self._check_stopped()

    # --- ending -----------------------------------------------------------------------------------

    def kill(self, worker: int) -> None:
        """Send SIGKILL to a worker's process group. on_exit follows, as for any death.

        Unknown and dead workers are ignored. A worker that is already ending does not count as
        killed by us. The end of its channel may be seen before its own end, and would be the reason
        to kill it.
        """
        if (child := self._children.get(worker)) is None:
            return
        if not child.pid or not is_ending(child.pid):
            child.killed = True
        if child.pid:
            child.kill()

    def terminate(self, worker: int, *, interrupt: bool = False) -> None:
        """Send SIGTERM to a worker's process group. It may also be SIGINT, as Ctrl-C sends it."""
        if (child := self._children.get(worker)) is not None and child.pid and not child.exited:
            child.kill_group(signal.SIGINT if interrupt else signal.SIGTERM)

    def _seen_to_end(self, child: Child) -> None:
        """Handle a death: end the rest of its group, read its last messages, and report it."""
        ending = child.peek()
        if ending is None:
            return  # it is alive; the pidfd became readable for another reason
        at_s = now_s()
        self._loop.remove_reader(child.pidfd)
        child.exited = True
        child.kill_group(signal.SIGKILL)
        child.channel.drain()
        self._logs.drain(child.spec.worker)
        exit_code, number = ending
        worker, pid = child.spec.worker, child.pid
        is_foreign = number == signal.SIGKILL and not child.killed
        oom = self._oom.judge(at_s, pid) if is_foreign else OomKill.NONE
        self._events.on_exit(Exited(worker, pid, exit_code, number, oom, at_s, child.killed))
        self._schedule_housekeeping()
        self._check_stopped()

    def stop_all(self, *, term_grace_s: float, then: Callable[[], None]) -> None:
        """Send SIGTERM to all workers, and SIGKILL after the grace.

        The store host and the zygote come last. `then` is called when all are gone.
        """
        self._then = then
        self._forks.end()
        for child in self._running(store=False):
            if child.pid:
                child.kill_group(signal.SIGTERM)
            else:
                child.killed = True
        self._loop.call_at(now_s() + term_grace_s, self._kill_workers)
        self._loop.call_soon(self._check_stopped)

    def _kill_workers(self) -> None:
        for child in self._running(store=False):
            self.kill(child.spec.worker)

    def _check_stopped(self) -> None:
        """Kill the store hosts once all workers are gone, then call `then` once these are."""
        if self._then is None or self._running(store=False):
            return
        if stores := self._running(store=True):
            for child in stores:
                self.kill(child.spec.worker)
            return
        then, self._then = self._then, None
        self._reap_exited()
        self._loop.call_soon(then)

    def _running(self, *, store: bool) -> list[Child]:
        return [
            child
            for child in self._children.values()
            if not child.exited and (child.spec.kind == "store") is store
        ]

    def close(self) -> None:
        """Kill and reap all remaining processes, at once. No event follows."""
        self._forks.kill()
        for child in list(self._children.values()):
            if child.pid and not child.exited:
                self._loop.remove_reader(child.pidfd)
                child.kill()
            if child.pid:
                child.reap()
                child.exited = True
            self._forget(child)
        self._reap_unknown()
        self._oom.close()

    def _forget(self, child: Child) -> None:
        self._children.pop(child.spec.worker, None)
        child.handover.shut_gate()
        child.channel.close()
        self._logs.close(child.spec.worker)

    # --- housekeeping -----------------------------------------------------------------------------

    def _schedule_housekeeping(self) -> None:
        """Reap a little later: right after a death other work is urgent, and reaping is not."""
        if self._housekeeping is None:
            self._housekeeping = self._loop.call_at(now_s() + HOUSEKEEPING_S, self._housekeep)

    def _housekeep(self) -> None:
        self._housekeeping = None
        self._reap_exited()
        if self._forks.busy:
            # an unknown zombie may be a worker whose pid is not known yet
            self._schedule_housekeeping()
        else:
            self._reap_unknown()

    def _reap_exited(self) -> None:
        for child in [child for child in self._children.values() if child.exited]:
            child.reap()
            self._forget(child)

    def _reap_unknown(self) -> None:
        """Reap zombies that workers have left to this process.

        A zombie that is a child of this host is left to `_seen_to_end`. The others are reaped
        later.
        """
        ours = {child.pid for child in self._children.values()} | {self._forks.pid}
        with contextlib.suppress(ChildProcessError):
            while (
                found := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            ) is not None:
                if found.si_pid in ours:
                    self._schedule_housekeeping()
                    return
                os.waitpid(found.si_pid, os.WNOHANG)

    def _look_for_oom(self) -> None:
        self._oom.look(now_s())
        self._loop.call_at(now_s() + OOM_LOOK_S, self._look_for_oom)
