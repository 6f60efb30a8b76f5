"""The default process group of one generation: built, counted, destroyed, and built again.

Errors   Any failure while a group is built is a RuntimeError (torch's own errors are);
         `Cancelled` is one.
DNS      torch's TCPStore asks for the peer's name at every connection, on both sides, and waits 5 s
         for an answer that is lost (measured: 1 in 100 connections). The name is never used. So the
         process that hosts the store has no resolver, a client has none while it connects, and a
         process connects once and keeps its client.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import gc
import io
import math
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from types import TracebackType
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch.distributed import (  # type: ignore[attr-defined]  # re-exported from C
    HashStore,
    PrefixStore,
    Store,
    TCPStore,
    distributed_c10d,
)

from outlast.model.limits import (
    GROUP_CONNECT_S,
    GROUP_LET_GO_LOOKS_COUNT,
    GROUP_LET_GO_S,
    STORE_LOOK_S,
    STORE_TRY_S,
)
from outlast.model.messages import STORE
from outlast.runtime.linux import flush_c_streams
from outlast.runtime.network.listener import listen_at, listen_in
from outlast.runtime.worker.communication import nccl_groups, peer_probe
from outlast.runtime.worker.communication.wake import SocketWatch, open_sockets
from outlast.runtime.worker.process.complaints import without_complaint
from outlast.runtime.worker.script import run_loops

_Hook = Callable[[type[BaseException], BaseException, TracebackType | None], Any]
# the function that counts; it is looked up once, and called twice a step
_backends: WeakKeyDictionary[dist.ProcessGroup, Any] = WeakKeyDictionary()
_letting_go: list[threading.Thread] = []  # the threads that drop the last references to groups
_left: list[dist.ProcessGroup] = []  # groups that were left, and still have to be dropped
_left_lock = threading.Lock()
_at_exit = threading.Event()
_has_left_peers = threading.Event()  # set once a group with other ranks in it was left


class Cancelled(RuntimeError):
    """Raised if the generation ends before its group is built.

    It is a signal to the caller, and is never shown to a user.
    """


class PeersUnreached(RuntimeError):
    """Raised if something on another node does not answer, so that no group can be built.

    ranks   one rank of each such node, or STORE; as in `Broke.unreached`
    """

    def __init__(self, ranks: tuple[int, ...], why: str) -> None:
        super().__init__(why)
        self.ranks = ranks


@dataclass(slots=True)
class BuiltGroup:
    """The default group that was built.

    `excepthook` is the hook that was set before torch put its own in front.
    """

    generation: int
    rank: int
    world_size: int
    backend: str
    excepthook: _Hook
    watch: SocketWatch | None


@dataclass(slots=True)
class MadeGroups:
    """The process groups that outlast has made, and the store that they were built with.

    group           the run's group; None: this process has not joined it yet
    solo            a group of one rank, which stands in until then
    store           the client of the run's store; None: it has not connected yet
    store_address   host and port of `store`
    """

    group: BuiltGroup | None = None
    solo: BuiltGroup | None = None
    store: TCPStore | None = None
    store_address: tuple[str, int] = ("", 0)


def serve(host: str = "127.0.0.1", port: int = 0, ports: tuple[int, int] | None = None) -> TCPStore:
    """Host the store in this process, at `host` and nowhere else.

    Port 0 takes any free port (`.port`), from the first to the last of `ports` if they are given.
    Anyone who reaches a store can list, delete and write its keys. By default torch listens on
    every interface, whatever `host` says. So it gets a socket that is bound already.

    This turns DNS off in the whole process, so call it where nothing else needs DNS. Raises OSError
    if the address cannot be used.
    """
    os.environ["RES_OPTIONS"] = "attempts:0"
    listener = listen_at(host, port) if port else listen_in(host, ports)
    port = listener.getsockname()[1]
    store = functools.partial(
        TCPStore,
        host,
        port,
        is_master=True,
        wait_for_workers=False,
        master_listen_fd=listener.detach(),
    )
    try:
        with without_complaint(b"does not support initialization with an listen fd"):
            return store()
    except NotImplementedError:  # in torch 2.6, only its older server accepts a socket
        return store(use_libuv=False)


def connect(
    host: str,
    port: int,
    timeout_s: float,
    watch: SocketWatch | None = None,
    *,
    refused_s: float = math.inf,
    cancelled: Callable[[], bool] = lambda: False,
) -> TCPStore:
    """Return a client of the store. `host` is an address, or a name in /etc/hosts (see DNS above).

    torch's own client tries again and again for up to twice its time-out, and cannot be stopped. So
    it is created only once the port accepts connections.

    Raises Cancelled as soon as `cancelled()` returns True. Raises DistNetworkError if the port has
    refused connections for `refused_s`, or takes none within `timeout_s`. Raises PeersUnreached if
    the address does not answer at all, not even by a refusal.
    """
    before, began_s = open_sockets(), time.monotonic()
    store: TCPStore | None = None
    while store is None:
        lasted_s = time.monotonic() - began_s
        try:
            with _no_dns():
                socket.create_connection((host, port), timeout=STORE_TRY_S).close()
            store = _client(host, port, min(timeout_s, STORE_TRY_S))
        except (OSError, dist.DistError) as error:
            if cancelled():
                raise Cancelled("another generation has begun") from error
            refused = isinstance(error, ConnectionRefusedError)
            if lasted_s > (min(refused_s, timeout_s) if refused else timeout_s):
                why = f"the store at {host}:{port} takes no connection: {error}"
                if peer_probe.is_silence(error):
                    raise PeersUnreached((STORE,), why) from error
                raise dist.DistNetworkError(why) from error
            time.sleep(STORE_LOOK_S)
    store.set_timeout(timedelta(seconds=timeout_s))
    if watch is not None:
        watch.note_store(
            {fd: inode for fd, inode in open_sockets().items() if before.get(fd) != inode}
        )
    return store


def _client(host: str, port: int, timeout_s: float) -> TCPStore:
    with _no_dns(), without_complaint(b"hostname of the client socket cannot be retrieved"):
        return TCPStore(
            host,
            port,
            is_master=False,
            wait_for_workers=False,
            timeout=timedelta(seconds=timeout_s),
        )


@contextlib.contextmanager
def _no_dns() -> Iterator[None]:
    """Resolve names from files only, on this thread, while the block runs.

    Nothing changes if libc is not glibc.
    """
    read_options = getattr(ctypes.CDLL(None), "__res_init", lambda: None)
    try:
        with _environment("RES_OPTIONS", "attempts:0"):
            read_options()
            yield
    finally:
        read_options()


@contextlib.contextmanager
def _environment(name: str, value: str) -> Iterator[None]:
    """Give the variable this value while the block runs."""
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        os.environ.pop(name)
        if before is not None:
            os.environ[name] = before


def build(
    *,
    store: Store,
    generation: int,
    rank: int,
    world_size: int,
    backend: str,
    timeout_s: float,
    device: torch.device | None = None,
    watch: SocketWatch | None = None,
    cancelled: Callable[[], bool] = lambda: False,
    serves: str = "",
) -> BuiltGroup:
    """Make the default group of `generation`, with every pair connected.

    It is collective over `world_size` ranks. `device` is this rank's. If that is a GPU, NCCL
    connects on it now, not at the first collective.

    It waits for the other ranks up to `timeout_s`. If the generation ends meanwhile, `cancelled()`
    has to return True, and then `watch.wake()` has to be called: that raises Cancelled here.
    Connecting itself is bounded by GROUP_CONNECT_S. Collectives of the group time out after
    `timeout_s`.

    If nodes do not answer, PeersUnreached is raised before anything is connected. `serves` is the
    address at which other nodes can ask whether this rank's node answers, as HOST:PORT.
    """
    assert not dist.is_initialized(), "destroy the old group first"
    prefix = PrefixStore(f"outlast/{generation}", store)
    peer_probe.announce(prefix, rank, world_size, serves)
    assemble(prefix, generation, world_size, timeout_s, watch, cancelled)
    silent = peer_probe.silent_ranks(prefix, rank, world_size, serves, cancelled, watch)
    if silent:
        raise PeersUnreached(silent, f"the nodes of ranks {list(silent)} do not answer")
    group = BuiltGroup(generation, rank, world_size, backend, sys.excepthook, watch)
    try:
        with watch.recording() if watch is not None else contextlib.nullcontext():
            if cancelled():
                raise Cancelled(f"generation {generation} is over")
            if "nccl" in backend:
                nccl_groups.leave_errors_to_outlast(store)
            _initialise(prefix, group, min(timeout_s, GROUP_CONNECT_S), device)
    except BaseException:
        destroy(group)
        raise
    distributed_c10d._set_pg_timeout(timedelta(seconds=timeout_s), dist.group.WORLD)
    return group


def solo(*, backend: str = "gloo") -> BuiltGroup:
    """Return a default group of this process alone, for spares: it never communicates."""
    assert not dist.is_initialized(), "destroy the old group first"
    group = BuiltGroup(-1, 0, 1, backend, sys.excepthook, None)
    # Without it gloo looks up this machine's name, and listens on the interface that it finds.
    with _environment("GLOO_SOCKET_IFNAME", "lo"):
        _initialise(HashStore(), group, GROUP_CONNECT_S, None)
    return group


def destroy(group: BuiltGroup) -> None:
    """Drop the default group and all groups that were made from it.

    It never blocks, whether the groups are broken or not, and it may be called twice.

    The sockets are shut first, because the threads of a broken gloo group end only when their
    operations have failed. A thread drops the objects GROUP_LET_GO_S later: each gloo group joins
    its own threads for up to 10 ms, and training should not wait for that. If something else still
    refers to a group, its descriptors stay open until then (see let_go).
    """
    if group.world_size > 1:
        _has_left_peers.set()
    if group.watch is not None:
        group.watch.wake()
        group.watch.forget()
    if dist.is_initialized():
        left = list(distributed_c10d._world.pg_map)
        try:
            dist.destroy_process_group()
        # A broken backend may raise anything, and the tables must be emptied anyway.
        except Exception:  # boundary: a broken backend
            _clear_tables()
        let_go(left)
    else:
        # building failed, but torch has counted the group, and would name the next group
        # differently from the ranks that did not come this far
        _clear_tables()
    sys.excepthook = group.excepthook  # torch adds one more at each init


def exit_without_stuck(exit_code: int) -> None:
    """End the process here, with that code, if it has left a group of several ranks.

    Call it when the script is over. Otherwise it returns.

    Gloo may forget a send to a peer that was killed (see wake). Then the group's thread waits for
    that send, the group's destructor for the thread, and the interpreter's end for the destructor,
    for half an hour. The script, or a DDP module that is not used any more, may hold such a group
    until then. Everything else that an interpreter does at its end is done, except destructors:
    executors end, threads are joined, exit functions run, and files are flushed.
    """
    _at_exit.set()
    run_loops.wait_until_quiet()
    if not _has_left_peers.is_set():
        return
    if _left:
        let_go([])
    until_s = time.monotonic() + GROUP_LET_GO_S
    for thread in _letting_go:
        thread.join(max(0.0, until_s - time.monotonic()))
    stuck = [thread for thread in _letting_go if thread.is_alive()]
    # this ends the threads of executors
    for call in reversed(getattr(threading, "_threading_atexits", [])):
        call()
    for thread in threading.enumerate():
        if not thread.daemon and thread not in (
            *stuck,
            threading.main_thread(),
            threading.current_thread(),
        ):
            thread.join()
    atexit._run_exitfuncs()
    # This checks the type alone. isinstance would ask the objects themselves for their class, and a
    # proxy whose object is gone, or a lazy module of the script's, raises or begins to work then.
    for stream in [one for one in gc.get_objects() if issubclass(type(one), io.IOBase)]:
        # The stream may be closed, read-only, or anything that the script has put there.
        with contextlib.suppress(Exception):  # boundary: the script's streams
            stream.flush()
    flush_c_streams()
    os._exit(exit_code)


def collectives() -> int:
    """Return how many collectives the default group was given; -1 if the backend does not count.

    It may be called from any thread.
    """
    world = dist.group.WORLD
    if world is None:
        return -1
    try:
        backend: Any = _backends.get(world)
        if backend is None:
            device = max(world._device_types, key=lambda device: device.type != "cpu")
            backend = _backends[world] = world._get_backend(device)
        return int(backend._get_sequence_number_for_group())
    except (AttributeError, RuntimeError, ValueError):
        return -1


def _initialise(
    store: Store, group: BuiltGroup, timeout_s: float, device: torch.device | None
) -> None:
    """Make torch's default group, and note its sockets."""
    dist.init_process_group(
        group.backend,
        store=store,
        rank=group.rank,
        world_size=group.world_size,
        timeout=timedelta(seconds=timeout_s),
        device_id=device if "nccl" in group.backend else None,
    )
    world = dist.group.WORLD
    assert world is not None
    if group.watch is not None and not group.watch.covers(world):
        group.watch.note(world)


