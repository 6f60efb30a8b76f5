"""Simulated disks, and the checkpoints on them. A disk may be slow, full, corrupt, or cut writes.

A process writes to the disk of its node, and the manifest is on the disk of node 0. Every node can
read all of them. This follows runtime/tiers/local.py and runtime/coordinator/saves.py. Shards are
written first and the manifest last, and each is either whole or not there. Checksums are verified
on reading, and a bad checkpoint is set aside. Instead of a checksum, each write has its own
`stamp`, because another write of the same step has other bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from outlast.engine import durable
from outlast.engine.protocol.outputs import WriteManifest
from outlast.model.limits import CHECKPOINTS_KEPT_COUNT
from outlast.model.messages import Checkpointed
from outlast.sim.draws import Stream
from outlast.sim.rules.observations import CheckpointsRemoved, ManifestToWrite
from outlast.sim.world.frame import Frame
from outlast.sim.world.processes import SimulatedProcess

COPY_S = (0.001, 0.003)  # training pauses this long for the copy of a shard: least and most
WRITE_S = (0.005, 0.06)
READ_S = (0.002, 0.02)
SLOW = 50.0  # a slow disk takes this many times as long
FULL = "No space left on device"


@dataclass(slots=True)
class File:
    """One file on a simulated disk.

    stamp     identifies this write
    wrong     what is wrong with its bytes; "" as long as they are as written
    since_s   since when
    """

    disk: int
    stamp: int
    wrong: str = ""
    since_s: float = 0.0


@dataclass(slots=True)
class Folder:
    """The checkpoint of one step; `manifest` names a stamp for each rank."""

    step: int
    shards: dict[int, File] = field(default_factory=dict)
    manifest: File | None = None
    stamps: tuple[int, ...] = ()

    @property
    def has_manifest(self) -> bool:
        return self.manifest is not None

    def files(self) -> list[File]:
        return [*self.shards.values(), *([self.manifest] if self.manifest is not None else [])]


class Disks:
    """The disks of all nodes, and the checkpoints on them.

    `read_s` is the time at which all of the newest good checkpoint was last read.
    """

    def __init__(self, frame: Frame, stream: Stream, *, epoch: Callable[[], int]) -> None:
        self.folders: dict[int, Folder] = {}
        self.read_s = -1.0
        self._frame = frame
        self._epoch = epoch  # the epoch of the coordinator that lives; 0 if none does
        self._stream = stream
        self._stamps = 0
        self._slow_until_s: dict[int, float] = {}
        self._full_until_s: dict[int, float] = {}
        self._torn_until_s: dict[int, float] = {}
        self._busy_until_s = 0.0  # the coordinator reads and writes one thing after the other

    # --- faults -----------------------------------------------------------------------------------

    def strike(self, kind: str, disk: int, *, for_s: float) -> None:
        """Strike a disk for `for_s` seconds.

        With `torn_write`, files that are written meanwhile are cut short, though the disk reports
        success.
        """
        until_s = self._frame.now_s + for_s
        if kind == "corrupt_disk":
            self._corrupt(disk)
        else:
            of = {
                "slow_disk": self._slow_until_s,
                "full_disk": self._full_until_s,
                "torn_write": self._torn_until_s,
            }[kind]
            of[disk] = max(of.get(disk, 0.0), until_s)

    def _corrupt(self, disk: int) -> None:
        for _, folder in sorted(self.folders.items()):
            for file in folder.files():
                if file.disk == disk and self._stream.chance(0.5) and not file.wrong:
                    file.wrong, file.since_s = "corrupt", self._frame.now_s

    def _is_full(self, disk: int) -> bool:
        return self._frame.now_s < self._full_until_s.get(disk, 0.0)

    def _written(self, disk: int) -> File:
        self._stamps += 1
        torn = self._frame.now_s < self._torn_until_s.get(disk, 0.0)
        return File(disk, self._stamps, "torn" if torn else "", self._frame.now_s)

    def _takes_s(self, disk: int, least_most_s: tuple[float, float]) -> float:
        return self._stream.between(*least_most_s) * (
            SLOW if self._frame.now_s < self._slow_until_s.get(disk, 0.0) else 1.0
        )

    # --- contents ----------------------------------------------------------------------------

    def why_not(self, folder: Folder | None) -> str:
        """Return why it cannot be restored, or "" if it can."""
        return (
            "there is no manifest"
            if folder is None or folder.manifest is None
            else self.read(folder)
        )

    def read(self, folder: Folder) -> str:
        """Return what is wrong with the files that the manifest names, or "" if nothing is."""
        if folder.manifest is not None and folder.manifest.wrong:
            return f"its manifest is {folder.manifest.wrong}"
        for rank, stamp in enumerate(folder.stamps):
            shard = folder.shards.get(rank)
            if shard is None:
                return f"the shard of rank {rank} is missing"
            if shard.wrong or shard.stamp != stamp:
                return f"the shard of rank {rank} is {shard.wrong or 'of another past'}"
        return ""

    def newest_good(self) -> int:
        """Return the step of the newest checkpoint that can be restored; 0 if there is none."""
        return max(
            (step for step, folder in self.folders.items() if not self.why_not(folder)), default=0
        )

    def wrong_since_s(self, step: int) -> float:
        """Return the time of the newest fault of a checkpoint."""
        return (
            max((file.since_s for file in self.folders[step].files() if file.wrong), default=-1.0)
            if step in self.folders
            else -1.0
        )

    # --- a rank's part ----------------------------------------------------------------------------

    def copy_s(self) -> float:
        return self._stream.between(*COPY_S)

    def write_shard(self, process: SimulatedProcess, step: int) -> None:
        """Let the node's writer write a shard and report it, after earlier shards of the process.

        The writer has the captured shard, so it writes it even if the process dies. A shard of a
        step that was rolled back is not written.
        """
        disk, generation, rank = self._disk_of(process), process.machine.generation, process.rank
        began_s = max(self._frame.now_s, process.saves_until_s)
        process.saves_until_s = began_s + self._takes_s(disk, WRITE_S)
        full, rollbacks = self._is_full(disk), process.node.rollbacks

        def done() -> None:
            if not process.node.lives or process.node.rollbacks is not rollbacks:
                return  # the file has no name yet, so no process will ever read it
            if not rollbacks.counts(generation=generation, step=step):
                return  # the successor of its rank writes a file of the same name
            if process.stopped:
                process.backlog.append(done)
                return
            folder = self.folders.setdefault(step, Folder(step))
            error = (
                FULL
                if full or self._is_full(disk)
                else "it holds a checkpoint already"
                if folder.has_manifest
                else ""
            )
            if not error:
                folder.shards[rank] = self._written(disk)
            stamp = "" if error else str(folder.shards[rank].stamp)
            self._frame.say(f"rank {rank} saves step {step}: {error or 'written'}")
            process.node.tell(
                process,
                Checkpointed(
                    process.worker,
                    generation,
                    rank,
                    step,
                    f"rank-{rank}",
                    0 if error else 1,
                    stamp,
                    error,
                ),
            )

        self._frame.timeline.after(process.saves_until_s - self._frame.now_s, done)

    def _disk_of(self, process: SimulatedProcess) -> int:
        return self._frame.options.node_names.index(process.node.name)

    def read_shard_s(self, process: SimulatedProcess) -> float:
        return self._takes_s(self._disk_of(process), READ_S)

    # --- the coordinator's part -------------------------------------------------------------------

    def in_turn(self, takes_s: float, act: Callable[[], None]) -> None:
        """Do `act` after all earlier ones, unless the coordinator dies before."""
        frame, epoch = self._frame, self._epoch()
        self._busy_until_s = max(self._busy_until_s, frame.now_s) + takes_s

        def due() -> None:
            if epoch and self._epoch() == epoch and frame.end is None:
                act()

        frame.timeline.after(self._busy_until_s - frame.now_s, due)

    def write_manifest(self, order: WriteManifest, then: Callable[[str, str], None]) -> None:
        """Write a manifest, and call `then(folder, error)`."""
        full = self._is_full(0)

        def done() -> None:
            folder, stamps = (
                self.folders.get(order.step),
                tuple(int(checksum) for _, _, checksum in order.shards),
            )
            if full or self._is_full(0):
                then("", FULL)
                return
            if folder is None or any(rank not in folder.shards for rank in range(len(stamps))):
                self._frame.see(ManifestToWrite(order.step, matches_shards=False))
                then("", "a shard is missing")
                return
            folder.manifest, folder.stamps = self._written(0), stamps
            self._frame.say(f"the checkpoint of step {order.step} is written")
            self._frame.see(
                ManifestToWrite(
                    order.step,
                    tuple(folder.shards[rank].stamp for rank in range(len(stamps))) == stamps,
                )
            )
            self._prune()
            then(name_of(order.step), "")

        self.in_turn(self._takes_s(0, WRITE_S), done)

    def _prune(self) -> None:
        good = self.newest_good()
        found, _ = durable.newest_good(self.folders.values(), why_not=self.read)
        gone = durable.superfluous(
            list(self.folders.values()),
            good=found.step if found is not None else None,
            keep=CHECKPOINTS_KEPT_COUNT,
        )
        for step in gone:
            del self.folders[step]
        stay = tuple(sorted(step for step, folder in self.folders.items() if folder.has_manifest))
        self._frame.see(CheckpointsRemoved(gone, good, self.newest_good(), stay))

    def find(self, then: Callable[[int, str, tuple[str, ...]], None]) -> None:
        """Look for the newest good checkpoint, and call `then(step, folder, refused)`.

        `refused` names the bad checkpoints. They are set aside.
        """

        def done() -> None:
            found, refused = durable.newest_good(self.folders.values(), why_not=self.read)
            for folder, _ in refused:
                del self.folders[folder.step]
            self.read_s = self._frame.now_s
            step = found.step if found is not None else 0
            then(
                step,
                name_of(step) if found is not None else "",
                tuple(f"{name_of(folder.step)}: {why}" for folder, why in refused),
            )

        self.in_turn(self._takes_s(0, READ_S), done)


def name_of(step: int) -> str:
    return f"step-{step}"


def step_of(name: str) -> int:
    return int(name.removeprefix("step-"))
