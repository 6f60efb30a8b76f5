"""Groups that are built again in the same process: they are ready, counted, destroyed whether
broken or not, and do not leak.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.worker._ranks import Rank, run_ranks
from tests.worker.test_peer_probe import a_silent_port

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402

from outlast.model.limits import GROUP_LET_GO_S  # noqa: E402
from outlast.model.messages import STORE  # noqa: E402
from outlast.runtime.worker.communication import ddp, groups, peer_probe  # noqa: E402
from outlast.runtime.worker.communication.wake import SocketWatch, open_sockets  # noqa: E402


def join(
    rank: Rank,
    generation: int,
    store: Any,
    watch: SocketWatch | None = None,
    timeout_s: float = 20.0,
) -> groups.BuiltGroup:
    return groups.build(
        store=store,
        generation=generation,
        rank=rank.rank,
        world_size=rank.world_size,
        backend="gloo",
        timeout_s=timeout_s,
        watch=watch,
    )


def _resident_kib() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4


def _held() -> tuple[int, int, int]:
    """Return resident KiB, descriptors and threads, once the old groups have been released."""
    gc.collect()
    deadline_s = time.monotonic() + 10.0
    while any(thread.name == "outlast-let-go" for thread in threading.enumerate()):
        assert time.monotonic() < deadline_s, "old groups are never let go"
        time.sleep(0.01)
    return _resident_kib(), len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))


def _rebuild_many(rank: Rank, times: int) -> dict[str, Any]:
    watch = SocketWatch()
    watch.install()
    store = groups.connect("127.0.0.1", rank.port, 20.0, watch)
    before_hook = sys.excepthook
    held, took_s = [], []
    group = join(rank, 0, store, watch)
    model = ddp.wrap(
        torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(4)]), bucket_cap_mb=0.02
    )
    ddp.freeze_buckets(model)
    for generation in range(1, times + 1):
        dist.new_group([0, 1])
        mesh = dist.device_mesh.init_device_mesh("cpu", (2, rank.world_size // 2))
        dist.all_reduce(torch.ones(1), group=mesh.get_group(0))
        model(torch.ones(2, 64)).sum().backward()
        del mesh
        dist.barrier()
        began_s = time.perf_counter()
        groups.destroy(group)
        group = join(rank, generation, store, watch)
        assert ddp.rebuild(model) == ""
        assert ddp.freeze_buckets(model) == ""
        took_s.append(time.perf_counter() - began_s)
        if generation in (times // 4, times):
            held.append(_held())
    groups.destroy(group)
    groups.destroy(group)
    return {
        "held": held,
        "took_s": sorted(took_s),
        "hook": sys.excepthook is before_hook,
        "left": watch.sockets,
    }


@pytest.mark.parametrize("times", [8, pytest.param(20, marks=pytest.mark.drill)])
def test_rebuilds_leak_no_memory_descriptor_or_thread(times: int, capsys: Any) -> None:
    """Method: 4 ranks rebuild group and DDP this many times, making a subgroup and a 2x2 mesh each
    time. Compare the state after a quarter of them with that after the last one.
    """
    answers = run_ranks(4, _rebuild_many, times)
    for answer in answers:
        assert answer["hook"], "torch's excepthooks must not pile up"
        assert answer["left"] == {}
        (
            (early_kib, early_descriptors, early_threads),
            (late_kib, late_descriptors, late_threads),
        ) = answer["held"]
        assert late_descriptors <= early_descriptors + 2, "a leak would show several times over"
        assert late_threads <= early_threads + 2
        assert late_kib - early_kib < 4_096
    with capsys.disabled():
        took_s = answers[0]["took_s"]
        print(
            f" [rebuild of group and DDP, 4 ranks: median {took_s[len(took_s) // 2] * 1e3:.1f} ms,"
            f" worst {took_s[-1] * 1e3:.1f} ms]",
            end="",
        )


def _use_a_group_after_it_was_left(rank: Rank) -> int:
    """Return how many groups are left once no thread checks for them any more."""
    group, used = groups.solo(), dist.group.WORLD
    groups.destroy(group)
    time.sleep(2 * GROUP_LET_GO_S)  # the first check has found it in use
    del used
    _held()
    return len(groups._left)


def test_a_left_group_is_released_once_its_last_use_is_over() -> None:
    """Method: the group is in use when the thread checks for the first time, and not later."""
    assert run_ranks(1, _use_a_group_after_it_was_left) == [0]


def _count(rank: Rank) -> list[int]:
    store = groups.connect("127.0.0.1", rank.port, 20.0)
    none = groups.collectives()
    group = join(rank, 0, store)
    seen: list[int] = []
    before = groups.collectives()
    for _ in range(3):
        dist.all_reduce(torch.ones(1))
    reader = threading.Thread(target=lambda: seen.append(groups.collectives() - before))
    reader.start()
    reader.join()
    groups.destroy(group)
    return [none, *seen, groups.collectives()]


def test_collectives_are_counted_from_a_thread_and_unknown_without_group() -> None:
    assert run_ranks(2, _count) == [[-1, 3, -1]] * 2


def _survive(rank: Rank) -> float:
    watch = SocketWatch()
    watch.install()
    store = groups.connect("127.0.0.1", rank.port, 20.0, watch)
    group = join(rank, 0, store, watch)
    dist.new_group([0, 1, 2])
    if rank.rank == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    with pytest.raises(RuntimeError):
        [dist.all_reduce(torch.ones(1000)) for _ in range(100)]
    began_s = time.perf_counter()
    groups.destroy(group)
    took_s = time.perf_counter() - began_s
    survivors = Rank(rank.rank, 2, rank.port)
    group = join(survivors, 1, store, watch)
    total = torch.ones(1)
    dist.all_reduce(total)
    assert total.item() == 2
    groups.destroy(group)
    return took_s


def test_survivors_of_a_killed_member_build_the_next_group() -> None:
    """Method: SIGKILL to rank 2 of 3 while the others are in all_reduce, with a subgroup open as
    well.
    """
    took_s = run_ranks(3, _survive, may_die=(2,))
    assert max(took_s[0], took_s[1]) < 1.0


def _cancel(rank: Rank) -> tuple[float, str]:
    """Wait for a peer that does not come. Return how long leaving took, and what was written to
    stderr.

    Then build the next group, alone.
    """
    watch, over = SocketWatch(), threading.Event()
    store = groups.connect("127.0.0.1", rank.port, 20.0, watch)
    woken_s: list[float] = []

    def waker() -> None:
        while watch._out_of_store.is_set():
            time.sleep(0.001)
        # let it get into the store's own wait; waking it earlier would work as well
        time.sleep(0.1)
        over.set()
        woken_s.append(time.monotonic())
        watch.wake()

    thread = threading.Thread(target=waker)
    thread.start()
    real, heard = os.dup(2), os.memfd_create("stderr")
    os.dup2(heard, 2)
    with pytest.raises(groups.Cancelled):
        groups.build(
            store=store,
            generation=0,
            rank=0,
            world_size=2,
            backend="gloo",
            timeout_s=20.0,
            watch=watch,
            cancelled=over.is_set,
        )
    took_s = time.monotonic() - woken_s[0]
    thread.join()
    os.dup2(real, 2)
    assert watch.store_lost
    store = groups.connect("127.0.0.1", rank.port, 20.0, watch)
    groups.destroy(join(Rank(0, 1, rank.port), 1, store, watch))
    return took_s, os.pread(heard, 100_000, 0).decode()


def test_a_rank_that_waits_for_peers_leaves_when_the_generation_is_over() -> None:
    """The rank is woken while it waits in the store, and torch's complaint about that is not shown
    to people.
    """
    ((took_s, told),) = run_ranks(1, _cancel)
    assert took_s < 1.0
    assert told == ""


def _miss_a_peer(rank: Rank) -> str:
    store = groups.connect("127.0.0.1", rank.port, 20.0)
    with pytest.raises(RuntimeError) as raised:
        join(Rank(0, 2, rank.port), 0, store, timeout_s=0.2)
    return str(raised.value)


def test_a_rank_whose_peer_does_not_come_says_how_many_came() -> None:
    assert run_ranks(1, _miss_a_peer) == ["generation 0: 1 of 2 ranks came to the group in time"]


def _ask_the_store(rank: Rank) -> int:
    """Return how often a rank that waits half a second for its peer asks the store."""
    asked: list[str] = []

    class Counted(dist.PrefixStore):
        def add(self, key: str, value: int) -> int:
            asked.append(key)
            return int(super().add(key, value))

    store = groups.connect("127.0.0.1", rank.port, 20.0)
    if rank.rank == 1:
        while store.add("outlast/0/here", 0) == 0:
            time.sleep(0.001)
        time.sleep(0.5)
    groups.assemble(Counted("outlast/0", store), 0, rank.world_size, 20.0, None, lambda: False)
    return len(asked)


def test_a_rank_that_waits_does_not_ask_the_store_again_and_again() -> None:
    assert run_ranks(2, _ask_the_store) == [1, 1]


def _wake_while_building(rank: Rank) -> float:
    """Rank 1 reports that it is here and never builds its group, so rank 0 waits inside the
    backend.

    They build the next group together.
    """
    watch = SocketWatch()
    watch.install()
    store = groups.connect("127.0.0.1", rank.port, 20.0, watch)
    if rank.rank == 1:
        waiting = dist.PrefixStore("outlast/0", store)
        if waiting.add("here", 1) == rank.world_size:
            waiting.set("all here", "yes")
        groups.destroy(join(rank, 1, store, watch))
        return 0.0
    woken_s: list[float] = []

    def waker() -> None:
        while watch._before is None or len(open_sockets()) < 2:
            time.sleep(0.001)
        # let it get into the backend's own wait; waking it earlier would work as well
        time.sleep(0.1)
        woken_s.append(time.monotonic())
        watch.wake()

    thread = threading.Thread(target=waker)
    thread.start()
    with pytest.raises(RuntimeError):
        join(rank, 0, store, watch)
    took_s = time.monotonic() - woken_s[0]
    thread.join()
    assert watch.store_lost
    again = groups.connect("127.0.0.1", rank.port, 20.0, watch)
    assert not watch.store_lost
    groups.destroy(join(rank, 1, again, watch))
    return took_s


def test_a_rank_whose_peer_never_connects_is_woken_while_it_builds() -> None:
    """Torch names a group by a count that goes on where building one failed. The peer, which did
    not fail, would wait for another name.
    """
    took_s = run_ranks(2, _wake_while_building)
    assert took_s[0] < 1.0


def _alone(rank: Rank) -> float:
    group = groups.solo()
    model = ddp.wrap(torch.nn.Linear(4, 4))
    model(torch.ones(2, 4)).sum().backward()
    assert dist.get_world_size() == 1
    groups.destroy(group)
    return float(model.module.weight.grad.sum())


def test_a_spare_makes_and_runs_ddp_without_any_peer() -> None:
    """Method: one process, and no store at all."""
    assert run_ranks(1, _alone) == [32.0]


def test_a_process_that_ends_right_after_its_group_ends_well() -> None:
    """The threads of a gloo group are joined in a C++ destructor. Python must not end the thread
    that is in it.
    """
    script = (
        "from outlast.runtime.worker.communication import groups\nfor _ in range(3):\n   "
        " groups.destroy(groups.solo())\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60
    )
    assert (ended.returncode, ended.stderr) == (0, "")


def _has_ended(pid: int) -> bool:
    """Return True if the process is a zombie, or was already reaped by its parent."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def _sees_rank_0_end(store: Any) -> bool:
    """Join no collective, and see whether rank 0's process ends nevertheless."""
    pid = int(store.get("pid"))
    deadline_s = time.monotonic() + 15.0
    while time.monotonic() < deadline_s and not _has_ended(pid):
        time.sleep(0.01)
    return _has_ended(pid)


