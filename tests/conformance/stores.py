"""Two stores under one handle: the simulated one, and a real host's process with clients that meet
in it as ranks do before they connect.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol, cast

from outlast.engine.protocol.outputs import HostStore, Output, Spawn
from outlast.model.messages import Regroup, StoreLost, StoreUp
from outlast.sim.options import Options
from outlast.sim.world.processes import PeerFailure, SimulatedProcess, Thread
from outlast.sim.world.world import World
from tests.conformance.ears import put_in_place_of_agent
from tests.processes.house import House

RANKS = 3
WAITS, MET, FAILED = "waits", "met", "failed"


# a process connects once, from one thread: it turns DNS and stderr off meanwhile
_connecting = threading.Lock()


class Meeting(Protocol):
    """`came[visitor]`: what has become of one that came.

    `news`: ("up", port) and ("lost",), as the agent hears them.
    """

    came: list[str]
    news: list[tuple[Any, ...]]

    def host(self) -> int:
        """A new host, up when this returns; its port."""

    def end(self) -> None:
        """The newest host ends."""

    def come(self, rank: int, *, generation: int, port: int) -> int:
        """Some process comes to meet the others of its generation; its number among visitors."""

    def leave(self, visitor: int) -> None:
        """It is told that its generation is over."""

    def until(self, done: Callable[[], bool]) -> None: ...

    def settle(self) -> None:
        """Long enough for all that can happen."""

    def close(self) -> None: ...


class SimulatedMeeting:
    def __init__(self) -> None:
        self.came: list[str] = []
        self.news: list[tuple[Any, ...]] = []
        self._plans: list[Regroup] = []
        self._world = World(options=Options(ranks=RANKS), script=self._script)
        self._node = self._world.nodes[0]
        put_in_place_of_agent(self._node, self)

    def on_event(self, message: Any, *, now_s: float) -> list[Output]:
        if isinstance(message, StoreUp):
            self.news.append(("up", message.port))
        elif isinstance(message, StoreLost):
            self.news.append(("lost",))
        return []

    def on_worker(self, message: Any, *, now_s: float) -> list[Output]:
        return []

    def _script(self, world: World, process: SimulatedProcess) -> Thread:
        try:
            yield "build", self._plans[process.worker]
            self.came[process.worker] = MET
        except PeerFailure:
            self.came[process.worker] = FAILED
        yield "sleep", 1e9

    def host(self) -> int:
        before = len(self.news)
        self._node.do([HostStore("")])
        self.until(lambda: len(self.news) > before)
        return int(self.news[-1][1])

    def end(self) -> None:
        self._world.store.lose()

    def come(self, rank: int, *, generation: int, port: int) -> int:
        self.came.append(WAITS)
        self._plans.append(
            Regroup(
                generation,
                rank,
                RANKS,
                "here",
                port,
                "none",
                "start",
                0,
                -1,
                False,
                (),
                "none",
                "none",
                "",
                0,
                None,
                None,
            )
        )
        self._node.do([Spawn(len(self.came) - 1, rank, "rank", generation)])
        return len(self.came) - 1

    def leave(self, visitor: int) -> None:
        process = self._node.processes[visitor]
        self._world.collectives.leave(process)
        self._world.collectives.wake(process, PeerFailure("woken"))

    def until(self, done: Callable[[], bool]) -> None:
        bound_s = self._world.now_s + 60.0
        while not done():
            assert self._world.timeline.step(until_s=bound_s), (self.came, self.news)

    def settle(self) -> None:
        until_s = self._world.now_s + 1.0
        while self._world.timeline.step(until_s=until_s):
            pass
        self._world.timeline.now_s = until_s

    def close(self) -> None:
        for process in self._node.alive():
            self._node.end(process, None, 9)


class RealMeeting:
    """Clients are threads here: each with a connection of its own, as each rank has."""

    def __init__(self, folder: Path, house: House | None = None) -> None:
        self.came: list[str] = []
        self.news: list[tuple[Any, ...]] = []
        self._house = house or House(folder)
        self._hosts: list[int] = []
        self._left: set[int] = set()
        self._watches: dict[int, Any] = {}
        self._threads: list[threading.Thread] = []

    def host(self) -> int:
        self.end_quietly()
        number = self._house.start(
            replace(self._house.spec(), worker=self._house.workers, kind="store", rank=-1)
        )
        self._hosts.append(number)
        record = self._house.record
        self._house.until(lambda: any(worker == number for worker, _ in record.messages), "StoreUp")
        ups = [message for worker, message in record.messages if worker == number]
        assert len(ups) == 1
        port = cast(StoreUp, ups[0]).port
        self.news.append(("up", port))
        return port

    def end_quietly(self) -> None:
        """As the launcher does it: the old one goes first."""
        if self._hosts and self._hosts[-1] in self._house.host.pids():
            self.end()

    def end(self) -> None:
        number = self._hosts[-1]
        self._house.host.kill(number)
        self._house.wait_exit(number)
        self.news.append(("lost",))

    def come(self, rank: int, *, generation: int, port: int) -> int:
        visitor = len(self.came)
        self.came.append(WAITS)
        self._threads.append(
            threading.Thread(target=self._meet, args=(visitor, generation, port), daemon=True)
        )
        self._threads[-1].start()
        return visitor

    def _meet(self, visitor: int, generation: int, port: int) -> None:
        from torch.distributed import PrefixStore

        from outlast.runtime.worker.communication import groups
        from outlast.runtime.worker.communication.wake import SocketWatch

        watch = self._watches[visitor] = SocketWatch()
        try:
            with _connecting:
                client = groups.connect("127.0.0.1", port, 0.5, watch)
            store = PrefixStore(f"outlast/{generation}", client)
            groups.assemble(store, generation, RANKS, 20.0, watch, lambda: visitor in self._left)
            self.came[visitor] = MET
        except RuntimeError:
            self.came[visitor] = FAILED

    def leave(self, visitor: int) -> None:
        self._left.add(visitor)
        self._watches[visitor].wake()

    def until(self, done: Callable[[], bool]) -> None:
        assert self._house.loop.run_until(done, within_s=20.0), (self.came, self.news)

    def settle(self) -> None:
        self._house.loop.run_until(lambda: False, within_s=0.15)

    def close(self) -> None:
        self.end_quietly()
        for thread in self._threads:
            thread.join(20.0)
            assert not thread.is_alive()
