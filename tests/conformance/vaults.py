"""Two vaults under one handle: what a simulated node keeps of its ranks, and the real one in a
folder. Each act is a process's own.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import numpy as np

from outlast.engine.commit.commands import Donate, Flow
from outlast.engine.commit.image_place import BEGUN, ScriptPosition
from outlast.engine.commit.late_votes import LateVotes
from outlast.engine.protocol.outputs import Spawn
from outlast.errors import CorruptError
from outlast.model.fault_plan import PlannedFault
from outlast.model.messages import Regroup
from outlast.runtime.tiers import area
from outlast.runtime.tiers.image import TensorPiece, TensorSpec, image_bytes
from outlast.runtime.tiers.vault import Vault
from outlast.sim.options import Options
from outlast.sim.world.commit_commands import CommitCommands
from outlast.sim.world.processes import SimulatedProcess, Thread
from outlast.sim.world.script import Main
from outlast.sim.world.world import World

RANKS = 2
Act = Callable[[Main], Thread]
SEALED = ScriptPosition(BEGUN, 0)


class Images(Protocol):
    def seal(self, rank: int, step: int) -> None:
        """By a process that has ended when this returns."""

    def seal_cut_short(self, rank: int, step: int) -> None:
        """By one that is killed in the middle."""

    def roll_back(self, rank: int, step: int) -> None:
        """A process attaches to `rank` at `step`."""

    def steps(self, rank: int) -> tuple[int, ...]:
        """What lies sealed, newest first."""

    def donate(self, generation: int, step: int) -> None: ...
    def donate_cut_short(self, generation: int, step: int) -> None: ...

    def takes(self, generation: int | None, step: int) -> bool:
        """Whether the transfer image of that step can be read. `generation` None: of any."""

    def close(self) -> None: ...


class SimulatedImages:
    def __init__(self) -> None:
        self._world = World(
            options=Options(recovery_mode="sharded", ranks=RANKS), script=self._script
        )
        self._node = self._world.nodes[0]
        self._act: Act
        self._count = 0

    def _script(self, world: World, process: SimulatedProcess) -> Thread:
        yield from self._act(Main(world, process, mode="reenter", has_main=True))
        return 0

    def _run(self, rank: int, act: Act, *, killed_after_s: float | None = None) -> None:
        self._act, self._count = act, self._count + 1
        worker = self._count
        self._node.do([Spawn(worker, rank, "rank", 1)])
        process: SimulatedProcess | None = None
        while process is None or process.alive:
            self._world.timeline.step()
            process = self._node.processes.get(worker)
            if process is not None and killed_after_s is not None and process.waits is not None:
                self._world.strikes._strike(process, PlannedFault("kill", "kill", rank))

    def seal(self, rank: int, step: int) -> None:
        self._run(rank, lambda main: main.thread.seal(step, SEALED))

    def seal_cut_short(self, rank: int, step: int) -> None:
        self._run(rank, lambda main: main.thread.seal(step, SEALED), killed_after_s=0.0)

    def roll_back(self, rank: int, step: int) -> None:
        def act(main: Main) -> Thread:
            main.forget_after(step)
            yield "sleep", 0.0

        self._run(rank, act)

    def steps(self, rank: int) -> tuple[int, ...]:
        return tuple(sorted(self._node.slots.get(rank, {}).values(), reverse=True))

    def _plan(self, generation: int, step: int) -> Regroup:
        return Regroup(
            generation,
            0,
            RANKS,
            "here",
            1,
            "none",
            "exit",
            step,
            0,
            True,
            (),
            "none",
            "none",
            "",
            0,
            None,
            None,
        )

    def _donates(self, main: Main, generation: int, step: int) -> Thread:
        def flow() -> Flow[None]:
            yield Donate(self._plan(generation, step))

        yield from CommitCommands(main.thread, LateVotes()).run(flow())

    def donate(self, generation: int, step: int) -> None:
        self._run(0, lambda main: self._donates(main, generation, step))

    def donate_cut_short(self, generation: int, step: int) -> None:
        self._run(0, lambda main: self._donates(main, generation, step), killed_after_s=0.0)

    def takes(self, generation: int | None, step: int) -> bool:
        there = self._world.transfer
        return there is not None and there[1] == step and generation in (None, there[0])

    def close(self) -> None:
        pass


class RealImages:
    def __init__(self, folder: Path) -> None:
        self._vault = Vault.create(folder / "vault", "run-1")
        for rank in range(RANKS):
            self._vault.reserve(rank, image_bytes([self._pieces(0)[0].spec]), companions=1)
        self._vault.reserve_transfer(image_bytes([self._pieces(0)[0].spec]))

    def _pieces(self, step: int) -> list[TensorPiece]:
        return [
            TensorPiece(
                TensorSpec("w", "F32", (1000,)), np.full(1000, step, np.float32).view(np.uint8).data
            )
        ]

    def _in_a_process(self, act: Callable[[], object], *, dies: bool = False) -> None:
        pid = os.fork()
        if pid == 0:
            try:
                if dies:
                    area.write_image = lambda target, **_: os.kill(os.getpid(), signal.SIGKILL)  # type: ignore[assignment,return-value]
                act()
            except BaseException:
                os._exit(9)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == (-signal.SIGKILL if dies else 0)

    def seal(self, rank: int, step: int) -> None:
        self._in_a_process(
            lambda: self._vault.write(
                rank, generation=1, step=step, pieces=self._pieces(step), metadata={}
            )
        )

    def seal_cut_short(self, rank: int, step: int) -> None:
        self._in_a_process(
            lambda: self._vault.write(
                rank, generation=1, step=step, pieces=self._pieces(step), metadata={}
            ),
            dies=True,
        )

    def roll_back(self, rank: int, step: int) -> None:
        self._in_a_process(lambda: self._vault.forget_after(rank, step))

    def steps(self, rank: int) -> tuple[int, ...]:
        for step in self._vault.steps(rank):
            assert (
                float(np.frombuffer(self._vault.read(rank, step).tensors["w"][1], np.float32).min())
                == step
            )
        return self._vault.steps(rank)

    def donate(self, generation: int, step: int) -> None:
        self._in_a_process(
            lambda: self._vault.write_transfer(generation, step, self._pieces(step), {})
        )

    def donate_cut_short(self, generation: int, step: int) -> None:
        self._in_a_process(
            lambda: self._vault.write_transfer(generation, step, self._pieces(step), {}), dies=True
        )

    def takes(self, generation: int | None, step: int) -> bool:
        try:
            self._vault.read_transfer(generation, step)
        except CorruptError:
            return False
        return True

    def close(self) -> None:
        self._vault.remove()
