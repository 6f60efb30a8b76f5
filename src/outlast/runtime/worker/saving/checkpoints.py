"""This rank's shard of the periodic checkpoint.

The rank captures the shard at the commit: it copies it into memory that it shares with the node's
writer, a process of its own (image_writer/). Once the writer says that the file is durable, the
rank reports it to the coordinator. The coordinator writes the manifest once all ranks have
reported. Until then the checkpoint does not exist. A failed save is reported, and training goes on.
Of replicated state each rank captures its share.

Training pauses only for the copy, unless the save before is still being written. A regroup does not
wait for that save, and no rank waits for long while nothing of it is written. If no writer can be
reached, a thread of this process writes the file.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from outlast.errors import CapacityError, OutlastError, StateError
from outlast.model.limits import SAVE_STUCK_S, WRITER_BACK_S, WRITER_SILENT_S
from outlast.model.messages import Checkpointed
from outlast.runtime import clock
from outlast.runtime.image_writer.captured import CapturedImage, hand_over
from outlast.runtime.image_writer.direct_disk import DirectDisk, in_blocks
from outlast.runtime.image_writer.write_orders import SOCKET_NAME, WriteAnswer, WriteOrder
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
# still waits
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
        self._memory = CapturedImage()
        self._delivery: _Delivery | None = None

    def due(self, step: int) -> bool:
        return self.every > 0 and step % self.every == 0

    def reserve(self, nbytes: int) -> None:
        """Allocate memory for this rank's shard, if the run has just begun and writes checkpoints.

        A rank that is replaced later allocates it at its first save, so that no peer has to wait
        for that. Raises CapacityError if there is too little memory.
        """
        if self.on_stop and self._session is not None and self._session.machine.generation <= 1:
            self._memory.reserve(nbytes)

    def save(self, step: int) -> None:
        """Capture this rank's shard, and begin to write it. A save that fails is reported."""
        session = self._session
        assert session is not None
        generation, rank = session.machine.generation, session.beacon.rank
        began_s = clock.now_s()
        if why := self._await_last(session):
            _report_failed(session, generation, rank, step, why)
            return
        pieces, metadata = self._pieces()
        metadata = {"step": str(step), **metadata}
        specs = [piece.spec for piece in pieces]
        size = image_bytes(specs, metadata_bytes=metadata_bytes(metadata))
        try:
            self._memory.reserve(size)
        except CapacityError as error:
            _report_failed(session, generation, rank, step, error.message)
            return
        written = write_image(self._memory.view, pieces=pieces, metadata=metadata)
        order = WriteOrder(
            session.spec.worker,
            generation,
            rank,
            step,
            str(local.checkpoint_folder(self.root, step)),
            local.shard_name(rank),
            written.length,
            written.checksum,
        )
        delivery = _Delivery(session, order, self._memory, paused_s=clock.now_s() - began_s)
        try:
            delivery.thread.start()
        except RuntimeError as error:  # boundary: "can't start new thread"
            _report_failed(session, generation, rank, step, f"{error}: {LACKING}")
            return
        self._delivery = delivery

    def wait(self) -> None:
        """Wait until the newest save is over. If nothing of it is written for long, give it up."""
        delivery = self._delivery
        if delivery is not None and not delivery.wait(stuck_s=2 * WRITER_SILENT_S):
            delivery.give_up(f"nothing of it was written for {2 * WRITER_SILENT_S:g} s")
        elif delivery is not None:
            self._delivery = None

    def _await_last(self, session: WorkerSession) -> str:
        """Wait until the save before is over. Return why this one is given up, or ""."""
        delivery = self._delivery
        if delivery is None:
            return ""
        if not delivery.wait(stuck_s=SAVE_STUCK_S, until=lambda: session.machine.broken):
            if session.machine.broken:
                return "given up for a regroup: the save before it was still being written"
            return f"given up: nothing of the save before it was written for {SAVE_STUCK_S:g} s"
        self._delivery = None
        return ""


class _Delivery:
    """A captured image on its way to the disk.

    A thread hands it to the node's writer, and reports the writer's answer.
    """

    def __init__(
        self,
        session: WorkerSession,
        order: WriteOrder,
        memory: CapturedImage,
        *,
        paused_s: float,
    ) -> None:
        self.thread = threading.Thread(target=self._run, name="outlast-checkpoint", daemon=True)
        self._session = session
        self._order = order
        self._memory = memory
        self._paused_s = paused_s
        self._moved_s = clock.now_s()
        self._is_reported = False

    def wait(self, *, stuck_s: float, until: Callable[[], bool] = lambda: False) -> bool:
        """Wait until this save is over, and return True.

        Return False if `until` is true before, or if nothing was written for `stuck_s`.
        """
        while self.thread.is_alive():
            self.thread.join(LOOK_S)
            if until() or clock.now_s() - self._moved_s > stuck_s:
                return not self.thread.is_alive()
        return True

    def give_up(self, why: str) -> None:
        """Report this save as failed. Its memory stays in use until the save is over."""
        order = self._order
        _report_failed(self._session, order.generation, order.rank, order.step, f"given up: {why}")

    def _run(self) -> None:
        """Let the image be written. A failure is reported, and ends nothing (boundary)."""
        try:
            with _one_at_a_time:
                if not self._hand_over():
                    self._write()
        except (OutlastError, OSError, MemoryError) as error:
            self._report(WriteAnswer(one_line(error)))

    def _hand_over(self) -> bool:
        """Let the node's writer write the image.

        Return False if there is no writer, or if none comes back within WRITER_BACK_S.
        """
        path, failed_s = Path(self._session.spec.vault_folder) / SOCKET_NAME, 0.0
        while path.exists():
            began_s = self._moved_s
            try:
                hand_over(
                    self._order, self._memory, path, moved=self._note_moved, done=self._report
                )
                return True
            except (OSError, ValueError):
                if self._is_reported:  # the writer has ended after it had answered
                    return True
            now_s = clock.now_s()
            if not failed_s or self._moved_s > began_s:
                failed_s = now_s
            if now_s - failed_s > WRITER_BACK_S:
                break
            time.sleep(LOOK_S)
        return False

    def _write(self) -> None:
        """Write the image in this process, because there is no writer, or none comes back."""
        order = self._order
        blocks = in_blocks(self._memory.view[: order.length], self._note_moved)
        entry = local.write_file(Path(order.folder), order.name, blocks, disk=DirectDisk())
        changed = entry.checksum != order.checksum
        self._report(WriteAnswer("the captured bytes have changed" if changed else ""))

    def _note_moved(self) -> None:
        self._moved_s = clock.now_s()

    def _report(self, answer: WriteAnswer) -> None:
        self._is_reported, order = True, self._order
        if answer.error:
            _report_failed(self._session, order.generation, order.rank, order.step, answer.error)
            return
        self._session.say(
            Checkpointed(
                order.worker,
                order.generation,
                order.rank,
                order.step,
                order.name,
                order.length,
                f"{order.checksum:016x}",
                "",
                paused_s=self._paused_s,
            )
        )


def _report_failed(
    session: WorkerSession, generation: int, rank: int, step: int, error: str
) -> None:
    """Report that this rank's shard of `step` is not written. Training goes on."""
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
