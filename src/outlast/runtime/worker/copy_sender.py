"""Send each image that this rank seals to the node that keeps copies of it.

    sealed    `send`: a thread sends the bytes from the vault while the main thread computes
    a vote    `wait`: no rank votes before its keeper has the copy of its newest image

So once a vote has passed, the step before it survives the loss of any one node. An image is not
overwritten while it is sent, because its slot is reused only after the next vote.
"""

from __future__ import annotations

import socket
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from outlast.errors import CapacityError, CorruptError
from outlast.model import limits
from outlast.model.manifest import Seal
from outlast.model.messages import ImageHead, PutImage, Regroup, TurnedAway
from outlast.model.terms import Cause, Phase, Tier
from outlast.runtime import trust
from outlast.runtime.worker import image_dialogue, threads
from outlast.runtime.worker.image_dialogue import Server
from outlast.runtime.worker.session import WorkerSession
from outlast.runtime.worker.shared_rows import Cut


@dataclass(frozen=True, slots=True)
class _Job:
    """One image that is to be copied to another node, which `keeper` names."""

    rank: int
    generation: int
    keeper: Server
    path: Path
    seal: Seal


class CopySender:
    """Send this rank's images to the node that its plan names. Without one it does nothing."""

    def __init__(self, session: WorkerSession | None) -> None:
        self._session = session
        self._plan: Regroup | None = None
        self._changed = threading.Condition()
        self._job: _Job | None = None  # the newest; None: it is done, or there is none
        self._sent = -1  # the newest step that was to be sent in this generation
        self._is_off = False  # in this generation: the keeper has no room
        self._runs = False

    def follow(self, plan: Regroup) -> None:
        """Begin to send to the keeper of `plan`. What was to be sent before is dropped."""
        with self._changed:
            self._plan, self._job, self._sent, self._is_off = plan, None, -1, False

    def send(self, step: int) -> None:
        """Send the image of `step`, unless it was sent: it is the newest that is sealed."""
        plan, session = self._plan, self._session
        if plan is None or session is None or not plan.keeper or self._is_off or step <= self._sent:
            return
        found = session.vault.sealed_image(plan.rank, step)
        if found is None:
            return  # the vault was removed; the launcher says so
        self._start()
        with self._changed:
            self._sent = step
            keeper = Server(plan.keeper, session.image_key)
            self._job = _Job(plan.rank, plan.generation, keeper, *found)
            self._changed.notify_all()

    def wait(self) -> None:
        """Wait until the keeper has the copy of the newest image.

        Raises Cut if the generation is over.
        """
        session = self._session
        if session is None or self._job is None:
            return
        phase, cause = session.beacon.phase, session.book.cause
        # A peer may be slow for long, and no process must be killed for that. A lost peer ends the
        # wait.
        session.enter(Phase.CHECKPOINT, cause=Cause.STALL)
        with self._changed:
            while self._job is not None:
                if session.machine.broken:
                    raise Cut("the generation is over")
                self._changed.wait(limits.COPY_LOOK_S)
        session.enter(phase, cause=cause, tier=Tier.PEER)

    # --- the thread ------------------------------------------------------------------------------

    def _start(self) -> None:
        if not self._runs:
            threads.start(self._run, "outlast-copies", within_s=limits.THREAD_WAIT_S)
            self._runs = True

    def _run(self) -> None:
        """Send what is to be sent, until the process ends."""
        while True:
            with self._changed:
                while self._job is None:
                    self._changed.wait()
                job = self._job
            lack = ""
            try:
                _Sending(job, self).run()
            except (OSError, EOFError, CorruptError):
                # The keeper may come back, and if its node is lost, this generation ends.
                time.sleep(limits.STORE_LOOK_S)
                continue
            except CapacityError as error:
                lack = error.message
            with self._changed:
                if self._job is job:
                    self._job, self._is_off = None, bool(lack)
                    self._changed.notify_all()
            if lack:
                self._warn(job, lack)

    def still_wants(self, job: _Job) -> bool:
        """Return whether `job` is the newest, and its generation goes on."""
        return self._job is job and self._session is not None and not self._session.machine.broken

    def _warn(self, job: _Job, lack: str) -> None:
        assert self._session is not None, "only a run with a launcher sends copies"
        self._session.warn(
            f"the node at {job.keeper.address} keeps no copy of the state of rank {job.rank}:"
            f" {lack}; if this rank's node is lost, the run goes back to the newest checkpoint"
        )


class _Sending:
    """One image on its way, over one connection."""

    def __init__(self, job: _Job, sender: CopySender) -> None:
        self._job = job
        self._sender = sender

    def run(self) -> None:
        """Send the image. Raises CapacityError if there is no room for it, and OSError."""
        if not self._sender.still_wants(self._job):
            # The main thread has stopped waiting, or is about to.
            time.sleep(limits.COPY_LOOK_S)
            raise EOFError("the generation is over")
        job, length = self._job, self._job.seal.length
        put = PutImage(trust.nonce(), job.rank, job.generation, job.seal.pack().hex())
        with image_dialogue.connect(job.keeper) as sock:
            sock.settimeout(limits.IMAGE_QUIET_S)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            receive = image_dialogue.receive_from(sock)
            arrived = _offset(image_dialogue.ask(sock, put, key=job.keeper.key, receive=receive))
            if arrived < length:
                self._send_bytes(sock, length)
                arrived = _offset(image_dialogue.read_answer(receive))
            if arrived != length:
                raise CorruptError(f"{arrived:,} of {length:,} bytes have arrived")

    def _send_bytes(self, sock: socket.socket, length: int) -> None:
        """Send the bytes from the vault's file. The kernel copies them, without the interpreter."""
        sent = 0
        with self._job.path.open("rb") as file:
            while sent < length:
                if not self._sender.still_wants(self._job):
                    raise EOFError("the generation is over")
                sent += sock.sendfile(file, sent, min(length - sent, limits.IMAGE_PIECE_BYTES))


def _offset(answer: ImageHead | TurnedAway) -> int:
    """Return how many bytes the keeper has. Raises CapacityError if it keeps no copy."""
    if isinstance(answer, TurnedAway):
        raise CapacityError(answer.reason)
    return answer.offset
