"""Narrow protocols for the parts of the world that a node uses."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

from outlast.engine.coordinator.machine import Coordinator
from outlast.sim.draws import ProcessDraws
from outlast.sim.world.agent_link import CoordinatorEnd
from outlast.sim.world.booked_seconds import Lives
from outlast.sim.world.chance import Chance
from outlast.sim.world.collectives import Collectives
from outlast.sim.world.copy_sending import Way
from outlast.sim.world.frame import Frame
from outlast.sim.world.processes import Home, SimulatedProcess, TransferImage
from outlast.sim.world.store import Store


class Ranks(Protocol):
    """The register of all processes, as far as a node uses it."""

    stirred: dict[Home, None]
    living: int
    done: set[int]
    lives: Lives

    @property
    def nodes(self) -> Iterable[Home]: ...

    def owners(self, rank: int) -> list[SimulatedProcess]: ...

    def takes_rank(self, process: SimulatedProcess, rank: int) -> None: ...

    def luck(self, process: SimulatedProcess) -> ProcessDraws | None: ...


class CoordinatorPlace(CoordinatorEnd, Protocol):
    """The host of the coordinator, as far as a node uses it."""

    @property
    def coordinator(self) -> Coordinator: ...

    def hear(self, news: Any) -> None: ...


class Fences(Protocol):
    """The part of the world that counts strikes of processes."""

    def fenced(self, process: SimulatedProcess) -> None: ...


class Barrier(Protocol):
    """The barrier at which ranks wait before a stretch is skipped."""

    def arrive(self, process: SimulatedProcess) -> None: ...

    def give_up(self) -> None: ...


class Surroundings(Way, Protocol):
    """The world, as far as a node uses it."""

    transfer: TransferImage | None
    transfer_died: bool

    def image_on(self, home: Home) -> tuple[int, ...]: ...

    def lose_images_of(self, home: Home) -> None: ...

    @property
    def frame(self) -> Frame: ...

    @property
    def chance(self) -> Chance: ...

    @property
    def population(self) -> Ranks: ...

    @property
    def host(self) -> CoordinatorPlace: ...

    @property
    def strikes(self) -> Fences: ...

    @property
    def skip_ahead(self) -> Barrier: ...

    @property
    def store(self) -> Store: ...

    @property
    def collectives(self) -> Collectives: ...

    def isolate(self, node: Home, for_s: float) -> None: ...

    def spare_ended_early(self) -> None: ...
