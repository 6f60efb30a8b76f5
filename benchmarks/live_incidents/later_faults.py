"""The faults of the kinds that were added last, as `faults.py` has those of the earlier ones.

No rule was changed between the writing of this file and the first look at what it makes.
"""

from __future__ import annotations

import asyncio
import errno
import gzip
import io
import json
import multiprocessing
import os
import select
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn

Fault = Callable[[Path, int, nn.Module, Tensor], Tensor]


def acquire(folder: Path, rank: int, model: nn.Module, batch: Tensor) -> Tensor:
    slots = threading.Semaphore(0)
    with slots:
        return batch


def fetch_all(folder: Path, rank: int, model: nn.Module, batch: Tensor) -> Tensor:
    async def never() -> None:
        await asyncio.Event().wait()

    asyncio.run(never())
    return batch


def unpack(folder: Path, rank: int, model: nn.Module, batch: Tensor) -> Tensor:
    path = folder / "part-3.gz"
    os.mkfifo(path)
    with gzip.open(path) as file:
        return batch * len(file.read())


def look_up(folder: Path, rank: int, model: nn.Module, batch: Tensor) -> Tensor:
    path = folder / "index.db"
    holder = sqlite3.connect(path, isolation_level=None)
    holder.execute("create table samples (id)")
    holder.execute("begin exclusive")
    sqlite3.connect(path, timeout=3_600).execute("select * from samples").fetchall()
    return batch


def log_metrics(folder: Path, rank: int, model: nn.Module, batch: Tensor) -> Tensor:
    _, writing = os.pipe()
    while batch.numel():
        os.write(writing, bytes(1 << 16))
    return batch


def talk(folder: Path, rank: int, model: nn.Module, batch: Tensor) -> Tensor:
    server = socket.create_server(("127.0.0.1", 0))
    client = socket.create_connection(server.getsockname())
    return batch * len(client.recv(1))


def gather_metrics(folder: Path, rank: int, model: nn.Module, batch: Tensor) -> Tensor:
    dist.all_gather_object([None] * dist.get_world_size(), {"loss": 2.5})
    return batch


def share_config(folder: Path, rank: int, model: nn.Module, batch: Tensor) -> Tensor:
    dist.broadcast_object_list([{"lr": 0.1}], src=(rank + 1) % dist.get_world_size())
    return batch


def make_group(folder: Path, rank: int, model: nn.Module, batch: Tensor) -> Tensor:
    dist.new_group(list(range(dist.get_world_size())))
    return batch


def send(folder: Path, rank: int, model: nn.Module, batch: Tensor) -> Tensor:
    dist.send(torch.zeros(1 << 22), dst=(rank + 1) % dist.get_world_size())
    return batch


def stop(folder: Path, rank: int, model: nn.Module, batch: Tensor) -> Tensor:
    os.kill(os.getpid(), signal.SIGSTOP)
    return batch


def poll(folder: Path, rank: int, model: nn.Module, batch: Tensor) -> Tensor:
    while not (folder / "ready").exists():
        time.sleep(0.1)
    return batch


def restore(folder: Path, rank: int, model: nn.Module, batch: Tensor) -> Tensor:
    nn.Linear(4, 4).load_state_dict(nn.Linear(8, 8).state_dict())
    return batch


def penalize(folder: Path, rank: int, model: nn.Module, batch: Tensor) -> Tensor:
    batch.mean().backward()
    return batch


def write_shard(folder: Path, rank: int, model: nn.Module, batch: Tensor) -> Tensor:
    raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT), str(folder / "step-40.pt"))


def write_log(folder: Path, rank: int, model: nn.Module, batch: Tensor) -> Tensor:
    raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(folder / "events.out"))


def leave(folder: Path, rank: int, model: nn.Module, batch: Tensor) -> Tensor:
    os._exit(1)


def notify(folder: Path, rank: int, model: nn.Module, batch: Tensor) -> Tensor:
    os.kill(os.getpid(), signal.SIGUSR1)
    time.sleep(1.0)
    return batch


def parse(folder: Path, rank: int, model: nn.Module, batch: Tensor) -> Tensor:
    return batch * json.loads('{"tokens": [1, 2')["tokens"][0]


def take(folder: Path, rank: int, model: nn.Module, batch: Tensor) -> Tensor:
    return next(iter(list[Tensor]()))


def inspect(folder: Path, rank: int, model: nn.Module, batch: Tensor) -> Tensor:
    breakpoint()  # noqa: T100 - the fault
    return batch


