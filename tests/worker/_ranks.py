"""Run a function on n real ranks: they are forked from a clean, single-threaded server, have
bounded time, and are killed by pid at the end.
"""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import os
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

# torch's store asks the DNS for each connection, and a lost answer costs 5 s
os.environ.setdefault("RES_OPTIONS", "attempts:0")
_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(
    [
        "torch",
        "torch.distributed.device_mesh",
        "torch.optim",
        "torch.nn.parallel",
        "torch.distributed.fsdp",
        "torch._dynamo",
    ]
)


@dataclass(slots=True)
class Rank:
    """What the function is given: its rank, the world size, and the store's port on 127.0.0.1."""

    rank: int
    world_size: int
    port: int


def run_ranks(
    n: int,
    function: Callable[..., Any],
    *args: Any,
    timeout_s: float = 30.0,
    may_die: tuple[int, ...] = (),
) -> list[Any]:
    """Return what `function(Rank, *args)` returned on each rank, and None for those that may die.

    If a rank fails, this fails with the rank's traceback.
    """
    host, port = _start_store()
    started = []
    try:
        for rank in range(n):
            ours, theirs = _FORKS.Pipe()
            process = _FORKS.Process(
                target=_child, args=(theirs, function, Rank(rank, n, port), args), daemon=True
            )
            process.start()
            theirs.close()
            started.append((process, ours))
        return _collect(started, time.monotonic() + timeout_s, may_die)
    finally:
        for process in [host, *(process for process, _ in started)]:
            process.kill()
            process.join(5)


def _start_store() -> tuple[Any, int]:
    ours, theirs = _FORKS.Pipe()
    host = _FORKS.Process(target=_store, args=(theirs,), daemon=True)
    host.start()
    assert ours.poll(60), "the store did not come up"
    return host, int(ours.recv())


def _collect(
    started: list[tuple[Any, Any]], deadline_s: float, may_die: tuple[int, ...]
) -> list[Any]:
    out: list[Any] = [None] * len(started)
    waiting = {rank for rank in range(len(started)) if rank not in may_die}
    while waiting:
        left_s = deadline_s - time.monotonic()
        assert left_s > 0, f"ranks {sorted(waiting)} did not end in time"
        ready = multiprocessing.connection.wait(
            [started[rank][1] for rank in waiting], timeout=left_s
        )
        for rank in [rank for rank in waiting if started[rank][1] in ready]:
            try:
                well, out[rank] = started[rank][1].recv()
            except EOFError:
                raise AssertionError(f"rank {rank} died") from None
            assert well, f"rank {rank}: {out[rank]}"
            waiting.discard(rank)
    return out


def _store(pipe: Any) -> None:
    from outlast.runtime.worker.communication import groups

    store = groups.serve()
    pipe.send(store.port)
    time.sleep(600)


def _child(pipe: Any, function: Callable[..., Any], rank: Rank, args: tuple[Any, ...]) -> None:
    import torch

    torch.set_num_threads(1)
    try:
        answer = (True, function(rank, *args))
    except BaseException:
        answer = (False, traceback.format_exc())
    pipe.send(answer)
    os._exit(0)  # no rank waits for the destructors of a broken group
