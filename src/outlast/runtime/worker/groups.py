"""The default process group of one generation: built, counted, destroyed, and built again in the
same process.

Errors   Whatever goes wrong while building surfaces as a RuntimeError (torch's own are);
         `Cancelled` is one.
DNS      torch's TCPStore asks for the peer's name at every connection, on both sides, and waits 5 s
         for an answer that is lost (measured: 1 in 100 connections). Nobody reads that name. So the
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
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from types import TracebackType
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch.distributed import HashStore, PrefixStore, Store, TCPStore, distributed_c10d  # type: ignore[attr-defined]  # re-exported from C

from outlast.model.limits import GROUP_CONNECT_S, GROUP_LET_GO_S, GROUP_POLL_S
from outlast.runtime.linux import flush_c_streams
from outlast.runtime.listener import listen_at
from outlast.runtime.worker.wake import SocketWatch, open_sockets

_Hook = Callable[[type[BaseException], BaseException, TracebackType | None], Any]
# which one counts: found once, asked twice a step
_backends: WeakKeyDictionary[dist.ProcessGroup, Any] = WeakKeyDictionary()
_parting: list[threading.Thread] = []  # letting groups go that were left
_kept: list[dist.ProcessGroup] = []  # left while no thread could be started for them
_at_exit = threading.Event()


class Cancelled(RuntimeError):
    """The generation ended before its group was there.

    A signal to the caller, never shown to a user.
    """


@dataclass(slots=True)
class Group:
    """The default group, as built.

    `excepthook` is what stood there before torch put its own in front.
    """

    generation: int
    rank: int
    world_size: int
    backend: str
    excepthook: _Hook
    watch: SocketWatch | None


def serve(host: str = "127.0.0.1", port: int = 0) -> TCPStore:
    """Host the store in this process, at `host` and nowhere else; port 0 takes any free one
    (`.port`).

    A store obeys whoever reaches it: they can list, delete and write its keys. Left to itself torch
    listens on every interface, whatever `host` says, so it is handed a socket that is bound
    already.

    This turns DNS off in the whole process: call it where nothing else needs DNS.
    Raises OSError if the address cannot be had.
    """
    os.environ["RES_OPTIONS"] = "attempts:0"
    listener = listen_at(host, port)
    port = listener.getsockname()[1]
    store = functools.partial(
        TCPStore, host, port, is_master=True, wait_for_workers=False,
        master_listen_fd=listener.detach(),
    )  # fmt: skip
    try:
        with _without_complaint(b"does not support initialization with an listen fd"):
            return store()
    except NotImplementedError:  # torch 2.6: only its older server takes a socket
        return store(use_libuv=False)


def connect(host: str, port: int, timeout_s: float, watch: SocketWatch | None = None) -> TCPStore:
    """A client of the store. `host` is an address, or a name in /etc/hosts (see DNS above)."""
    before = open_sockets()
    with _no_dns(), _without_complaint(b"hostname of the client socket cannot be retrieved"):
        store = TCPStore(
            host,
            port,
            is_master=False,
            wait_for_workers=False,
            timeout=timedelta(seconds=timeout_s),
        )
    if watch is not None:
        watch.note_store(
            {fd: inode for fd, inode in open_sockets().items() if before.get(fd) != inode}
        )
    return store


@contextlib.contextmanager
def _no_dns() -> Iterator[None]:
    """Names are looked up in files only, on this thread.

    Nothing changes where libc is not glibc.
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
    """The variable has this value meanwhile."""
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        os.environ.pop(name)
        if before is not None:
            os.environ[name] = before


@contextlib.contextmanager
def _without_complaint(words: bytes) -> Iterator[None]:
    """Lines with `words` that C++ writes to stderr meanwhile are dropped; all others are handed on
    at the end.
    """
    sys.stderr.flush()
    real, held = os.dup(2), os.memfd_create("stderr", os.MFD_CLOEXEC)
    os.dup2(held, 2)
    try:
        yield
    finally:
        sys.stderr.flush()
        os.dup2(real, 2)
        said = os.pread(held, os.fstat(held).st_size, 0)
        os.close(real)
        os.close(held)
        if rest := b"".join(line for line in said.splitlines(keepends=True) if words not in line):
            os.write(2, rest)


