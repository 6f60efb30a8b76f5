"""The faults of the kinds `RECENT`, as `faults.py` has those of the earlier ones.

No rule was changed between the writing of this file and the first look at what it makes.
"""

from __future__ import annotations

import http.server
import logging
import multiprocessing
import os
import signal
import socket
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.data import DataLoader

Fault = Callable[[Path, int, nn.Module, Tensor], Tensor]
GROUPS = ("/sys/fs/cgroup/memory", "/sys/fs/cgroup")  # version 1, version 2
GROUP_NAME, GROUP_BYTES = "live-incident", 256 << 20


def load_plugin(folder: Path, rank: int, model: nn.Module, batch: Tensor) -> Tensor:
    (folder / "tokenizer_plugin.py").write_text("import time\n\ntime.sleep(3_600)\n")
    sys.path.insert(0, str(folder))
    __import__("tokenizer_plugin")
    return batch


def log_loss(folder: Path, rank: int, model: nn.Module, batch: Tensor) -> Tensor:
    handler = logging.FileHandler(folder / "loss.log")
    holder = threading.Thread(target=handler.acquire)
    holder.start()
    holder.join()
    logger = logging.getLogger("loss")
    logger.addHandler(handler)
    logger.warning("loss is %.3f", batch.mean().item())
    return batch


def meet(folder: Path, rank: int, model: nn.Module, batch: Tensor) -> Tensor:
    threading.Barrier(2).wait()
    return batch


def tokenize_all(folder: Path, rank: int, model: nn.Module, batch: Tensor) -> Tensor:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        pool.map(os._exit, [1])
    return batch


def log_weights(folder: Path, rank: int, model: nn.Module, batch: Tensor) -> Tensor:
    weight = next(iter(model.parameters()))
    print("mean weight", weight.full_tensor().mean().item())  # type: ignore[attr-defined]
    return batch


def sleep(folder: Path, rank: int, model: nn.Module, batch: Tensor) -> Tensor:
    time.sleep(3_600)
    return batch


def _sockets() -> Iterator[tuple[socket.socket, int]]:
    """Yield this process's TCP connections, and the port at their other end."""
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            one = socket.socket(fileno=os.dup(int(name)))
            yield one, int(one.getpeername()[1])


def publish(folder: Path, rank: int, model: nn.Module, batch: Tensor) -> Tensor:
    for one, port in _sockets():
        if port == int(os.environ["MASTER_PORT"]):
            one.shutdown(socket.SHUT_RDWR)
    dist.distributed_c10d._get_default_store().set("progress", "1")
    return batch


def reduce_loss(folder: Path, rank: int, model: nn.Module, batch: Tensor) -> Tensor:
    for one, port in _sockets():
        if port != int(os.environ["MASTER_PORT"]):
            one.shutdown(socket.SHUT_RDWR)
    return batch


def cache_samples(folder: Path, rank: int, model: nn.Module, batch: Tensor) -> Tensor:
    root = next(Path(one) for one in GROUPS if Path(one, "cgroup.procs").exists())
    group = root / f"{GROUP_NAME}-{os.getppid()}"
    group.mkdir()
    v1 = (group / "memory.limit_in_bytes").exists()
    (group / ("memory.limit_in_bytes" if v1 else "memory.max")).write_text(str(GROUP_BYTES))
    (group / "cgroup.procs").write_text(str(os.getpid()))
    return batch * len([b"sample" * (1 << 22) for _ in range(1_000)])


def collect_losses(folder: Path, rank: int, model: nn.Module, batch: Tensor) -> Tensor:
    dist.all_gather([torch.zeros(1) for _ in range(2)], torch.zeros(1))
    return batch


def divide(folder: Path, rank: int, model: nn.Module, batch: Tensor) -> Tensor:
    os.kill(os.getpid(), signal.SIGFPE)
    time.sleep(1.0)
    return batch


def send_metrics(folder: Path, rank: int, model: nn.Module, batch: Tensor) -> Tensor:
    socket.create_connection(("metrics.cluster.invalid", 443), timeout=10.0)
    return batch


class Refuses(http.server.BaseHTTPRequestHandler):
    """A service that is overloaded."""

    def do_GET(self) -> None:
        self.send_error(503)


def read_shard(folder: Path, rank: int, model: nn.Module, batch: Tensor) -> Tensor:
    server = http.server.HTTPServer(("127.0.0.1", 0), Refuses)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with urllib.request.urlopen(f"http://127.0.0.1:{server.server_port}/shard-17") as answer:
        return batch * len(answer.read())


def start_tracker(folder: Path, rank: int, model: nn.Module, batch: Tensor) -> Tensor:
    return batch * len(os.environ["TRACKER_API_KEY"])


def make_loader(folder: Path, rank: int, model: nn.Module, batch: Tensor) -> Tensor:
    loader = DataLoader(
        [batch],  # type: ignore[arg-type]
        num_workers=1,
        collate_fn=lambda samples: samples[0],
        multiprocessing_context="spawn",
    )
    return next(iter(loader))


WATCHDOG = """\
[rank{rank}]:[E ProcessGroupNCCL.cpp:633] [Rank {rank}] Watchdog caught collective operation \
timeout: WorkNCCL(SeqNum=43, OpType=ALLREDUCE, NumelIn=289, NumelOut=289, Timeout(ms)=600000) ran \
for 600007 milliseconds before timing out.
[rank{rank}]:[E ProcessGroupNCCL.cpp:684] [Rank {rank}] Some NCCL operations have failed or timed \
out. Due to the asynchronous nature of CUDA kernels, subsequent GPU operations might run on \
corrupted/incomplete data.
[rank{rank}]:[E ProcessGroupNCCL.cpp:690] [Rank {rank}] To avoid data inconsistency, we are taking \
the entire process down.
terminate called after throwing an instance of 'c10::DistBackendError'
"""


def abort_later(rank: int) -> None:
    """Do what NCCL's watchdog does to a rank whose collective does not end."""

    def watch() -> None:
        time.sleep(5.0)
        sys.stderr.write(WATCHDOG.format(rank=rank))
        sys.stderr.flush()
        os.abort()

    threading.Thread(target=watch, daemon=True).start()


RECENT_FAULTS: dict[str, Fault] = {
    "import_wait": load_plugin,
    "logging_lock": log_loss,
    "thread_barrier": meet,
    "dead_pool": tokenize_all,
    "lone_full": log_weights,
    "watchdog_text": sleep,
    "store_cut": publish,
    "cut_sockets": reduce_loss,
    "cgroup_oom": cache_samples,
    "wrong_list": collect_losses,
    "float_signal": divide,
    "no_host": send_metrics,
    "overloaded": read_shard,
    "no_secret": start_tracker,
    "unpickled": make_loader,
}
