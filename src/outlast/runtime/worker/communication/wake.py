"""Wake a rank that is blocked in a collective: shut down the sockets of its groups.

gloo's abort() and shutdown() do not wake a blocked collective. Shutting down its TCP connections
does, in 1-2 ms and without the peer's help. So every socket that appears while a group is built is
noted by descriptor and inode, including those of subgroups and device meshes. `wake` (from the
listener thread) shuts down those that still are what they were.

Only the receiving side of a connected group is shut. Gloo forgets a send that fails with EPIPE,
because Pair::signalException passes over the unbound buffers in its queue. A thread that waits for
that send then waits for ever. With sending left open the send goes through, and the end of file
ends the collective. For the same reason a second descriptor keeps each connection up when gloo
closes its own: a peer that is still sending must not fail. Both hold as long as all that a rank
sends fits its socket's buffers. They cannot hold for the peers of a process that is killed.

A socket counts as a group's only if it is new and connected. One of its ends must be a listening
port that a member of the group announced in its first exchange. So a connection that another thread
of the script opens at the same moment is left alone.

Not promised: a rank may be blocked while its group is still connecting, with a peer that died after
it had said its address. It may hold out for GROUP_CONNECT_S, or for five times as long if the
peer's machine does not answer (see peer_probe.py). Call `wake` again until the main thread stands
still, or kill it. NCCL has no sockets of ours: its communicators are aborted instead
(nccl_groups.py).
"""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from outlast.model.limits import STORE_CUT_S
from outlast.runtime.worker.communication import nccl_groups
from outlast.runtime.worker.communication.peer_ends import (
    PeerEnds,
    PeerWords,
    key_of_address,
    unacknowledged_bytes,
)
from outlast.runtime.worker.process.complaints import without_complaint

# every way to create a group, except split_group, goes through it
_HELPER = "_new_process_group_helper"
# what torch's client of the store writes, with a stack, when its connection is shut
_CUT_STORE = (b"[c10d]", b"Exception raised from", b"frame #", b"<omitting python frames>")


@dataclass(slots=True)
class NodeKeys:
    """Hold the keys by which the ranks of a group know which of them share a node.

    mine    the key of this process's node, which no other node has; 0: this process shares no
            memory with other ranks
    rank    the rank of this process in the run; -1: it has none
    heard   the keys of all ranks of the newest group, by rank
    """

    mine: int = 0
    rank: int = -1
    heard: tuple[int, ...] = ()


