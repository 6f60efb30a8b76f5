"""Two places for checkpoints under one handle: the simulated disks, and a real folder.

One save at a time, by ranks that each write a shard.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol
from unittest.mock import patch

import numpy as np

from outlast.engine.durable import Retention
from outlast.engine.protocol.outputs import Output, Spawn
from outlast.engine.protocol.outputs import WriteManifest as Order
from outlast.errors import CorruptError, OutlastError
from outlast.model.messages import Checkpointed
from outlast.runtime.coordinator.pruner import Pruner
from outlast.runtime.coordinator.saves import find_checkpoint, write_checkpoint
from outlast.runtime.tiers import local
from outlast.runtime.tiers.image import TensorPiece, TensorSpec
from outlast.sim.options import Options
from outlast.sim.world.disk import step_of
from outlast.sim.world.processes import SimulatedProcess, Thread
from outlast.sim.world.world import World
from tests.conformance.ears import put_in_place_of_agent

RANKS = 2
Shard = tuple[str, int, str]  # file, length, checksum


class FullError(Exception):
    """The disk has no room left."""


class Disk(Protocol):
    def shard(self, step: int, rank: int) -> Shard:
        """Write one; raises FullError, or OutlastError where the step is a checkpoint already."""

    def shard_cut_short(self, step: int, rank: int) -> None:
        """By a process that is killed in the middle."""

    def manifest(self, step: int, shards: list[Shard]) -> bool:
        """Whether that made it a checkpoint. Older ones beyond those that are kept are removed."""

    def find(self) -> tuple[int, int]:
        """Step of the newest good checkpoint, 0: none; and how many newer ones were refused, which
        are set aside.
        """

    def reads(self, step: int, rank: int) -> bool:
        """Whether the shard of `rank` can be restored from."""

    def steps(self) -> list[int]:
        """Those with a manifest, readable or not, newest first."""

    def fill(self, *, full: bool) -> None:
        """The disk has no room left, or has it again."""

    def spoil(self, step: int, what: str, how: str) -> None:
        """A bit flips ("corrupt"), or the end is missing ("torn"); `what`: "manifest", or a
        rank.
        """


class SimulatedDisk:
    def __init__(self) -> None:
        self._world = World(
            options=Options(recovery_mode="sharded", ranks=RANKS, checkpoint_every=1),
            script=self._script,
        )
        self._node = self._world.nodes[0]
        put_in_place_of_agent(self._node, self)
        self._disks = self._world.disks
        self._heard: list[Checkpointed] = []
        self._processes = 0
        self._generation = 1

    def _script(self, world: World, process: SimulatedProcess) -> Thread:
        yield "sleep", 1e9
        return 0

    def on_event(self, message: Any, *, now_s: float) -> list[Output]:
        return []

    def on_worker(self, message: Any, *, now_s: float) -> list[Output]:
        self._heard.append(message)
        return []

    def _process(self, rank: int) -> SimulatedProcess:
        self._processes += 1
        self._node.do([Spawn(self._processes, rank, "rank", 1)])
        while self._processes not in self._node.processes:
            self._world.timeline.step()
        process = self._node.processes[self._processes]
        process.machine.generation = self._generation
        return process

    def _run(self) -> None:
        until_s = self._world.now_s + 1.0
        while self._world.timeline.step(until_s=until_s):
            pass

    def shard(self, step: int, rank: int) -> Shard:
        self._heard.clear()
        self._disks.write_shard(self._process(rank), step)
        self._run()
        (said,) = self._heard
        if "No space" in said.error:
            raise FullError
        if said.error:
            raise OutlastError(said.error)
        return said.file, said.length, said.checksum

    def shard_cut_short(self, step: int, rank: int) -> None:
        """Let the rank die in the midst of a shard, and the run go back to before that step.

        The node's writer would finish the shard, if the run had not gone back.
        """
        process = self._process(rank)
        self._disks.write_shard(process, step)
        self._node.end(process, None, 9)
        self._generation += 1
        self._node.rollbacks.note(generation=self._generation, step=step - 1)
        self._run()

    def manifest(self, step: int, shards: list[Shard]) -> bool:
        came: list[str] = []
        self._disks.write_manifest(
            Order(step, True, tuple(shards)), lambda folder, error: came.append(error)
        )
        self._run()
        (error,) = came
        return not error

    def find(self) -> tuple[int, int]:
        came: list[tuple[int, str, tuple[str, ...]]] = []
        self._disks.find(lambda step, folder, refused: came.append((step, folder, refused)))
        self._run()
        ((step, folder, refused),) = came
        assert not folder or step_of(folder) == step
        return step, len(refused)

    def reads(self, step: int, rank: int) -> bool:
        return not self._disks.why_not(self._disks.folders.get(step))

    def steps(self) -> list[int]:
        return sorted(
            (step for step, folder in self._disks.folders.items() if folder.has_manifest),
            reverse=True,
        )

    def fill(self, *, full: bool) -> None:
        self._disks._full_until_s.clear()
        if full:
            self._disks.strike("full_disk", 0, for_s=1e6)

    def spoil(self, step: int, what: str, how: str) -> None:
        folder = self._disks.folders[step]
        file = folder.manifest if what == "manifest" else folder.shards[int(what)]
        assert file is not None
        file.wrong = how


class _FullDisk(local.Disk):
    def write(self, fd: int, data: memoryview) -> None:
        raise OSError(28, "No space left on device")


class RealDisk:
    def __init__(self, root: Path) -> None:
        self._root = root
        self._full = False
        self._flips = 0

    def _pieces(self, step: int, rank: int) -> list[TensorPiece]:
        return [
            TensorPiece(
                TensorSpec("w", "F32", (700,)),
                np.full(700, step * 10 + rank, np.float32).view(np.uint8).data,
            )
        ]

    def shard(self, step: int, rank: int) -> Shard:
        disk = _FullDisk() if self._full else local.DISK
        try:
            entry = local.write_shard(
                local.checkpoint_folder(self._root, step),
                rank,
                pieces=self._pieces(step, rank),
                metadata={},
                disk=disk,
            )
        except OutlastError as error:
            if "No space" in str(error):
                raise FullError from error
            raise
        return entry.name, entry.length, f"{entry.checksum:016x}"

    def shard_cut_short(self, step: int, rank: int) -> None:
        folder = local.checkpoint_folder(self._root, step)
        folder.mkdir(exist_ok=True)
        # what tests/tiers/test_local.py finds after SIGKILL in a write
        (folder / f"{local.shard_name(rank)}.tmp").write_bytes(b"half")

    def manifest(self, step: int, shards: list[Shard]) -> bool:
        with patch.object(local.DISK, "write", (_FullDisk() if self._full else local.DISK).write):
            folder, _ = write_checkpoint(self._root, Order(step, True, tuple(shards)), "run-1", 1)
            if folder:
                pruner = Pruner(self._root, Retention())
                pruner.ask()
                pruner.finish()
        return bool(folder)

    def find(self) -> tuple[int, int]:
        step, _, refused = find_checkpoint(self._root)
        return step, len(refused)

    def reads(self, step: int, rank: int) -> bool:
        found = next(
            (one for one in local.checkpoints(self._root) if one.manifest.step == step), None
        )
        try:
            return found is not None and bool(local.read_shard(found, rank).tensors)
        except CorruptError:
            return False

    def steps(self) -> list[int]:
        return sorted(
            (
                int(path.parent.name.removeprefix("step-"))
                for path in self._root.glob(f"step-*/{local.MANIFEST_NAME}")
            ),
            reverse=True,
        )

    def fill(self, *, full: bool) -> None:
        self._full = full

    def spoil(self, step: int, what: str, how: str) -> None:
        path = local.checkpoint_folder(self._root, step) / (
            local.MANIFEST_NAME if what == "manifest" else local.shard_name(int(what))
        )
        data = bytearray(path.read_bytes())
        self._flips += 1
        # another one each time: a bit that flips twice is as it was
        data[self._flips % len(data)] ^= 1
        path.write_bytes(data if how == "corrupt" else data[: len(data) // 2])
