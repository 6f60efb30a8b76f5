"""Make the launcher's children: by forks of a zygote, or by spawning.

A zygote that is lost is started again. Children are spawned if there is no zygote, or if it may not
fork.
"""

from __future__ import annotations

import os
import signal
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from outlast.engine.starting import retry_wait_s
from outlast.model.limits import (
    FORKS_IN_FLIGHT_COUNT,
    STARVING_LOOK_S,
    ZYGOTE_BOOT_DEADLINE_S,
    ZYGOTE_FORK_DEADLINE_S,
    ZYGOTE_LOSSES_COUNT,
)
from outlast.runtime.agent.helpers import HelperKeeper
from outlast.runtime.agent.oom import FOR_MEMORY
from outlast.runtime.agent.processes import Child, ending_words
from outlast.runtime.agent.starving import Patience
from outlast.runtime.agent.zygote_client import ZygoteClient
from outlast.runtime.clock import now_s
from outlast.runtime.loop import Loop


class ForkEvents(Protocol):
    """The fork queue's calls to its driver. They come from the loop."""

    def on_zygote_ready(self, pid: int, imports_s: float) -> None: ...
    def on_zygote_lost(self, reason: str) -> None: ...
    def on_fallback(self, reason: str) -> None:
        """Report that workers are spawned from now on. `reason` is for people."""

    def on_preload_failed(self, error: str) -> None:
        """Report that a module given with --preload cannot be imported.

        The user's input is wrong, and nothing will be started.
        """