def _leave_with_a_stuck_group(rank: Rank) -> bool:
    store = groups.connect("127.0.0.1", rank.port, 20.0)
    join(rank, 0, store)
    if rank.rank == 1:
        return _sees_rank_0_end(store) and store.check(["ended"])
    store.set("pid", str(os.getpid()))
    stuck = dist.all_reduce(torch.ones(1), async_op=True)
    group = groups.BuiltGroup(0, 0, 2, "gloo", sys.excepthook, None)  # its sockets are never woken
    groups.destroy(group)
    del stuck
    atexit.register(store.set, "ended", "yes")
    groups.exit_without_stuck(7)
    raise AssertionError("the group was let go")


def test_a_group_that_cannot_be_released_does_not_keep_the_process() -> None:
    """Rank 0 has left an operation that never ends, in a group whose sockets stay open.

    Its exit functions still run.
    """
    assert run_ranks(2, _leave_with_a_stuck_group, may_die=(0,))[1] is True


class _Lazy:
    """A proxy, such as lazy modules are: asking for its class is an error until it is filled."""

    @property
    def __class__(self) -> Any:
        raise RuntimeError("not filled yet")


def _end_beside_objects_that_cannot_be_asked(rank: Rank, folder: Path) -> tuple[int, str]:
    path = folder / "unflushed"
    pid = os.fork()
    if pid == 0:
        try:
            thing = torch.nn.Linear(1, 1)
            kept = [weakref.proxy(thing), _Lazy(), path.open("w")]
            kept[2].write("to the end")
            del thing  # torch.compile leaves such proxies
            groups._has_left_peers.set()
            groups.exit_without_stuck(7)
        finally:
            os._exit(1)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return code, path.read_text()


