"""Waking: every rank that is blocked in a collective raises, and only the sockets of its groups are
touched.
"""

from __future__ import annotations

import os
import random
import socket
import threading
import time
from typing import Any

import pytest

from tests.worker._ranks import Rank, run_ranks

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402

from outlast.runtime.worker.communication import ddp, groups  # noqa: E402
from outlast.runtime.worker.communication.wake import SocketWatch  # noqa: E402

BOUND_S = 1.0  # measured: 1-2 ms; the machine may be busy


def setup(rank: Rank) -> tuple[SocketWatch, groups.BuiltGroup, Any]:
    watch = SocketWatch()
    watch.install()
    store = groups.connect("127.0.0.1", rank.port, 20.0, watch)
    group = groups.build(
        store=store,
        generation=0,
        rank=rank.rank,
        world_size=rank.world_size,
        backend="gloo",
        timeout_s=20.0,
        watch=watch,
    )
    return watch, group, store


def blocked_then_woken(rank: Rank, watch: SocketWatch, store: Any, block: Any) -> float:
    """Block all ranks but the last, which never enters `block`.

    The others wake themselves once all of them have begun. Return the seconds from wake to raise.
    """
    if rank.rank == rank.world_size - 1:
        store.wait(["out"])
        return 0.0
    at_s: list[float] = []

    def waker() -> None:
        while store_of_thread.add("in", 0) < rank.world_size - 1:
            time.sleep(0.001)
        time.sleep(0.05)  # so that they are in the collective and not before it
        at_s.append(time.perf_counter())
        watch.wake()

    store_of_thread = groups.connect("127.0.0.1", rank.port, 20.0)
    thread = threading.Thread(target=waker)
    store.add("in", 1)
    thread.start()
    with pytest.raises(RuntimeError):
        [block() for _ in range(1_000)]
    raised_s = time.perf_counter()
    thread.join()
    if store.add("woken", 1) == rank.world_size - 1:
        store.set("out", "yes")
    return max(0.0, raised_s - at_s[0])


def _in_default(rank: Rank) -> float:
    watch, group, store = setup(rank)
    took_s = blocked_then_woken(rank, watch, store, lambda: dist.all_reduce(torch.ones(8)))
    groups.destroy(group)
    return took_s


def test_ranks_whose_peer_never_enters_the_collective_are_woken(capsys: Any) -> None:
    took_s = run_ranks(4, _in_default)[:3]
    assert max(took_s) < BOUND_S
    with capsys.disabled():
        print(f" [wake: {', '.join(f'{s * 1e3:.2f}' for s in took_s)} ms]", end="")


def _in_the_midst(rank: Rank) -> float:
    """Return the worst time from wake to raise over all rounds, each in a group of its own."""
    watch, worst_s, chance = SocketWatch(), 0.0, random.Random(5)
    watch.install()
    store = groups.connect("127.0.0.1", rank.port, 20.0, watch)
    for generation in range(40):
        group = groups.build(
            store=store,
            generation=generation,
            rank=rank.rank,
            world_size=rank.world_size,
            backend="gloo",
            timeout_s=3.0,
            watch=watch,
        )
        at_s: list[float] = []
        timer = threading.Timer(
            chance.uniform(0.0, 0.01),
            lambda at_s=at_s: (at_s.append(time.perf_counter()), watch.wake()),
        )
        timer.start()
        with pytest.raises(RuntimeError):
            [dist.all_reduce(torch.ones(34, dtype=torch.float64)) for _ in range(1_000_000)]
        raised_s = time.perf_counter()
        timer.join()
        worst_s = max(worst_s, raised_s - at_s[0])
        store.add(f"left/{generation}", 1)
        # as in a run, no rank drops its group before all stand still
        while store.add(f"left/{generation}", 0) < rank.world_size:
            time.sleep(0.001)
        groups.destroy(group)
    return worst_s


def test_ranks_in_the_middle_of_a_collective_are_woken() -> None:
    """gloo forgets a send that fails, and a rank that waits for it waits until the time-out.
    Therefore waking lets sends go through.

    Method: all ranks are woken at about the same moment of a stream of all-reduces, forty times.
    Some sends are always in transit.
    """
    assert max(run_ranks(4, _in_the_midst)) < BOUND_S