def assemble(
    store: Store,
    generation: int,
    world_size: int,
    timeout_s: float,
    watch: SocketWatch | None,
    cancelled: Callable[[], bool],
) -> None:
    """Wait until all ranks are here. The last one to come notifies the others.

    A rank asks the store twice, however long it waits. Raises Cancelled as `build` does, and
    RuntimeError if ranks are missing after `timeout_s`, or if the store ends.
    """
    with contextlib.nullcontext() if watch is None else watch.waiting_in_store():
        if cancelled():
            raise Cancelled(f"generation {generation} is over")
        try:
            if store.add("here", 1) >= world_size:
                store.set("all here", "yes")
            else:
                store.wait(["all here"], timedelta(seconds=timeout_s))
        except RuntimeError as error:
            if cancelled():  # in this case `watch` has shut the store's connection
                raise Cancelled(f"generation {generation} is over") from error
            if not isinstance(error, dist.DistStoreError):
                raise
            here = store.add("here", 0)
            raise RuntimeError(
                f"generation {generation}: {here} of {world_size} ranks came to the group in time"
            ) from error


def let_go(left: Iterable[dist.ProcessGroup]) -> None:
    """Drop groups that were left, in a thread that holds the last reference to them.

    The destructor of a gloo group waits for the group's threads. If one of them waits for a peer
    that was killed, that takes as long as a collective may take. So it must not happen on the main
    thread. Call this before a group that was left loses another reference.

    A group that something else refers to is checked again for a minute, and at the next call. So
    are all groups if the kernel allows no more threads.
    """
    with _left_lock:
        _left.extend(group for group in left if all(group is not other for other in _left))
    thread = threading.Thread(target=_let_go, name="outlast-let-go")
    with contextlib.suppress(RuntimeError):  # boundary: "can't start new thread"
        thread.start()
        _letting_go[:] = [other for other in _letting_go if other.is_alive()] + [thread]