def test_objects_whose_class_cannot_be_asked_do_not_change_the_exit(tmp_path: Path) -> None:
    """Files are flushed, and the exit code is that of the script."""
    ends = run_ranks(1, _end_beside_objects_that_cannot_be_asked, tmp_path)
    assert ends == [(7, "to the end")]


def _end_while_the_script_holds_a_stuck_group(rank: Rank) -> bool:
    store = groups.connect("127.0.0.1", rank.port, 20.0)
    join(rank, 0, store)
    if rank.rank == 1:
        return _sees_rank_0_end(store)
    store.set("pid", str(os.getpid()))
    kept = [dist.group.WORLD, dist.all_reduce(torch.ones(1), async_op=True)]
    groups.destroy(
        groups.BuiltGroup(0, 0, 2, "gloo", sys.excepthook, None)
    )  # its sockets are never woken
    groups.exit_without_stuck(7)
    raise AssertionError(f"the interpreter would end with {kept}, and wait for them")


def test_a_stuck_group_that_the_script_holds_does_not_keep_the_process() -> None:
    """Rank 0 keeps its old group, and an operation in it that never ends, until its own end."""
    assert run_ranks(2, _end_while_the_script_holds_a_stuck_group, may_die=(0,))[1] is True


def _rebuild_over_a_stuck_group(rank: Rank) -> bool:
    """Rank 1 only keeps its sockets open. Return whether DDP moved to the next group in time."""
    store = groups.connect("127.0.0.1", rank.port, 20.0)
    join(rank, 0, store)
    model = ddp.wrap(torch.nn.Linear(4, 4))
    ddp.freeze_buckets(model)
    if rank.rank == 1:
        with contextlib.suppress(RuntimeError):
            store.wait(["moved"], timedelta(seconds=10))
        return bool(store.check(["moved"]))
    stuck = dist.all_reduce(torch.ones(1), async_op=True)
    groups.destroy(
        groups.BuiltGroup(0, 0, 2, "gloo", sys.excepthook, None)
    )  # its sockets are never woken
    del stuck
    time.sleep(2 * GROUP_LET_GO_S)  # only DDP refers to it now
    groups.solo()
    assert ddp.rebuild(model) == ""
    store.set("moved", "yes")
    return True


