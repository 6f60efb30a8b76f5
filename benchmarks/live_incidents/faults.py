"""The faults of the kinds that `kinds.py` holds back: what a struck rank does at its step.

Each is an ordinary mistake, or an ordinary misfortune, of a training script. The functions have the
names that a script would give them, so that a stack does not tell the kind.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import queue
import re
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn

Fault = Callable[[Path, int, nn.Module, Tensor], Tensor]


def fetch(folder: Path, rank: int, model: nn.Module, batch: Tensor) -> Tensor:
    subprocess.run(["sleep", "3600"], check=True)
    return batch


def receive(folder: Path, rank: int, model: nn.Module, batch: Tensor) -> Tensor:
    reading, _ = os.pipe()
    return batch * len(os.read(reading, 1))


def download(folder: Path, rank: int, model: nn.Module, batch: Tensor) -> Tensor:
    server = socket.create_server(("127.0.0.1", 0))
    urllib.request.urlopen(f"http://127.0.0.1:{server.getsockname()[1]}/shard-00017.tar")
    return batch


def open_shard(folder: Path, rank: int, model: nn.Module, batch: Tensor) -> Tensor:
    path = folder / "shard-00017"
    os.mkfifo(path)
    return batch * len(path.read_bytes())


def evaluate(folder: Path, rank: int, model: nn.Module, batch: Tensor) -> Tensor:
    dist.barrier()
    return batch


def exchange(folder: Path, rank: int, model: nn.Module, batch: Tensor) -> Tensor:
    dist.recv(torch.zeros(1), src=(rank + 1) % dist.get_world_size())
    return batch


def flush(folder: Path, rank: int, model: nn.Module, batch: Tensor) -> Tensor:
    writer = threading.Thread(target=threading.Event().wait, daemon=True)
    writer.start()
    writer.join()
    return batch


def collect(folder: Path, rank: int, model: nn.Module, batch: Tensor) -> Tensor:
    ThreadPoolExecutor(1).submit(threading.Event().wait).result()
    return batch


def update(folder: Path, rank: int, model: nn.Module, batch: Tensor) -> Tensor:
    index, cache = threading.Lock(), threading.Lock()
    held = threading.Event()

    def refresh() -> None:
        with cache:
            held.set()
            with index:
                pass

    with index:
        threading.Thread(target=refresh, daemon=True).start()
        held.wait()
        with cache:
            return batch


def save(folder: Path, rank: int, model: nn.Module, batch: Tensor) -> Tensor:
    dcp.save({"model": model.state_dict()}, checkpoint_id=folder / "checkpoint")
    return batch


def tokenize(folder: Path, rank: int, model: nn.Module, batch: Tensor) -> Tensor:
    re.match(r"(a+)+$", "a" * 64 + "b")
    return batch


def prefetch(folder: Path, rank: int, model: nn.Module, batch: Tensor) -> Tensor:
    ready: queue.Queue[Tensor] = queue.Queue()

    def produce() -> None:
        ready.put({"input": batch}["inputs"])

    threading.Thread(target=produce, daemon=True).start()
    return ready.get()


def sleep(folder: Path, rank: int, model: nn.Module, batch: Tensor) -> Tensor:
    time.sleep(3_600)
    return batch


def end(folder: Path, rank: int, model: nn.Module, batch: Tensor) -> Tensor:
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(1.0)
    return batch


def check(folder: Path, rank: int, model: nn.Module, batch: Tensor) -> Tensor:
    assert batch.shape[1] == 17, f"expected 17 features, got {batch.shape[1]}"
    return batch


def decode(folder: Path, rank: int, model: nn.Module, batch: Tensor) -> Tensor:
    return batch * len(b"once upon \xff a time".decode())


def resume(folder: Path, rank: int, model: nn.Module, batch: Tensor) -> Tensor:
    path = folder / "model.pt"
    torch.save(torch.zeros(1 << 16), path)
    os.truncate(path, 1 << 12)
    torch.load(path)
    return batch


def build(folder: Path, rank: int, model: nn.Module, batch: Tensor) -> Tensor:
    from torch.nn import FusedRMSNorm  # noqa: F401 - no such name

    return batch


def load_plugin(folder: Path, rank: int, model: nn.Module, batch: Tensor) -> Tensor:
    ctypes.CDLL("libnccl-net-fabric.so.7")
    return batch


def report(folder: Path, rank: int, model: nn.Module, batch: Tensor) -> Tensor:
    Path("/sys/kernel/training-report").write_text("loss")
    return batch


def index(folder: Path, rank: int, model: nn.Module, batch: Tensor) -> Tensor:
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
    shards = [open("/dev/zero", "rb") for _ in range(1_000)]  # noqa: SIM115 - the fault
    return batch * len(shards)


def serve(folder: Path, rank: int, model: nn.Module, batch: Tensor) -> Tensor:
    metrics = socket.create_server(("127.0.0.1", 0))
    socket.create_server(metrics.getsockname())
    return batch


def map_shard(folder: Path, rank: int, model: nn.Module, batch: Tensor) -> Tensor:
    path = folder / "shard-00017"
    path.write_bytes(bytes(1 << 16))
    with path.open("rb") as file:
        view = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    os.truncate(path, 0)
    return batch * view[1 << 15]


def configure(folder: Path, rank: int, model: nn.Module, batch: Tensor) -> Tensor:
    sys.exit("config.yaml: unknown key 'lr_decay' in section 'optimizer'")


def augment(folder: Path, rank: int, model: nn.Module, batch: Tensor) -> Tensor:
    weights = torch.ones(4, requires_grad=True)
    scaled = weights.exp()
    total = (scaled * scaled).sum()
    scaled += 1.0
    total.backward()
    return batch


def measure(folder: Path, rank: int, model: nn.Module, batch: Tensor) -> Tensor:
    loss = (batch * float("nan")).mean()
    if not torch.isfinite(loss):
        raise FloatingPointError(f"loss is {loss.item()}")
    return batch


FAULTS: dict[str, Fault] = {
    "child_wait": fetch,
    "pipe_read": receive,
    "http_get": download,
    "fifo_open": open_shard,
    "lone_barrier": evaluate,
    "recv_nobody": exchange,
    "join_thread": flush,
    "future": collect,
    "two_locks": update,
    "lone_checkpoint": save,
    "two_sleep": sleep,
    "monitored": sleep,
    "regex": tokenize,
    "thread_died": prefetch,
    "ended_by_term": end,
    "assert_fail": check,
    "bad_bytes": decode,
    "torn_checkpoint": resume,
    "no_name": build,
    "no_library": load_plugin,
    "no_rights": report,
    "many_files": index,
    "port_taken": serve,
    "bus_error": map_shard,
    "exit_message": configure,
    "inplace": augment,
    "nan_one": measure,
}
