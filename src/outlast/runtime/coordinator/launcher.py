"""`outlast run` on one node: the coordinator and the agent in one event loop.

One queue carries the outputs of both machines, and the messages between them.
"""

from __future__ import annotations

from collections.abc import Mapping

from outlast.engine.agent.agent import Agent
from outlast.engine.coordinator.machine import Coordinator
from outlast.engine.coordinator.options import CoordinatorOptions
from outlast.engine.protocol.outputs import End, Output, ToAgent, ToCoordinator
from outlast.model import limits
from outlast.model.messages import FromAgent, FromWorker
from outlast.model.records import Event
from outlast.model.terms import Mechanism
from outlast.runtime import clock
from outlast.runtime.agent.agent_driver import AgentDriver, NodeParts
from outlast.runtime.coordinator.coordinator_driver import CoordinatorDriver, CoordinatorParts
from outlast.runtime.outputs_queue import OutputQueue


class Launcher:
    """Run the coordinator and the agent of one node in one event loop.

    `listen`, then `run`, which returns when the run is over. It connects the two drivers
    (`AgentDriverEvents`).
    """

    def __init__(
        self, parts: NodeParts, coordinator_parts: CoordinatorParts, options: CoordinatorOptions
    ) -> None:
        self._parts = parts
        self._coordinator_parts = coordinator_parts
        self.queue = OutputQueue(self._carry_out)
        self._agent = Agent(now_s=clock.now_s(), hang_after_s=parts.options.hang_after_s)
        self._node = AgentDriver(parts, self._agent, self)
        coordinator = Coordinator(options=options)
        self._lead = CoordinatorDriver(
            coordinator_parts, coordinator, coordinator, do=self.queue.do, ended=self._on_end
        )
        self._end: End | None = None

    def listen(self) -> None:
        """Handle the signals that stop a run. From now on they raise no exception."""
        self._lead.listen()

    def run(self) -> End:
        """Run until the end, and return how the run ended."""
        self._node.open()
        self._lead.start()
        self._flush()  # the first status names the ranks that were just ordered
        self._coordinator_parts.loop.run()
        self._node.close()
        self._lead.stop()
        assert self._end is not None
        self._coordinator_parts.evidence.finish(
            self._coordinator_parts.books.unresumed(), within_s=limits.LAST_DIAGNOSIS_S
        )
        if self._coordinator_parts.pager is not None:
            self._coordinator_parts.pager.close()
        return self._end

    def _carry_out(self, output: Output) -> None:
        now_s = clock.now_s()
        if isinstance(output, ToAgent):
            self.queue.do(self._agent.on_command(output.message, now_s=now_s))
        elif isinstance(output, ToCoordinator):
            message = self._node.add_place(output.message)
            self.queue.do(self._lead.coordinator.on_message(message, now_s=now_s))
        elif not self._node.carry_out(output):
            known = self._lead.carry_out(output)
            assert known, output

    def _on_end(self, end: End) -> None:
        self._end = end
        self._node.end(self._coordinator_parts.loop.stop)

    def _flush(self) -> None:
        self._coordinator_parts.loop.call_at(clock.now_s() + limits.LEDGER_FLUSH_S, self._flush)
        self._node.look_after_files()
        self._lead.flush(imports=self._node.host.imports)

    def on_verdict(self, interruption: int, verdict: Mapping[str, object]) -> None:
        """Pass the verdict of a diagnosis on to the coordinator."""
        self._lead.on_verdict(interruption, verdict)

    # --- what the agent's driver reports (AgentDriverEvents) --------------------------------------

    def on_event(self, message: FromAgent) -> None:
        self.queue.do(self._agent.on_event(message, now_s=clock.now_s()))

    def on_worker(self, message: FromWorker) -> None:
        self.queue.do(self._agent.on_worker(message, now_s=clock.now_s()))

    def on_tick(self, outputs: list[Output]) -> None:
        self.queue.do(outputs)

    def preload_failed(self, error: str) -> None:
        self.queue.do([End(2, "failed", error, "")])

    def zygote_ready(self, pid: int, imports_s: float) -> None:
        said = {"pid": pid, "imports_s": imports_s}
        self._coordinator_parts.books.record(Event(clock.now_s(), clock.wall_s(), "zygote", said))

    def is_hung(self, pid: int) -> bool:
        return any(
            pid in one.pids and one.mechanism is Mechanism.HANG
            for one in self._coordinator_parts.books.unresumed()
        )

    def runs_plain(self) -> bool:
        return not self._lead.coordinator.roster.outlast