def test_ddp_moves_on_at_once_though_its_old_group_is_stuck() -> None:
    """Rank 0 has left an operation that never ends, and its group some time ago."""
    assert run_ranks(2, _rebuild_over_a_stuck_group, may_die=(0,))[1]


def test_a_store_that_is_gone_is_given_up_at_once() -> None:
    """Method: the port of the store refuses connections; or the store has stopped, accepts one
    connection, and is then killed.

    Torch's own client would try again for up to twice its time-out.
    """
    for stopped_s in (0.0, 0.3):
        listener = socket.create_server(("127.0.0.1", 0))
        port = listener.getsockname()[1]
        killer = threading.Timer(stopped_s, listener.close)
        killer.start()
        if not stopped_s:
            killer.join()
        began_s = time.monotonic()
        with pytest.raises(dist.DistNetworkError, match="takes no connection"):
            groups.connect("127.0.0.1", port, 60.0, refused_s=0.2)
        assert time.monotonic() - began_s < 20.0
        killer.join()


def test_a_store_that_does_not_answer_is_out_of_reach() -> None:
    """Method: the queue of its port is full, so the kernel drops each further connection."""
    with a_silent_port() as address:
        host, _, port = address.rpartition(":")
        with pytest.raises(groups.PeersUnreached, match="takes no connection") as raised:
            groups.connect(host, int(port), 1.5)
    assert raised.value.ranks == (STORE,)