def build(
    *, store: Store, generation: int, rank: int, world_size: int, backend: str, timeout_s: float,
    device: torch.device | None = None, watch: SocketWatch | None = None,
    cancelled: Callable[[], bool] = lambda: False,
) -> Group:  # fmt: skip
    """Make the default group of `generation`, every pair connected.

    Collective over `world_size` ranks.

    `device` is this rank's. If it is a GPU, NCCL connects on it now, not at the first collective.

    Waits for the other ranks up to `timeout_s`, leaving as soon as `cancelled()`; connecting itself
    is bounded by GROUP_CONNECT_S; collectives of the group time out after `timeout_s`.
    """
    assert not dist.is_initialized(), "destroy the old group first"
    prefix = PrefixStore(f"outlast/{generation}", store)
    _assemble(prefix, generation, world_size, time.monotonic() + timeout_s, cancelled)
    group = Group(generation, rank, world_size, backend, sys.excepthook, watch)
    try:
        with watch.recording() if watch is not None else contextlib.nullcontext():
            if cancelled():
                raise Cancelled(f"generation {generation} is over")
            _initialise(prefix, group, min(timeout_s, GROUP_CONNECT_S), device)
    except BaseException:
        destroy(group)
        raise
    distributed_c10d._set_pg_timeout(timedelta(seconds=timeout_s), dist.group.WORLD)
    return group


def solo(*, backend: str = "gloo") -> Group:
    """A default group of this process alone, for spares: nothing done in it communicates."""
    assert not dist.is_initialized(), "destroy the old group first"
    group = Group(-1, 0, 1, backend, sys.excepthook, None)
    # Else gloo looks this machine's name up, and listens on the interface that it finds.
    with _environment("GLOO_SOCKET_IFNAME", "lo"):
        _initialise(HashStore(), group, GROUP_CONNECT_S, None)
    return group


def destroy(group: Group) -> None:
    """Drop the default group and all groups made from it.

    Never blocks, broken or not; safe to call twice.

    The sockets go down first: the threads of a broken gloo group end only when their operations
    have failed. The objects are let go by a thread, GROUP_LET_GO_S later: each gloo group joins its
    own threads for up to 10 ms, which nobody who waits for training should pay. Whoever refers to
    one longer (a DDP object, the script) keeps its descriptors open until then.
    """
    if group.watch is not None:
        group.watch.wake()
        group.watch.forget()
    if dist.is_initialized():
        parting = list(distributed_c10d._world.pg_map)
        try:
            dist.destroy_process_group()
        # A broken backend may raise anything, and the tables must be emptied all the same.
        except Exception:  # boundary: a broken backend
            _clear_tables()
        _part_with(parting)
    else:
        # building it failed: torch has counted it all the same, and would name the next one
        # otherwise than those who did not come so far
        _clear_tables()
    sys.excepthook = group.excepthook  # torch stacks one more at each init


def exit_without_stuck(exit_code: int) -> None:
    """To be called when the script is over.

    Does not return if a group that was left cannot be let go: the process ends here, with that
    code.

    A send to a peer that was killed may be one that gloo forgets (see wake). Then the group's
    thread waits for it, the group's destructor for the thread, and the interpreter's end for the
    destructor: half an hour. What else an interpreter does at its end is done, but for destructors:
    executors end, threads are joined, exit functions run, files are flushed. Not covered: a script
    that holds the old group itself.
    """
    _at_exit.set()
    until_s = time.monotonic() + GROUP_LET_GO_S
    for thread in _parting:
        thread.join(max(0.0, until_s - time.monotonic()))
    stuck = [thread for thread in _parting if thread.is_alive()]
    if not stuck:
        return
    # ends the threads of executors
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
    for stream in [one for one in gc.get_objects() if isinstance(one, io.IOBase)]:
        with contextlib.suppress(
            Exception
        ):  # boundary: closed, read-only, or anything that the script has made
            stream.flush()
    flush_c_streams()
    os._exit(exit_code)


def collectives() -> int:
    """Collectives that the default group was given so far; -1 where the backend does not count.

    From any thread.
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


def _initialise(store: Store, group: Group, timeout_s: float, device: torch.device | None) -> None:
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


def _assemble(
    store: Store, generation: int, world_size: int, deadline_s: float, cancelled: Callable[[], bool]
) -> None:
    """Wait in Python until all ranks are here: torch's own wait inside the backend cannot be left
    without cutting the store.
    """
    here = store.add("here", 1)
    while here < world_size:
        if cancelled():
            raise Cancelled(f"generation {generation} is over")
        if time.monotonic() > deadline_s:
            raise RuntimeError(
                f"generation {generation}: {here} of {world_size} ranks came to the group in time"
            )
        time.sleep(GROUP_POLL_S)
        here = store.add("here", 0)


def _part_with(parting: list[dist.ProcessGroup]) -> None:
    """Let groups go in a thread. Where the kernel allows no more threads, the next one does it."""
    parting += _kept
    _kept.clear()
    thread = threading.Thread(target=_let_go, args=(parting,), name="outlast-let-go")
    try:
        thread.start()
    except RuntimeError:  # boundary: "can't start new thread"
        _kept.extend(parting)
        return
    _parting[:] = [other for other in _parting if other.is_alive()] + [thread]


def _let_go(parting: list[dist.ProcessGroup]) -> None:
    """Not a daemon: Python ends those inside the group's C++ destructor, which aborts the process.

    At exit it does not wait.
    """
    _at_exit.wait(GROUP_LET_GO_S)
    parting.clear()


def _clear_tables() -> None:
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
