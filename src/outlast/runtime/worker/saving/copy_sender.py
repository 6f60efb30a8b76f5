"""Send each image that this rank seals to the nodes that keep copies of it.

With parity, its parts are sent to the nodes that keep parity.

    sealed    `send`: a thread sends the bytes from the vault while the main thread computes
    a vote    `wait`: no rank votes before its keepers have the copy of its newest image, or all
              parts of it are in the rows of parity that they belong to
    a drain   `send_out`: the main thread stands still, and the image goes to the node that takes
              the rank over

So once a vote has passed, the step before it survives the loss of as many nodes as there are copies
or rows. An image is not overwritten while it is sent, because its slot is reused only after the
next vote. A node without room gets nothing more in this generation, and the others do.
"""

from __future__ import annotations

import socket
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from outlast.engine.protocol.outputs import SendOut
from outlast.errors import CapacityError, CorruptError
from outlast.model import limits
from outlast.model.manifest import Seal
from outlast.model.messages import ImageHead, PutImage, Regroup, Share, TurnedAway
from outlast.model.terms import Cause, Phase, Tier
from outlast.runtime.network import trust
from outlast.runtime.tiers.parity import part_of
from outlast.runtime.worker.communication.shared_rows import Cut
from outlast.runtime.worker.member.session import WorkerSession
from outlast.runtime.worker.process import threads
from outlast.runtime.worker.transfer import image_dialogue
from outlast.runtime.worker.transfer.image_dialogue import Server


@dataclass(frozen=True, slots=True)
class _Job:
    """One image that is to be copied to other nodes, or in parts to several nodes.

    left      where it has not arrived yet; the last one is next
    departs   this node is being drained, and the rank is about to leave it
    """

    rank: int
    generation: int
    path: Path
    seal: Seal
    left: list[_Target]
    departs: bool = False


class _Target(NamedTuple):
    """A node, and the part that it will get. None: the whole image."""

    server: Server
    share: Share | None

    def bytes_of(self, length: int) -> tuple[int, int]:
        """Return where the part begins and ends in an image of `length` bytes."""
        share = self.share
        if share is None:
            return 0, length
        return part_of(length, data=len(share.ranks), place=share.place)


class CopySender:
    """Send this rank's images to the nodes that its plan names.

    It does nothing if there are none.
    """

    def __init__(self, session: WorkerSession | None) -> None:
        self._session = session
        self._plan: Regroup | None = None
        self._changed = threading.Condition()
        self._job: _Job | None = None  # the newest; None: it is done, or there was none
        self._sent = -1  # the newest step that had to be sent in this generation
        # the nodes that get nothing more in this generation, because they have no room
        self._off: set[_Target] = set()
        self._runs = False

    def follow(self, plan: Regroup) -> None:
        """Begin to send to the nodes that `plan` names. What was waiting to be sent is dropped."""
        with self._changed:
            self._plan, self._job, self._sent, self._off = plan, None, -1, set()

    def send(self, step: int) -> None:
        """Send the image of `step`, the newest that is sealed, unless it was sent already."""
        plan, session = self._plan, self._session
        if plan is None or session is None or step <= self._sent:
            return
        asked: list[tuple[str, Share | None]] = [(share.at, share) for share in plan.shares]
        asked += [(keeper, None) for keeper in reversed(plan.keepers)]
        named = (_Target(Server(address, session.image_key), share) for address, share in asked)
        left = [target for target in named if target not in self._off]
        if not left:
            return
        found = session.vault.sealed_image(plan.rank, step)
        if found is None:
            return  # the vault was removed, and the launcher reports that
        self._start()
        with self._changed:
            self._sent = step
            self._job = _Job(plan.rank, plan.generation, *found, left)
            self._changed.notify_all()

    def send_out(self, asked: SendOut) -> None:
        """Send the image of a step to the node that takes this rank over. Any thread may call this.

        The main thread stands still, so the image is not overwritten.
        """
        plan, session = self._plan, self._session
        if plan is None or session is None:
            return
        found = session.vault.sealed_image(plan.rank, asked.step)
        if found is None:
            return  # the coordinator calls the drain off
        self._start()
        with self._changed:
            left = [_Target(Server(asked.at, session.image_key), None)]
            self._job = _Job(plan.rank, asked.generation, *found, left, departs=True)
            self._changed.notify_all()

    def wait(self) -> None:
        """Wait until the newest image has arrived wherever it has to go.

        Raises Cut if the generation is over.
        """
        session = self._session
        if session is None or self._job is None:
            return
        phase, cause = session.beacon.phase, session.book.cause
        # A peer may be slow for a long time, and no process must be killed for that. The loss of a
        # peer ends the wait.
        session.enter(Phase.CHECKPOINT, cause=Cause.STALL)
        with self._changed:
            while self._job is not None:
                if session.machine.broken:
                    raise Cut("the generation is over")
                self._changed.wait(limits.COPY_LOOK_S)
        is_parity = self._plan is not None and bool(self._plan.shares)
        session.enter(phase, cause=cause, tier=Tier.PARITY if is_parity else Tier.PEER)

    # --- the thread ------------------------------------------------------------------------------

    def _start(self) -> None:
        if not self._runs:
            threads.start(self._run, "outlast-copies", within_s=limits.THREAD_WAIT_S)
            self._runs = True

    def _run(self) -> None:
        """Send images until the process ends."""
        while True:
            with self._changed:
                while self._job is None:
                    self._changed.wait()
                job = self._job
            try:
                while job.left:
                    _Sending(job, job.left[-1], self).run()
                    job.left.pop()
            except (OSError, EOFError, CorruptError):
                # The keeper may come back, and the next one is tried meanwhile. If its node is
                # lost, this generation ends.
                job.left.insert(0, job.left.pop())
                time.sleep(limits.STORE_LOOK_S)
                self._drop_if_over(job)
                continue
            except CapacityError as error:
                self._give_up(job, job.left.pop(), error.message)
                continue
            with self._changed:
                if self._job is job:
                    self._job = None
                    self._changed.notify_all()

    def _give_up(self, job: _Job, target: _Target, lack: str) -> None:
        """Send nothing more to a node without room, as long as this generation lasts."""
        with self._changed:
            if self._job is not job:
                return  # another generation has begun meanwhile
            if job.departs:
                return  # the coordinator reports a drain that is called off
            told = any(one.server == target.server for one in self._off)
            self._off.add(target)
        if not told:
            self._warn(job, target, lack)

    def still_wants(self, job: _Job) -> bool:
        """Return whether `job` is the newest, and its generation goes on.

        If the rank is about to leave its node, it stands still instead.
        """
        if self._job is not job or self._session is None:
            return False
        machine = self._session.machine
        if job.departs:
            return machine.stands_still_in(job.generation)
        return not machine.broken

    def _drop_if_over(self, job: _Job) -> None:
        """Forget an image for a drain that is over: this rank has followed another plan."""
        with self._changed:
            if job.departs and self._job is job and not self.still_wants(job):
                self._job = None

    def _warn(self, job: _Job, target: _Target, lack: str) -> None:
        assert self._session is not None, "only a run with a launcher sends copies"
        others = self._plan is not None and len(self._plan.keepers) > len(self._off)
        costs = (
            "the run survives fewer losses of nodes"
            if others
            else "if this rank's node is lost, the run goes back to the newest checkpoint"
        )
        self._session.warn(
            f"the node at {target.server.address} keeps no copy and no parity of the state of"
            f" rank {job.rank}: {lack}; {costs}"
        )