class ForkQueue:
    """Have children forked or spawned, one after the other.

    `started(child, pid)` or `failed(child, error)` follows, from the loop.
    """

    def __init__(
        self,
        loop: Loop,
        events: ForkEvents,
        *,
        started: Callable[[Child, int], None],
        failed: Callable[[Child, str], None],
        spawn: Callable[[Child], None],
        keeper: HelperKeeper,
        for_memory: Callable[[], bool] = bool,
    ) -> None:
        """`for_memory` returns whether the kernel has just killed some process for memory."""
        self._loop = loop
        self._keeper = keeper
        self._events = events
        self._started = started
        self._failed = failed
        self._spawn = spawn
        # the modules to preload, and their folder; None: children are spawned
        self._imports: tuple[tuple[str, ...], str] | None = None
        self._client: ZygoteClient | None = None
        self._waiting: deque[Child] = deque()
        self._in_flight: dict[int, Child] = {}
        # how long the zygote may be silent while it owes an answer
        self._patience: Patience | None = None
        self._killed = ""  # why it was killed, if the launcher killed it
        self._last_words = ""
        self._losses = 0
        self._for_memory = for_memory

    @property
    def pid(self) -> int:
        return self._client.pid if self._client else 0

    @property
    def imports(self) -> bool:
        """Return True while a zygote is to fork the children, and is not done with its imports."""
        return self._imports is not None and not (self._client and self._client.ready)

    @property
    def busy(self) -> bool:
        """Return True while a fork was requested whose pid is not known yet."""
        return bool(self._in_flight)

    def begin(self, preload: tuple[str, ...], first_path: str, client: ZygoteClient | None) -> None:
        self._imports = (preload, first_path)
        client = client or ZygoteClient.start()
        try:
            pidfd = os.pidfd_open(client.pid)
        except OSError:
            client.kill()
            raise
        self._client = client
        client.attach(self._loop, self._answered)
        self._loop.add_reader(pidfd, lambda: self._ended(client, pidfd))
        self._killed = self._last_words = ""
        self._keeper.watch(
            "the zygote",
            client.pid,
            ask=client.ping,
            is_idle=lambda: client.ready and not self._in_flight,
            give_up=lambda reason: self._give_up(client, reason),
        )
        client.prepare(preload, first_path)
        self._await_answer()

    def ask(self, child: Child) -> None:
        self._waiting.append(child)
        self._loop.call_soon(self._serve)

    def end(self) -> None:
        """End the queue: start no more children, and fail those that wait.

        The zygote ends by itself.
        """
        self._imports = None
        if self._client:
            self._keeper.forget(self._client.pid)
            self._client.close()
        while self._waiting:
            self._failed(self._waiting.popleft(), "the run is ending")

    def kill(self) -> None:
        """Call `end`, then kill the zygote; it is reaped when this returns."""
        self.end()
        if self._client:
            self._client.kill()

    def _serve(self) -> None:
        while self._waiting:
            if self._imports is None:
                self._spawn(self._waiting.popleft())
            elif (
                self._client is None
                or not self._client.ready
                or len(self._in_flight) >= FORKS_IN_FLIGHT_COUNT
            ):
                return
            else:
                child = self._waiting.popleft()
                self._in_flight[child.spec.worker] = child
                self._client.fork(child.spec, child.handover.theirs)
                if self._patience is None:
                    self._await_answer()

    def _await_answer(self) -> None:
        """Wait for the zygote's next answer. It answers one request after the other."""
        assert self._client is not None
        client, deadline_s = (
            self._client,
            ZYGOTE_FORK_DEADLINE_S if self._client.ready else ZYGOTE_BOOT_DEADLINE_S,
        )
        patience = self._patience = Patience(client.pid, deadline_s, now_s=now_s())
        self._loop.call_at(now_s() + STARVING_LOOK_S, lambda: self._look(client, patience))

    def _look(self, client: ZygoteClient, patience: Patience) -> None:
        if self._patience is patience:
            client.drain()  # it may have answered while the launcher itself had no processor
        if self._patience is not patience or self._client is not client:
            return
        left_s = patience.left_s(now_s=now_s())
        if left_s > 0:
            self._loop.call_at(
                now_s() + min(left_s, STARVING_LOOK_S), lambda: self._look(client, patience)
            )
        else:
            self._give_up(client, f"the zygote {client.pid} gave no answer within {patience}")

    def _give_up(self, client: ZygoteClient, reason: str) -> None:
        """Kill a zygote that cannot be relied on any more. Its end is seen like any other."""
        if self._client is client:
            self._killed = f"{reason}, and was killed"
            client.process.kill()

    def _answered(self, answer: dict[str, Any]) -> None:
        assert self._client is not None
        if "last_words" in answer:  # this is not an answer: the zygote's end follows
            self._last_words = answer["last_words"]
            return
        self._keeper.answered(self._client.pid)
        if "pong" in answer:
            return
        self._patience = None
        if answer.get("ready"):
            self._client.ready, self._client.imports_s = True, answer["imports_s"]
            self._events.on_zygote_ready(self._client.pid, answer["imports_s"])
        elif "preload" in answer:
            self._events.on_preload_failed(answer["preload"])
        elif "unfit" in answer:
            self._fall_back(f"{answer['unfit']}: forks would not be safe")
        elif "forked" in answer:
            self._losses = 0
            self._started(self._in_flight.pop(answer["forked"]), answer["pid"])
        else:
            self._failed(self._in_flight.pop(answer["failed"]), answer["error"])
        if self._in_flight and self._client is not None:
            self._await_answer()
        self._serve()

    def _fall_back(self, reason: str) -> None:
        self._imports = None
        if self._client:
            self._keeper.forget(self._client.pid)
            self._client.close()
        self._events.on_fallback(reason)
        self._loop.call_soon(self._serve)

    def _ended(self, client: ZygoteClient, pidfd: int) -> None:
        code = client.process.poll()
        if code is None:
            return
        self._keeper.forget(client.pid)
        client.drain()
        client.close()
        self._loop.remove_reader(pidfd)
        os.close(pidfd)
        self._client = self._patience = None
        reason = self._how_it_ended(client.pid, code)
        lost, self._in_flight = list(self._in_flight.values()), {}
        for child in lost:
            self._failed(child, f"the zygote was lost while it forked it: {reason}")
        if self._imports is None:
            return
        self._losses += 1
        self._events.on_zygote_lost(reason)
        if self._losses >= ZYGOTE_LOSSES_COUNT:
            self._fall_back(f"{reason}, {self._losses} times in a row")
        else:
            wait_s = retry_wait_s(self._losses - 1) if self._losses > 1 else 0.0
            self._loop.call_at(now_s() + wait_s, self._begin_again)

    def _begin_again(self) -> None:
        """Start another zygote. If that fails, try again, after a longer time each time."""
        if self._imports is None or self._client is not None:
            return
        try:
            self.begin(*self._imports, None)
        except OSError as error:
            self._losses += 1
            self._events.on_zygote_lost(f"another zygote cannot be started: {error.strerror}")
            self._loop.call_at(now_s() + retry_wait_s(self._losses), self._begin_again)

    def _how_it_ended(self, pid: int, code: int) -> str:
        """Return what is known about the zygote's end.

        If the launcher killed it, the result says so and gives the reason. Otherwise it is the
        kernel's report and the zygote's own last message.
        """
        if self._killed:
            return self._killed
        ended = ending_words(None, -code) if code < 0 else ending_words(code, None)
        if code == -signal.SIGKILL and self._for_memory():
            ended += f", {FOR_MEMORY}"
        return f"the zygote {pid} {ended}" + (f": {self._last_words}" if self._last_words else "")