def _in_subgroup(rank: Rank) -> float:
    watch, group, store = setup(rank)
    sub = dist.new_group([0, 1, 2, 3])
    took_s = blocked_then_woken(
        rank, watch, store, lambda: dist.all_reduce(torch.ones(8), group=sub)
    )
    groups.destroy(group)
    return took_s


def test_ranks_blocked_in_a_group_of_the_script_are_woken() -> None:
    assert max(run_ranks(4, _in_subgroup)) < BOUND_S


def _in_mesh(rank: Rank) -> float:
    from torch.distributed.device_mesh import init_device_mesh

    watch, group, store = setup(rank)
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))

    # ranks 1 and 2 share a dimension with rank 3; rank 0 learns of it only through them
    def block() -> None:
        dist.all_reduce(torch.ones(8), group=mesh.get_group("shard"))
        dist.all_reduce(torch.ones(8), group=mesh.get_group("replicate"))

    took_s = blocked_then_woken(rank, watch, store, block)
    groups.destroy(group)
    return took_s


def test_ranks_blocked_in_a_two_by_two_mesh_are_woken() -> None:
    assert max(run_ranks(4, _in_mesh)) < BOUND_S


def _in_backward(rank: Rank) -> float:
    watch, group, store = setup(rank)
    model = ddp.wrap(
        torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(6)]), bucket_cap_mb=0.02
    )
    ddp.freeze_buckets(model)

    def block() -> None:
        model(torch.ones(4, 64)).sum().backward()

    took_s = blocked_then_woken(rank, watch, store, block)
    groups.destroy(group)
    return took_s


def test_ranks_blocked_in_the_backward_of_ddp_are_woken() -> None:
    assert max(run_ranks(4, _in_backward)) < BOUND_S


def _innocent(rank: Rank) -> bool:
    """Make one connection while the group is built, one before, and one that takes over the
    descriptor number of a group's socket. Return whether all of them still work.
    """
    server = socket.create_server(("127.0.0.1", 0))
    old = socket.create_connection(server.getsockname())
    watch = SocketWatch()
    store = groups.connect("127.0.0.1", rank.port, 20.0, watch)
    made: list[socket.socket] = []
    stop = threading.Event()

    def busy() -> None:
        # connections are never accepted, and the queue holds 128
        while not stop.is_set() and len(made) < 100:
            made.append(socket.create_connection(server.getsockname()))
            time.sleep(0.0005)

    thread = threading.Thread(target=busy)
    thread.start()
    watch.install()
    group = groups.build(
        store=store,
        generation=0,
        rank=rank.rank,
        world_size=rank.world_size,
        backend="gloo",
        timeout_s=20.0,
        watch=watch,
    )
    sockets = watch.sockets
    stop.set()
    thread.join()
    assert len(sockets) == rank.world_size - 1, sockets
    fd = min(sockets)
    usurper, far = socket.socketpair()
    keep = os.dup(fd)
    os.dup2(usurper.fileno(), fd)  # the number now belongs to another socket
    store.add("noted", 1)
    # the first rank to wake closes the connections of the others, and gloo then releases the
    # numbers
    while store.add("noted", 0) < rank.world_size:
        time.sleep(0.001)
    woken = watch.wake()
    os.dup2(keep, fd)
    os.close(keep)
    # there are fewer if a peer was faster and gloo has already closed them
    assert woken <= rank.world_size - 2
    usurper.sendall(b"x")
    assert far.recv(1) == b"x"
    for connection in [old, *made]:
        connection.sendall(b"x")  # this would raise if it had been shut down
    assert not watch.store_lost
    store.add("alive", 1)
    groups.destroy(group)
    return True


def test_only_sockets_of_the_groups_are_shut_down() -> None:
    assert run_ranks(3, _innocent) == [True] * 3


def test_uninstalled_nothing_of_torch_is_changed() -> None:
    from torch.distributed import distributed_c10d

    before = (
        distributed_c10d._new_process_group_helper,
        distributed_c10d.split_group,
        dist.split_group,
    )
    watch = SocketWatch()
    watch.install()
    watch.install()
    assert distributed_c10d._new_process_group_helper is not before[0]
    watch.uninstall()
    watch.uninstall()
    assert (
        distributed_c10d._new_process_group_helper,
        distributed_c10d.split_group,
        dist.split_group,
    ) == before
    assert watch.wake() == 0