def connect(folder: Path, rank: int, model: nn.Module, batch: Tensor) -> Tensor:
    server = socket.create_server(("127.0.0.1", 0))
    address = server.getsockname()
    server.close()
    socket.create_connection(address)
    return batch


def concatenate(folder: Path, rank: int, model: nn.Module, batch: Tensor) -> Tensor:
    return torch.cat([batch, batch[:, :3]])


def interrupt(folder: Path, rank: int, model: nn.Module, batch: Tensor) -> Tensor:
    sys.setswitchinterval(1e-3)
    raise KeyboardInterrupt


# --- added after a first look at those above ------------------------------------------------------


def await_batch(folder: Path, rank: int, model: nn.Module, batch: Tensor) -> Tensor:
    ready = threading.Condition()
    with ready:
        ready.wait()
    return batch


def preprocess(folder: Path, rank: int, model: nn.Module, batch: Tensor) -> Tensor:
    child = multiprocessing.get_context("spawn").Process(target=time.sleep, args=(3_600,))
    child.start()
    child.join()
    return batch


def wait_for_input(folder: Path, rank: int, model: nn.Module, batch: Tensor) -> Tensor:
    reading, _ = os.pipe()
    select.select([reading], [], [])
    return batch


def receive_samples(folder: Path, rank: int, model: nn.Module, batch: Tensor) -> Tensor:
    return batch * multiprocessing.get_context("spawn").Queue().get()


def spread(folder: Path, rank: int, model: nn.Module, batch: Tensor) -> Tensor:
    parts = [torch.zeros(2) for _ in range(dist.get_world_size())]
    dist.scatter(torch.zeros(2), parts, src=rank)
    dist.barrier()
    return batch


def count(folder: Path, rank: int, model: nn.Module, batch: Tensor) -> Tensor:
    return batch * sum(1 for _ in range(10**15))


def scale(folder: Path, rank: int, model: nn.Module, batch: Tensor) -> Tensor:
    return batch * "0.5"  # type: ignore[operator]  # the fault


def average(folder: Path, rank: int, model: nn.Module, batch: Tensor) -> Tensor:
    return batch * (1.0 / len([]))


def read_block(folder: Path, rank: int, model: nn.Module, batch: Tensor) -> Tensor:
    raise OSError(errno.EIO, os.strerror(errno.EIO), str(folder / "shard-00017"))


def reopen(folder: Path, rank: int, model: nn.Module, batch: Tensor) -> Tensor:
    raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), str(folder / "shard-00017"))


def ask(folder: Path, rank: int, model: nn.Module, batch: Tensor) -> Tensor:
    server = socket.create_server(("127.0.0.1", 0))
    urllib.request.urlopen(f"http://127.0.0.1:{server.getsockname()[1]}/config", timeout=0.5)
    return batch


def convert(folder: Path, rank: int, model: nn.Module, batch: Tensor) -> Tensor:
    subprocess.run(["false"], check=True)
    return batch


def load_cache(folder: Path, rank: int, model: nn.Module, batch: Tensor) -> Tensor:
    return batch * len(torch.load(io.BytesIO(b"no pickle")))


def load_model(folder: Path, rank: int, model: nn.Module, batch: Tensor) -> Tensor:
    from torch.optim import AdamZ  # noqa: F401 - no such name

    return batch


LATER_FAULTS: dict[str, Fault] = {
    "condition_wait": await_batch,
    "process_join": preprocess,
    "select_wait": wait_for_input,
    "worker_queue": receive_samples,
    "lone_scatter": spread,
    "long_sum": count,
    "type_error": scale,
    "no_division": average,
    "disk_error": read_block,
    "stale_handle": reopen,
    "no_answer": ask,
    "child_failed": convert,
    "bad_pickle": load_cache,
    "no_optimizer": load_model,
    "semaphore": acquire,
    "event_loop": fetch_all,
    "gzip_read": unpack,
    "locked_index": look_up,
    "full_pipe": log_metrics,
    "client_recv": talk,
    "lone_gather": gather_metrics,
    "lone_broadcast": share_config,
    "lone_group": make_group,
    "send_nobody": send,
    "two_stopped": stop,
    "polls_file": poll,
    "other_weights": restore,
    "no_gradient": penalize,
    "quota": write_shard,
    "read_only": write_log,
    "leaves": leave,
    "user_signal": notify,
    "torn_json": parse,
    "no_more": take,
    "left_breakpoint": inspect,
    "refused": connect,
    "wrong_width": concatenate,
    "interrupted": interrupt,
}
