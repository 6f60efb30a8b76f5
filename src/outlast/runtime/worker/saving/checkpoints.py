"""This rank's part of the periodic checkpoint.

It is copied at the commit, written by a thread, and reported to the coordinator. The coordinator
writes the manifest once all ranks have reported. Until then the checkpoint does not exist. A failed
save is reported, and training goes on. Of replicated state each rank copies and writes its share.

Training pauses only for the copy, unless the save before is still being written. A regroup does not
wait for that.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from pathlib import Path

from outlast.errors import OutlastError, StateError
from outlast.model.messages import Checkpointed
from outlast.runtime import clock
from outlast.runtime.tiers import local
from outlast.runtime.tiers.image import TensorPiece, image_bytes, metadata_bytes, write_image
from outlast.runtime.tiers.replicated import read_replicated
from outlast.runtime.worker.member.session import WorkerSession
from outlast.runtime.worker.process.error_text import one_line
from outlast.runtime.worker.process.threads import LACKING
from outlast.runtime.worker.run_state.state import State
from outlast.runtime.worker.saving.images import load_parts
from outlast.runtime.worker.saving.resharding import load_resharded

LOOK_S = 0.01  # a rank that waits for the last save checks at this interval whether it has to leave
# main's function may be entered again, and reach its next save, while the thread of the last save
# still writes
_one_at_a_time = threading.Lock()


class Checkpoints:
    """Save this rank's shard of each periodic checkpoint.

    `every` is the number of steps between two saves; 0 means none. If `on_stop` is set, one more is
    saved when a stop is asked for. `pieces` returns the pieces of this rank's file, and what its
    header says of them.
    """

    def __init__(
        self,
        session: WorkerSession | None,
        pieces: Callable[[], tuple[list[TensorPiece], Mapping[str, str]]],
    ) -> None:
        options = session.spec.options if session is not None else {}
        self.every = int(options.get("checkpoint_every", 0))
        self.root = Path(str(options.get("checkpoint_root", "")))
        self.on_stop = self.every > 0 or any(options.get("keep_disk", ()))
        self._session = session
        self._pieces = pieces
        self._staging = bytearray()
        self._writer: threading.Thread | None = None

    def due(self, step: int) -> bool:
        return self.every > 0 and step % self.every == 0

    def save(self, step: int) -> None:
        """Copy this rank's shard, and let a thread write it."""
        session = self._session
        assert session is not None
        generation, rank = session.machine.generation, session.beacon.rank
        began_s = clock.now_s()
        while self._writer is not None and self._writer.is_alive():
            self._writer.join(LOOK_S)
            if session.machine.broken:
                why = "given up for a regroup: the save before it was still being written"
                self._report_failed(generation, rank, step, why)
                return
        pieces, metadata = self._pieces()
        metadata = {"step": str(step), **metadata}
        specs = [piece.spec for piece in pieces]
        size = image_bytes(specs, metadata_bytes=metadata_bytes(metadata))
        try:
            if len(self._staging) < size:
                self._staging = bytearray(size)
        except MemoryError:
            why = f"no memory for a copy of {size:,} bytes"
            self._report_failed(generation, rank, step, why)
            return
        written = write_image(memoryview(self._staging), pieces=pieces, metadata=metadata)
        image = memoryview(self._staging)[: written.length]
        writer = threading.Thread(
            target=self._write,
            args=(generation, rank, step, image, clock.now_s() - began_s),
            name="outlast-checkpoint",
            daemon=True,
        )
        self._writer = None
        try:
            writer.start()
        except RuntimeError as error:  # boundary: "can't start new thread"
            self._report_failed(generation, rank, step, f"{error}: {LACKING}")
            return
        self._writer = writer

    def wait(self) -> None:
        if self._writer is not None:
            self._writer.join()
            self._writer = None

    def _write(
        self, generation: int, rank: int, step: int, image: memoryview, paused_s: float
    ) -> None:
        """Write the shard. A save that fails is reported, and ends nothing (supervision
        boundary).
        """
        assert self._session is not None
        worker = self._session.spec.worker
        try:
            with _one_at_a_time:
                entry = local.write_shard_bytes(
                    local.checkpoint_folder(self.root, step), rank, image
                )
            done = Checkpointed(
                worker,
                generation,
                rank,
                step,
                entry.name,
                entry.length,
                f"{entry.checksum:016x}",
                "",
                paused_s=paused_s,
            )
        except (OutlastError, OSError, MemoryError) as error:
            self._report_failed(generation, rank, step, one_line(error))
            return
        self._session.say(done)

    def _report_failed(self, generation: int, rank: int, step: int, error: str) -> None:
        """Report that this rank's shard of `step` is not written. Training goes on."""
        session = self._session
        assert session is not None
        session.say(Checkpointed(session.spec.worker, generation, rank, step, "", 0, "", error))


def load_checkpoint(state: State, folder: str, rank: int, world_size: int) -> list[str]:
    """Load this rank's state from a checkpoint, which any number of ranks may have written.

    Return the private parts that new ranks take from rank 0, on the first of these ranks. Raises
    StateError for what cannot be loaded by this number of ranks, and CorruptError.
    """
    path = Path(folder)
    found = next((one for one in local.checkpoints(path.parent) if one.folder == path), None)
    if found is None:
        raise StateError(
            f"there is no checkpoint in {folder}",
            hint="it was there when the run started; was it removed?",
        )
    manifest = found.manifest
    if manifest.world_size != world_size:
        return load_resharded(state, found, rank)
    is_sharded = manifest.kind == "sharded"
    load_parts(state, local.read_shard(found, rank) if is_sharded else read_replicated(found, rank))
    return []
