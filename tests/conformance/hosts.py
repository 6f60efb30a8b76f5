"""Two process hosts under one handle: the simulated node, and the launcher's with real processes.

What a process is to do is a list: ("say", text), ("sleep", s), ("exit", code), ("die", None):
SIGKILL to itself. What is reported is a list of tuples: ("started", worker), ("said", worker,
text), ("answered", worker, nonce), ("exited", worker, exit code, signal).
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from outlast.engine.protocol.outputs import Deliver, Kill, Output, Spawn, Terminate
from outlast.model.fault_plan import PlannedFault
from outlast.model.messages import Message, Ping, Pong, Warned, WorkerExited, WorkerStarted
from outlast.runtime.agent.processes import Exited
from outlast.sim.options import Options
from outlast.sim.world.processes import SimulatedProcess, Thread
from outlast.sim.world.world import World
from tests.conformance.ears import put_in_place_of_agent
from tests.processes.house import House, Record

Doing = tuple[str, Any]
Report = tuple[Any, ...]
FOR_EVER = ("sleep", 600.0)
QUIET_S = 0.1  # what is to be reported is reported by then


class Host(Protocol):
    reports: list[Report]

    def start(self, *doings: Doing) -> int:
        """A new process; its number."""

    def kill(self, worker: int) -> None: ...
    def terminate(self, worker: int) -> None: ...
    def ping(self, worker: int, nonce: int) -> None: ...

    def stop(self, worker: int) -> None:
        """SIGSTOP; it has stopped when this returns."""

    def go_on(self, worker: int) -> None:
        """SIGCONT."""

    def strike(self, worker: int) -> None:
        """Somebody else's SIGKILL."""

    def until(self, done: Callable[[], bool]) -> None:
        """Let things happen until so; fails where that takes too long."""

    def settle(self) -> None:
        """Let things happen for a while."""

    def close(self) -> None: ...


def said_as(worker: int, message: Message) -> Report:
    return (
        ("answered", worker, message.nonce)
        if isinstance(message, Pong)
        else ("said", worker, message.text if isinstance(message, Warned) else message)
    )


class SimulatedHost:
    """A node of a world in which nothing else happens; in the place of its agent somebody who
    writes down.
    """

    def __init__(self, seed: int = 0) -> None:
        self.reports: list[Report] = []
        self._doings: dict[int, tuple[Doing, ...]] = {}
        self._world = World(
            options=Options(ranks=64, latency_s=0.01), script=self._script, seed=seed
        )
        self._node = self._world.nodes[0]
        put_in_place_of_agent(self._node, self)
        self._started = 0

    def _script(self, world: World, process: SimulatedProcess) -> Thread:
        for what, value in self._doings[process.worker]:
            if what == "say":
                process.node.tell(process, Warned(process.worker, value))
            elif what == "exit":
                return value
            elif what == "die":
                world.timeline.after(0.0, lambda: self.strike(process.worker))
                yield "sleep", 1.0
            else:
                yield "sleep", value
        return 0

    def on_event(self, message: Any, *, now_s: float) -> list[Output]:
        if isinstance(message, WorkerStarted):
            self.reports.append(("started", message.worker))
        else:
            assert isinstance(message, WorkerExited)
            self.reports.append(("exited", message.worker, message.exit_code, message.signal))
        return []

    def on_worker(self, message: Any, *, now_s: float) -> list[Output]:
        self.reports.append(said_as(message.worker, message))
        return []

    def start(self, *doings: Doing) -> int:
        worker = self._started
        self._started += 1
        self._doings[worker] = doings
        self._node.do([Spawn(worker, worker, "rank", 1)])
        return worker

    def kill(self, worker: int) -> None:
        self._node.do([Kill(worker, "")])

    def terminate(self, worker: int) -> None:
        self._node.do([Terminate(worker)])

    def ping(self, worker: int, nonce: int) -> None:
        self._node.do([Deliver(worker, Ping(nonce))])

    def stop(self, worker: int) -> None:
        self._world.strikes._strike(
            self._node.processes[worker], PlannedFault("stop", "stop", worker, for_s=1e9)
        )

    def go_on(self, worker: int) -> None:
        self._world.strikes._go_on(self._node.processes[worker])

    def strike(self, worker: int) -> None:
        self._world.strikes._strike(
            self._node.processes[worker], PlannedFault("kill", "kill", worker)
        )

    def until(self, done: Callable[[], bool]) -> None:
        bound_s = self._world.now_s + 60.0
        while not done():
            assert self._world.timeline.step(until_s=bound_s), self.reports

    def settle(self) -> None:
        until_s = self._world.now_s + QUIET_S
        while self._world.timeline.step(until_s=until_s):
            pass
        self._world.timeline.now_s = until_s

    def close(self) -> None:
        for process in self._node.alive():
            self._node.end(process, None, 9)


class _Reports(Record):
    """As Record, and in the order in which they came."""

    def __init__(self) -> None:
        super().__init__()
        self.all: list[Report] = []

    def on_started(self, worker: int, pid: int, at_s: float) -> None:
        super().on_started(worker, pid, at_s)
        self.all.append(("started", worker))

    def on_message(self, worker: int, message: Message) -> None:
        super().on_message(worker, message)
        self.all.append(said_as(worker, message))

    def on_exit(self, exited: Exited) -> None:
        super().on_exit(exited)
        self.all.append(("exited", exited.worker, exited.exit_code, exited.signal))


class RealHost:
    """The launcher's, with a zygote that serves many tests.

    Numbers go on from one test to the next; what is reported starts over.
    """

    def __init__(self, folder: Path, preload: str = "doings_session") -> None:
        self.house = self._house = House(folder)
        self._record = self.house.record = _Reports()
        self._house.host._events = self._record
        self._house.host._forks._events = self._record
        self._house.host.start_zygote(preload=(preload,), first_path=str(Path(__file__).parent))
        self.until(lambda: bool(self._record.zygotes))

    @property
    def reports(self) -> list[Report]:
        return self._record.all

    def start(self, *doings: Doing) -> int:
        return self._house.script(
            "import sys, doings_session; doings_session.do_all(sys.argv[1])", json.dumps(doings)
        )

    def kill(self, worker: int) -> None:
        self._house.host.kill(worker)

    def terminate(self, worker: int) -> None:
        self._house.host.terminate(worker)

    def ping(self, worker: int, nonce: int) -> None:
        self._house.host.send(worker, Ping(nonce))

    def stop(self, worker: int) -> None:
        self._signal(worker, signal.SIGSTOP)
        stat = Path(f"/proc/{self._house.host.pids()[worker]}/stat")
        self.until(lambda: stat.read_text().rpartition(")")[2].split()[0] == "T")

    def go_on(self, worker: int) -> None:
        self._signal(worker, signal.SIGCONT)

    def strike(self, worker: int) -> None:
        self._signal(worker, signal.SIGKILL)

    def _signal(self, worker: int, number: signal.Signals) -> None:
        os.kill(self._house.host.pids()[worker], number)

    def until(self, done: Callable[[], bool]) -> None:
        # a zygote that imports torch beside other work took more than 20 s
        assert self._house.loop.run_until(done, within_s=60.0), self.reports

    def settle(self) -> None:
        self._house.loop.run_until(lambda: False, within_s=QUIET_S)

    def start_over(self) -> None:
        """Nothing is left of the last test."""
        for worker in self._house.host.pids():
            self._house.host.kill(worker)
        self.until(lambda: not self._house.host.pids())
        self._record.all.clear()
        self._record.messages.clear()

    def close(self) -> None:
        self._house.close()