def _let_go() -> None:
    """Drop groups as soon as nothing else refers to them. At exit, drop all of them at once.

    The thread is not a daemon: Python ends daemons inside the group's C++ destructor, and that
    aborts the process.
    """
    for number in range(GROUP_LET_GO_LOOKS_COUNT):
        at_exit = _at_exit.wait(GROUP_LET_GO_S * 2.0**number)
        if _let_go_of_unused(at_exit) or _letting_go[-1] is not threading.current_thread():
            return


def _let_go_of_unused(at_exit: bool) -> bool:
    """Drop the groups that nothing else refers to; at exit, all groups.

    Return whether none of them remains.

    This is a separate function so that a thread that waits for its next check has no variable that
    refers to a group, and keeps it.
    """
    with _left_lock:
        held = [] if at_exit else _held_elsewhere(_left)
        going = [group for group in _left if all(group is not other for other in held)]
        _left[:] = held
    going.clear()
    return not held


_Thing = TypeVar("_Thing")


def _held_elsewhere(things: list[_Thing]) -> list[_Thing]:
    """Return those of `things` to which something else than this list refers."""
    alone = min(_reference_counts([object()]))
    counts = _reference_counts(things)
    return [thing for thing, count in zip(things, counts, strict=True) if count > alone]


def _reference_counts(things: list[Any]) -> list[int]:
    """Count the references to each, including those of this call."""
    return [sys.getrefcount(thing) for thing in things]


def _clear_tables() -> None:
    """Forget all groups in torch's tables, as destroy_process_group does at its end."""
    world = distributed_c10d._world
    distributed_c10d._update_default_pg(None)
    for table in (
        world.pg_map,
        world.pg_names,
        world.pg_group_ranks,
        world.pg_backend_config,
        world.pg_to_tag,
        world.tags_to_pg,
        world.pg_coalesce_state,
    ):
        table.clear()
    world.group_count = 0
    distributed_c10d._unregister_all_process_groups()  # type: ignore[attr-defined]