class SocketWatch:
    """The sockets of this process's groups.

    There is one per worker. `wake` may be called from any thread.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sockets: dict[int, int] = {}  # descriptor -> inode
        self._store: dict[int, int] = {}
        # connections that were woken, until all ranks have left them
        self._held: dict[tuple[int, int], socket.socket] = {}
        self._peers = PeerEnds()
        # the sockets that existed when the group that is being built was begun
        self._before: dict[int, int] | None = None
        self._originals: dict[tuple[Any, str], Any] = {}
        # it is set while the main thread does not wait in the store
        self._out_of_store = threading.Event()
        self._out_of_store.set()
        # `wake` had to shut the store's connection, so connect again before the next group
        self.store_lost = False
        self.keys = NodeKeys()

    @property
    def sockets(self) -> dict[int, int]:
        """Return descriptor and inode of every noted socket."""
        with self._lock:
            return dict(self._sockets)

    def install(self) -> None:
        """Watch the groups that the script creates itself (new_group, device meshes, split_group).

        This is idempotent.
        """
        if self._originals:
            return
        self._patch(
            distributed_c10d, _HELPER, self._covered_helper(getattr(distributed_c10d, _HELPER))
        )
        split = distributed_c10d.split_group
        covered = self._covered_split(split)
        for module in (distributed_c10d, dist, sys.modules.get("torch.distributed.device_mesh")):
            if module is not None and getattr(module, "split_group", None) is split:
                self._patch(module, "split_group", covered)

    def uninstall(self) -> None:
        for (owner, name), original in self._originals.items():
            setattr(owner, name, original)
        self._originals.clear()

    def begins(self, rank: int) -> None:
        """Note that this process is about to build a generation's group, in which it is `rank`."""
        self.keys.rank = rank
        self._peers.cut_at_wake = {}

    @property
    def cut_at_wake(self) -> dict[int, int]:
        """Return the result of `cut_off` from just before this generation's sockets were shut."""
        return self._peers.cut_at_wake

    @contextlib.contextmanager
    def recording(self) -> Iterator[None]:
        """Count sockets that appear inside, up to each `note`, as possible sockets of a group.

        Until then `wake` shuts the store's connection too.
        """
        # a group that is created while another one is being created shares its window
        if self._before is not None:
            yield
            return
        with self._lock:
            self._before = _sockets()
        try:
            yield
        finally:
            with self._lock:
                self._before = None

    @contextlib.contextmanager
    def waiting_in_store(self) -> Iterator[None]:
        """Let `wake` shut the store's connection while the main thread waits for a key."""
        with self._lock:
            self._out_of_store.clear()
        try:
            yield
        finally:
            self._out_of_store.set()

    def note(self, group: dist.ProcessGroup) -> None:
        """Connect every pair of `group`, keep its sockets, and learn the nodes of its members.

        It is collective over the group's members.
        """
        before = self._before or {}
        listeners = [
            _local_end(fd)
            for fd, inode in _sockets().items()
            if before.get(fd) != inode and _listens(fd)
        ]
        host, port = next((end for end in listeners if end[1]), ("", 0))
        mine = PeerWords(port, self.keys.mine, key_of_address(host), self.keys.rank)
        said = [PeerWords(*one) for one in connect_eagerly(group, mine)]
        self.keys.heard = tuple(one.node for one in said)
        with self._lock:
            self._peers.learn(said)
            for fd, inode in _sockets().items():
                if (
                    before.get(fd) != inode
                    and inode not in self._store.values()
                    and _ends(fd) & self._peers.ports
                ):
                    self._sockets[fd] = inode
                    self._peers.note(fd, inode, _far_end(fd))

    def covers(self, group: dist.ProcessGroup) -> bool:
        """Return whether `install` has noted the group already."""
        return bool(self._originals) and group in distributed_c10d._world.pg_map

    def note_store(self, sockets: dict[int, int]) -> None:
        """Note the sockets of the store's client.

        They are shut only while a group is being built.
        """
        with self._lock:
            self._store = dict(sockets)
            self.store_lost = False

    def forget(self) -> None:
        """Forget the groups: they are gone, and no peer is in a collective of theirs."""
        with self._lock:
            self._sockets.clear()
            for held in self._held.values():
                held.close()
            self._held.clear()
            self._peers.forget()

    def cut_off(self) -> dict[int, int]:
        """Return the ranks that do not acknowledge what was sent to them, each with its bytes.

        Any thread may call it.
        """
        with self._lock:
            known = {one: self._peers.rank_at(*one) for one in self._sockets.items()}
        found: dict[int, int] = {}
        for one, rank in known.items():
            if rank >= 0 and rank != self.keys.rank and (count := _unacknowledged_bytes(*one)):
                found[rank] = found.get(rank, 0) + count
        return dict(sorted(found.items()))

    def wake(self) -> int:
        """Shut down all noted sockets, and return how many there were.

        It takes 1-2 ms, and may be called from any thread, any number of times.
        """
        self._peers.cut_at_wake |= self.cut_off()
        with self._lock:
            targets: dict[int, int] = {}
            in_store = not self._out_of_store.is_set()
            connected = {one for one in self._sockets.items() if self._hold(*one)}
            if self._before is not None:
                fresh = {
                    fd: inode for fd, inode in _sockets().items() if self._before.get(fd) != inode
                }
                own = {port for fd in fresh if _listens(fd) and (port := _local_end(fd)[1])}
                targets |= {
                    fd: inode
                    for fd, inode in fresh.items()
                    if _ends(fd) & (own | self._peers.ports)
                }
                targets |= self._store
                self.store_lost = self.store_lost or bool(self._store)
            if in_store:
                self.store_lost = self.store_lost or bool(self._store)
                self._cut_store_quietly()
        if torch.cuda.is_available():
            nccl_groups.abort(list(distributed_c10d._world.pg_map))
        groups = connected.difference(targets.items())
        return sum(_shut(*one, socket.SHUT_RD) for one in groups) + sum(
            _shut(*one, socket.SHUT_RDWR) for one in targets.items()
        )

    def _cut_store_quietly(self) -> None:
        """Shut the store's connection, and drop what torch's client writes about that."""
        with contextlib.ExitStack() as quiet:
            with contextlib.suppress(OSError):  # if no descriptor is left, people see the text
                quiet.enter_context(without_complaint(*_CUT_STORE))
            for one in self._store.items():
                _shut(*one, socket.SHUT_RDWR)
            self._out_of_store.wait(STORE_CUT_S)

    def _hold(self, fd: int, inode: int) -> bool:
        """Keep the connection up when gloo closes it.

        Return False if `fd` is not that socket any more.
        """
        if (fd, inode) in self._held:
            return True
        try:
            twin = socket.socket(fileno=os.dup(fd))
        except OSError:
            return False
        if os.fstat(twin.fileno()).st_ino != inode:
            twin.close()
            return False
        self._held[fd, inode] = twin
        return True

    def _patch(self, owner: Any, name: str, value: Any) -> None:
        self._originals[owner, name] = getattr(owner, name)
        setattr(owner, name, value)

    def _covered_helper(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def helper(*args: Any, **kwargs: Any) -> Any:
            with self.recording():
                made = original(*args, **kwargs)
                if isinstance(made[0], dist.ProcessGroup):
                    self.note(made[0])
            return made

        return helper

    def _covered_split(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def split_group(*args: Any, **kwargs: Any) -> Any:
            with self.recording():
                made = original(*args, **kwargs)
                if isinstance(made, dist.ProcessGroup):
                    self.note(made)
            return made

        return split_group


def connect_eagerly(group: dist.ProcessGroup, words: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Run one all-to-all over `group`, so that no pair connects later.

    Each member gives the same number of `words`. Return those of all members, by rank. A group of
    GPUs alone sends no words. Then the result is this member's words.
    """
    devices = {device.type for device in group._device_types}
    if group.size() < 2 or not devices:
        return [words]
    if "cpu" in devices:
        said = torch.tensor(words * group.size(), dtype=torch.int64, device="cpu")
        heard = torch.empty_like(said)
        group.alltoall_base(heard, said, [], []).wait()
        return [tuple(one) for one in heard.view(group.size(), -1).tolist()]
    # Without a CPU backend there are no sockets to note, but the communicator must exist before the
    # first step.
    group.allreduce([torch.zeros(1, device=next(iter(devices)))]).wait()
    return [words]


def open_sockets() -> dict[int, int]:
    """Return descriptor and inode of every socket of this process."""
    return _sockets()


def _sockets() -> dict[int, int]:
    out: dict[int, int] = {}
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            status = os.fstat(int(name))
            if stat.S_ISSOCK(status.st_mode):
                out[int(name)] = status.st_ino
    return out


@contextlib.contextmanager
def _borrowed(fd: int) -> Iterator[socket.socket | None]:
    """Give a second descriptor of the same socket while the block runs, or None if it is gone.

    It is closed afterwards. The first one stays open.
    """
    try:
        twin = socket.socket(fileno=os.dup(fd))
    except OSError:
        yield None
        return
    try:
        yield twin
    finally:
        twin.close()


def _internet(twin: socket.socket | None) -> bool:
    return (
        twin is not None
        and twin.family in (socket.AF_INET, socket.AF_INET6)
        and twin.type == socket.SOCK_STREAM
    )


def _listens(fd: int) -> bool:
    with _borrowed(fd) as twin:
        return (
            twin is not None
            and _internet(twin)
            and bool(twin.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))
        )


def _local_end(fd: int) -> tuple[str, int]:
    """Return the address and the port of this end of a TCP socket; "" and 0 for any other."""
    with _borrowed(fd) as twin:
        if twin is None or not _internet(twin):
            return "", 0
        host, port = twin.getsockname()[:2]
        return str(host), int(port)


def _far_end(fd: int) -> tuple[str, int]:
    """Return the address and the port of the other end of a connection; "" and 0: it has none."""
    with _borrowed(fd) as twin, contextlib.suppress(OSError):
        if twin is not None and _internet(twin):
            host, port = twin.getpeername()[:2]
            return str(host), int(port)
    return "", 0


def _unacknowledged_bytes(fd: int, inode: int) -> int:
    """Return how many bytes the other end does not acknowledge; 0: `fd` is another socket now."""
    with _borrowed(fd) as twin:
        if twin is None or os.fstat(twin.fileno()).st_ino != inode:
            return 0
        return unacknowledged_bytes(twin)


def _ends(fd: int) -> set[int]:
    """Return the two ports of a connected TCP socket, or nothing for any other."""
    with _borrowed(fd) as twin:
        if twin is None or not _internet(twin):
            return set()
        try:
            return {int(twin.getsockname()[1]), int(twin.getpeername()[1])}
        except OSError:
            return set()


def _shut(fd: int, inode: int, how: int) -> bool:
    """Shut the connection down for all holders of the socket, if `fd` still is that socket.

    `how` is one of socket.SHUT_*.
    """
    with _borrowed(fd) as twin:
        if twin is None or os.fstat(twin.fileno()).st_ino != inode:
            return False
        with contextlib.suppress(OSError):
            twin.shutdown(how)
        return True
