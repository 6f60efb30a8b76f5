"""A small training job under torchrun (gloo) that breaks in a chosen way at a chosen step.

The plan is a JSON file beside this script, so that no command line and no stack tells the kind:
kind, struck_ranks, step, layout, folder, recipe. The layout is ddp, fsdp2 or mesh (2 x 2,
replicated and sharded); real wrappers reduce the gradients. The recipe is `pipe`
(outlast.record_collectives) or `second` (a thread that dumps once a second).
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import queue
import resource
import signal
import socket
import sys
import threading
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from faults import FAULTS  # type: ignore[import-not-found]  # lies beside this script
from later_faults import LATER_FAULTS  # type: ignore[import-not-found]
from recent_faults import RECENT_FAULTS, abort_later  # type: ignore[import-not-found]
from torch import Tensor, nn
from torch._C._distributed_c10d import _dump_fr_trace_json
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.elastic.multiprocessing.errors import record
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

import outlast

WIDTH, STEPS = 16, 100_000


class Samples(Dataset[Tensor]):
    """Samples of noise; a worker may break at one."""

    def __init__(self, kind: str, broken: int) -> None:
        self.kind, self.broken = kind, broken
        self.lock = threading.Lock()
        if kind == "loader_deadlock" and broken >= 0:
            self.lock.acquire()  # as a thread holds it while the workers are forked

    def __len__(self) -> int:
        return STEPS

    def __getitem__(self, index: int) -> Tensor:
        if index == self.broken and self.kind == "loader_stuck":
            time.sleep(3_600)
        if index == self.broken and self.kind in ("loader_killed", "loader_oom"):
            os.kill(os.getpid(), signal.SIGKILL)
        if index == self.broken and self.kind == "loader_deadlock":
            with self.lock:
                pass
        if index == self.broken and self.kind == "loader_stopped":
            os.kill(os.getpid(), signal.SIGSTOP)
        if index == self.broken and self.kind == "loader_segfault":
            ctypes.string_at(0)
        if index == self.broken and self.kind == "loader_full":
            text = f"unable to write to file </torch_{os.getpid()}_77_0>: No space left on device"
            raise RuntimeError(f"{text} (28)")
        if index == self.broken and self.kind == "loader_raises":
            raise ValueError(f"sample {index}: expected {WIDTH} features, got 0")
        return torch.randn(WIDTH)


class Job:
    """One rank."""

    def __init__(
        self, kind: str, struck_ranks: list[int], step: int, layout: str, folder: Path
    ) -> None:
        self.kind, self.step, self.folder = kind, step, folder
        timeout = timedelta(seconds=8) if kind == "time_out" else timedelta(minutes=30)
        dist.init_process_group("gloo", timeout=timeout)
        self.rank = dist.get_rank()
        self.is_struck = self.rank in struck_ranks
        self.source = 0 if 0 not in struck_ranks else 1
        self.now = 0
        self.lock = threading.Lock()
        self.pairs = [dist.new_group([0, 1, 2, 3]) for _ in range(2)]
        self.model = self.wrapped(layout)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)
        self.optimizer.register_step_pre_hook(self.before_step)

    def wrapped(self, layout: str) -> nn.Module:
        model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 1))
        if self.kind == "unused_weights":
            model.append(nn.Identity())
            model[3].spare = nn.Linear(WIDTH, WIDTH)
        model[1].register_forward_hook(self.in_forward)
        if layout == "ddp":
            wrapped: nn.Module = DistributedDataParallel(model)
        elif layout == "fsdp2":
            wrapped = fully_shard(model, mesh=init_device_mesh("cpu", (4,)))
        else:
            mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
            self.mesh = mesh
            wrapped = fully_shard(model, mesh=mesh)
        return wrapped

    @property
    def strikes(self) -> bool:
        return self.now == self.step and self.is_struck

    def batches(self) -> Any:
        if self.kind.startswith("loader_") or self.kind == "calm_loads":
            samples = Samples(self.kind, self.step * 4 if self.is_struck else -1)
            yield from DataLoader(samples, batch_size=4, num_workers=1)
        while True:
            yield torch.randn(4, WIDTH)

    def before_step(self, *_: object) -> None:
        if self.strikes and self.kind == "sleep_optimizer":
            time.sleep(3_600)

    def in_forward(self, *_: object) -> None:
        if self.strikes and self.kind == "sleep_forward":
            time.sleep(3_600)

    def in_backward(self, gradient: Tensor) -> Tensor:
        if self.strikes and self.kind == "sleep_backward":
            time.sleep(3_600)
        return gradient

    def run(self) -> None:
        for now, batch in enumerate(self.batches()):
            self.now = now
            if self.now == self.step:
                self.everybody(batch)
            if self.strikes:
                if self.kind == "left_loop":
                    break
                if self.kind == "swallowed":
                    print(f"step {self.now} skipped: ValueError('bad sample')", flush=True)
                    continue
                batch = self.broken(batch)
            if self.kind in ("order", "extra_reduce", "dtype", "skipped_reduce"):
                self.by_hand()
            if self.kind == "wrong_group":
                name = "replicate" if self.strikes else "shard"
                dist.all_reduce(torch.zeros(5), group=self.mesh.get_group(name))
            if self.kind == "swallowed" and self.now == self.step + 5:
                dist.barrier()
            output = self.model(batch)
            output.register_hook(self.in_backward)
            output.square().mean().backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            print(f"step {self.now} done", flush=True)
            self.calm()
            time.sleep(0.02)
        dist.barrier()

    def calm(self) -> None:
        """Imitate delays of a healthy job: a slow rank, or one that saves."""
        if self.kind == "calm_slow" and self.is_struck:
            time.sleep(0.3)
        if self.kind == "calm_saves" and self.rank == 0 and self.now % 5 == 0:
            torch.save(torch.zeros(1 << 22), self.folder / "model.pt")
            time.sleep(0.5)

    def by_hand(self) -> None:
        first, second = self.pairs
        if self.strikes and self.kind == "extra_reduce":
            dist.all_reduce(torch.zeros(3), group=first)
        if self.strikes and self.kind == "order":
            first, second = second, first
        kind = torch.float64 if self.strikes and self.kind == "dtype" else torch.float32
        if not (self.strikes and self.kind == "skipped_reduce"):
            dist.all_reduce(torch.zeros(5, dtype=kind), group=first)
        dist.all_reduce(torch.zeros(5), group=second)

    def everybody(self, batch: Tensor) -> None:
        match self.kind:
            case "nan":
                loss = (batch * float("nan")).mean()
                if not torch.isfinite(loss):
                    raise FloatingPointError(f"loss is {loss.item()} at step {self.now}")
            case "all_raise":
                raise ValueError(f"unknown schedule 'cosin' at step {self.now}")
            case "uneven_batch":
                raise ValueError(
                    f"global batch size 10 is not divisible by {dist.get_world_size()}"
                )
            case "no_cuda":
                batch.to("cuda")
            case "skipped_branch" if not self.is_struck:
                dist.all_gather_object([None] * dist.get_world_size(), {"loss": 2.5})
            case "object_counts":
                count = 3 if self.is_struck else 1
                dist.broadcast_object_list([{"lr": 0.1}] * count, src=self.source)
            case "watchdog_text" if not self.is_struck:
                abort_later(self.rank)
            case "monitored" if not self.is_struck:
                dist.monitored_barrier(timeout=timedelta(seconds=6))

    def broken(self, batch: Tensor) -> Tensor:
        if (fault := {**FAULTS, **LATER_FAULTS, **RECENT_FAULTS}.get(self.kind)) is not None:
            return fault(self.folder, self.rank, self.model, batch)
        match self.kind:
            case "sleep_data" | "time_out":
                time.sleep(3_600)
            case "lock":
                self.lock.acquire()
                self.lock.acquire()
            case "queue":
                queue.Queue[int]().get()
            case "spin":
                while self.is_struck:
                    batch = batch + 0
            case "interpreter_lock":
                mutex = ctypes.create_string_buffer(64)
                for _ in range(2):  # no signal ends this, as it would end a sleep
                    ctypes.PyDLL(None).pthread_mutex_lock(mutex)
            case "store_wait":
                dist.distributed_c10d._get_default_store().get("a key that nobody sets")
            case "file_lock":
                path = self.folder / "index.lock"
                held = path.open("w")
                fcntl.flock(held, fcntl.LOCK_EX)
                fcntl.flock(path.open("w"), fcntl.LOCK_EX)
            case "socket":
                server = socket.create_server(("127.0.0.1", 0))
                socket.create_connection(server.getsockname()).recv(1)
            case "stopped":
                os.kill(os.getpid(), signal.SIGSTOP)
            case "kill9" | "oom_killed":
                os.kill(os.getpid(), signal.SIGKILL)
            case "segfault":
                ctypes.string_at(0)
            case "abort":
                os.abort()
            case "exit_zero":
                sys.exit(0)
            case "exit_three":
                os._exit(3)
            case "value_error":
                raise ValueError("optimizer got an invalid learning rate: -1")
            case "index_error":
                return [batch][int(batch.numel())]
            case "key_error":
                return {"input": batch}["inputs"]
            case "bad_json":
                json.loads('{"text": "once upon')
            case "recursion":
                self.broken(batch)
            case "shapes":
                return batch @ torch.zeros(WIDTH + 1, WIDTH)
            case "no_module":
                __import__("flash_attn_interface")
            case "no_file":
                Path("/data/shard-00017.bin").read_bytes()
            case "no_memory":
                resource.setrlimit(resource.RLIMIT_AS, (1 << 33, 1 << 33))
                torch.zeros(1 << 36)
            case "disk_write":
                with open("/dev/full", "w") as file:
                    file.write("x" * (1 << 20))
            case "disk_torch":
                with open("/dev/full", "wb") as full:
                    torch.save(torch.zeros(1 << 20), full)
        return batch


def each_second(folder: Path, rank: int) -> None:
    """Dump each second, by the recipe of the documentation before `record_collectives`."""

    def keep() -> None:
        while True:
            part = folder / f".fr_rank_{rank}"
            part.write_bytes(_dump_fr_trace_json(True, False))
            part.replace(folder / f"fr_rank_{rank}")
            time.sleep(1.0)

    threading.Thread(target=keep, daemon=True).start()


@record
def main() -> None:
    plan = json.loads(Path(__file__).with_name("plan.json").read_text())
    place = Path(plan["folder"])
    job = Job(plan["kind"], plan["struck_ranks"], plan["step"], plan["layout"], place)
    place.mkdir(parents=True, exist_ok=True)
    if plan["recipe"] == "pipe":
        outlast.record_collectives(place)
    else:
        each_second(place, job.rank)
    job.run()


if __name__ == "__main__":
    main()
