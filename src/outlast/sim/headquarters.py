"""The place where the coordinator lives: its timers, its ledger, its death, and the one that comes after it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from outlast.engine.protocol.coordinator import Coordinator, CoordinatorOptions, Restart
from outlast.engine.protocol.hub import Hub
from outlast.engine.protocol.outputs import End, Line, Output, Record, SetTimer, Tell, ToAgent
from outlast.engine.protocol.rebuild import Remembered
from outlast.model import limits
from outlast.model.messages import OnLine
from outlast.model.records import Interruption
from outlast.sim.observations import Planned

if TYPE_CHECKING:
    from outlast.sim.world import World

WORKERS_PER_EPOCH = 1_000_000  # a coordinator's numbers for workers are its own


class Headquarters:
    """`interruptions`, by id, are the ledger's. Of what was recorded in the last LEDGER_FLUSH_S before a death, nothing is left."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._made = 0
        self._timers: dict[str, int] = {}
        self._ledger: list[tuple[float, Any]] = []
        self.epoch = 1
        self.lives = True
        self.coordinator = self._coordinator(generation=0, interruption=1)
        self.hub = self._hub()

    @property
    def interruptions(self) -> dict[int, Interruption]:
        return {record.id: record for _, record in self._ledger if isinstance(record, Interruption)}

    def _coordinator(self, *, generation: int, interruption: int) -> Coordinator:
        given = self._world.options
        return Coordinator(
            options=CoordinatorOptions(
                given.ranks, Restart(), spares=given.spares, spare_kind=given.spare_kind, max_restarts=given.max_restarts, checkpoint=("", 0),
                nodes=given.nodes if given.nodes > 1 else 0, generation=generation, first_interruption=interruption,
                first_worker=1 + (self.epoch - 1) * WORKERS_PER_EPOCH,
            )
        )  # fmt: skip

    def _hub(self) -> Hub | None:
        if self._world.options.nodes < 2:
            return None
        return Hub(self.coordinator, epoch=self.epoch, lease_s=self._world.options.beat_s * limits.LEASE_BEATS)

    # --- driving -------------------------------------------------------------------------------------------

    def begin(self) -> None:
        hub = self.hub
        self.led(lambda: hub.start(now_s=self._world.now_s) if hub is not None else self.coordinator.start(now_s=self._world.now_s))

    def hear(self, news: Any) -> None:
        """Of the one node there is."""
        self._heard(news)
        self.led(lambda: self.coordinator.on_message(news, now_s=self._world.now_s))

    def on_line(self, node: str, message: OnLine) -> None:
        hub = self.hub
        if self.lives and hub is not None:
            self._heard(getattr(message, "message", message))
            self.led(lambda: hub.on_line(node, message, now_s=self._world.now_s))

    def on_disconnected(self, node: str) -> None:
        hub = self.hub
        if self.lives and hub is not None:
            self.led(lambda: hub.on_disconnected(node))

    def ask_stop(self, *, reason: str, exit_code: int) -> None:
        now_s = self._world.now_s
        self.led(lambda: self._through_hub(self.coordinator.ask_stop(now_s=now_s, reason=reason, exit_code=exit_code)))

    def _through_hub(self, outputs: list[Output]) -> list[Output]:
        return self.hub.led(outputs, now_s=self._world.now_s) if self.hub is not None else outputs

    def _heard(self, news: Any) -> None:
        if type(news).__name__ not in ("Progress", "Beat"):
            self._world.say(brief(news))

    def led(self, act: Callable[[], list[Output]]) -> None:
        """Drive the coordinator, look at the plans that it made, and carry out what it asks for."""
        world, coordinator = self._world, self.coordinator
        generation, stage, committed = coordinator.generation, coordinator.stage, world.committed
        outputs = act()
        if coordinator.generation != generation:
            generation = coordinator.generation
            steps = tuple(m.plan.step for m in coordinator.roster.members() if m.plan is not None and m.plan.generation == generation)
            world.see(Planned(generation, steps, committed, world.holders(committed)))
            world.planned()
            world.say(f"generation {generation} from step {min(steps, default=0)}")
            if steps and min(steps) < committed:
                world.rolled_back.append((committed, min(steps)))
                world.committed = min(steps)
        for output in outputs:
            self._carry_out(output)
        if coordinator.stage is not stage and coordinator is self.coordinator:
            world.strikes.at_stage(coordinator.stage.value)

    def _carry_out(self, output: Output) -> None:
        world = self._world
        if isinstance(output, ToAgent):
            world.say(f"coordinator: {brief(output.message)}")
            world.command(output.message)
        elif isinstance(output, Line):
            if type(output.message).__name__ != "Grant":
                world.say(f"to {output.node}: {brief(getattr(output.message, 'message', output.message))}")
            world.node_of(output.node).cable.down(output.message)
        elif isinstance(output, SetTimer):
            number = self._timers[output.name] = self._timers.get(output.name, 0) + 1
            if output.at_s is not None:
                world.timeline.after(output.at_s - world.now_s, self._timer(output.name, number, self.epoch))
        elif isinstance(output, Record):
            if isinstance(output.record, Interruption):
                world.noted(output.record)
            self._ledger.append((-math.inf if output.at_once else world.now_s, output.record))
        elif isinstance(output, Tell):
            world.say(f"coordinator tells: {output.text}")
        else:
            assert isinstance(output, End), output
            world.ended(output)

    def _timer(self, name: str, number: int, epoch: int) -> Callable[[], None]:
        def due() -> None:
            if self.lives and self.epoch == epoch and self._timers[name] == number and self._world.end is None:
                now_s, hub = self._world.now_s, self.hub
                self.led(lambda: hub.on_timer(now_s=now_s, name=name) if hub is not None else self.coordinator.on_timer(now_s=now_s, name=name))

        return due

    # --- death and rebuilding --------------------------------------------------------------------------------

    def die(self, *, for_s: float) -> None:
        """With all that it knew. Another one comes `for_s` later."""
        if not self.lives:
            return
        world = self._world
        self.lives = False
        for node in world.nodes:
            node.cable.drop()
        self._ledger = [(at_s, record) for at_s, record in self._ledger if at_s < world.now_s - limits.LEDGER_FLUSH_S]
        world.timeline.after(for_s, self._come_anew)

    def _come_anew(self) -> None:
        world = self._world
        if world.end is not None:
            return
        self.epoch += 1
        self.lives = True
        self._timers.clear()
        remembered = Remembered()
        for _, record in self._ledger:
            remembered.take(record)
        self.coordinator = self._coordinator(generation=remembered.generation, interruption=max(remembered.interruptions, default=0) + 1)
        self.coordinator.remember(remembered)
        self.hub = hub = self._hub()
        assert hub is not None, "a coordinator dies alone only where there are several nodes"
        world.say(f"a coordinator of epoch {self.epoch} comes")
        self.led(lambda: hub.rebuild(now_s=world.now_s, nodes=tuple(remembered.nodes)))


def brief(message: object) -> str:
    """A message in a line of the trace."""
    inner = getattr(message, "message", None)
    worker = f" {message.worker}" if hasattr(message, "worker") else f" {message.node}" if hasattr(message, "node") else ""
    return f"{type(message).__name__}{worker}{': ' + type(inner).__name__ if inner is not None else ''}"