class _Sending:
    """One image, or a part of it, that is being sent over one connection."""

    def __init__(self, job: _Job, target: _Target, sender: CopySender) -> None:
        self._job = job
        self._target = target
        self._sender = sender

    def run(self) -> None:
        """Send the image. Raises CapacityError if there is no room for it, and OSError."""
        if not self._sender.still_wants(self._job):
            # The main thread has stopped waiting, or will stop soon.
            time.sleep(limits.COPY_LOOK_S)
            raise EOFError("the generation is over")
        job, target = self._job, self._target
        begin, end = target.bytes_of(job.seal.length)
        length, seal = end - begin, job.seal.pack().hex()
        put = PutImage(trust.nonce(), job.rank, job.generation, seal, target.share)
        with image_dialogue.connect(target.server) as sock:
            sock.settimeout(limits.IMAGE_QUIET_S)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            send_last(sock)
            receive = image_dialogue.receive_from(sock)
            key = target.server.key
            arrived = _offset(image_dialogue.ask(sock, put, key=key, receive=receive))
            if arrived < length:
                self._send_bytes(sock, begin + arrived, end)
                arrived = _offset(image_dialogue.read_answer(receive))
            if arrived != length:
                raise CorruptError(f"{arrived:,} of {length:,} bytes have arrived")

    def _send_bytes(self, sock: socket.socket, at: int, end: int) -> None:
        """Send the bytes from the vault's file. The kernel copies them, without the interpreter."""
        with self._job.path.open("rb") as file:
            while at < end:
                if not self._sender.still_wants(self._job):
                    raise EOFError("the generation is over")
                at += sock.sendfile(file, at, min(end - at, limits.IMAGE_PIECE_BYTES))


def send_last(sock: socket.socket) -> None:
    """Let the kernel send the packets of other connections before those of `sock`.

    A collective whose packets queue behind those of a copy holds up all ranks, while a copy has
    time until the next vote. The queue of the network card keeps this order if it has bands
    (`pfifo_fast`, `prio`). Otherwise this changes nothing.
    """
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_PRIORITY, limits.COPY_PRIORITY)


def _offset(answer: ImageHead | TurnedAway) -> int:
    """Return how many bytes the keeper has. Raises CapacityError if it keeps no copy."""
    if isinstance(answer, TurnedAway):
        raise CapacityError(answer.reason)
    return answer.offset