def test_a_rank_names_the_nodes_that_do_not_answer() -> None:
    """Ranks 0 and 3 share a node with this process, and rank 1 is behind a silent port."""
    store = dist.PrefixStore("outlast/1", dist.HashStore())
    with a_silent_port() as silent_at, socket.create_server(("127.0.0.1", 0)) as listener:
        well = f"127.0.0.1:{listener.getsockname()[1]}"
        for rank, serves in enumerate((well, silent_at, silent_at, well)):
            peer_probe.announce(store, rank, 4, serves)
        assert peer_probe.silent_ranks(store, 0, 4, well, lambda: False) == (1,)
        assert peer_probe.silent_ranks(store, 3, 4, well, lambda: False) == (), "rank 0 asks"
        assert peer_probe.silent_ranks(store, 0, 5, well, lambda: False) == (), "one said nothing"
        assert peer_probe.silent_ranks(store, 0, 4, "", lambda: False) == (), "there is one node"


def test_no_connection_is_tried_to_a_node_that_does_not_answer() -> None:
    """Gloo would try for 50 s, and could not be woken. Rank 1 is here, and its node is silent."""
    store = dist.HashStore()
    prefix = dist.PrefixStore("outlast/7", store)
    with a_silent_port() as silent_at:
        peer_probe.announce(prefix, 1, 2, silent_at)
        prefix.add("here", 1)
        with pytest.raises(groups.PeersUnreached) as raised:
            groups.build(
                store=store, generation=7, rank=0, world_size=2, backend="gloo", timeout_s=60.0,
                serves="127.0.0.1:1",
            )  # fmt: skip  # one argument a line would hide the story
    assert raised.value.ranks == (1,)
    assert not dist.is_initialized()


def test_a_rank_that_asks_a_stopped_store_for_addresses_is_woken() -> None:
    """A rank has to leave its generation in time, also while the store does not answer."""
    serves = (
        "import time; from outlast.runtime.worker.communication import groups;"
        "store = groups.serve(); print(store.port, flush=True); time.sleep(600)"
    )
    watch, broken = SocketWatch(), threading.Event()
    with subprocess.Popen([sys.executable, "-c", serves], stdout=subprocess.PIPE) as host:
        assert host.stdout is not None
        store = groups.connect("127.0.0.1", int(host.stdout.readline()), 60.0, watch)
        host.send_signal(signal.SIGSTOP)

        def wake() -> None:
            while watch._out_of_store.is_set():
                time.sleep(0.001)
            broken.set()
            watch.wake()

        thread = threading.Thread(target=wake)
        thread.start()
        began_s = time.monotonic()
        assert peer_probe.silent_ranks(store, 0, 2, "127.0.0.1:1", broken.is_set, watch) == ()
        assert time.monotonic() - began_s < 20.0
        thread.join()
        host.kill()
    assert watch.store_lost


def test_a_store_is_not_waited_for_once_another_generation_has_begun() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(groups.Cancelled):
        groups.connect("127.0.0.1", port, 60.0, cancelled=lambda: True)
