"""Train a tiny model under torchrun, in groups TP x DP, PP x DP or HSDP.

`python train.py settings.json`.

Beside the training: a thread that saves the flight recorder now and then (gloo saves nothing by
itself), stacks of a step that takes too long (`faulthandler.dump_traceback_later`, which needs no
interpreter lock), and one small file that says which step and phase this rank is in.
"""

from __future__ import annotations

import ctypes
import faulthandler
import json
import os
import re
import resource
import socket
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import _dump_fr_trace, _dump_fr_trace_json
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.elastic.multiprocessing.errors import record
from torch.utils.data import DataLoader, Dataset

WIDTH = 16
AXES = {"tp_dp": ("dp", "tp"), "pp_dp": ("pp", "dp"), "hsdp": ("replicate", "shard")}


def replace(path: Path, data: bytes) -> None:
    """Replace the file at once, so that a reader finds the old or the new one, never a part."""
    new = path.with_name(f".{path.name}.new")
    new.write_bytes(data)
    new.rename(path)


class Recorder(threading.Thread):
    """Save the flight recorder every `every_s` seconds."""

    def __init__(self, path: Path, *, as_json: bool, every_s: float) -> None:
        super().__init__(name="recorder", daemon=True)
        self.path, self.as_json, self.every_s = path, as_json, every_s
        self.once = threading.Lock()

    def save(self) -> None:
        with self.once:
            replace(
                self.path,
                bytes(
                    _dump_fr_trace_json(True, False)
                    if self.as_json
                    else _dump_fr_trace(True, True, False)
                ),
            )

    def run(self) -> None:
        while True:
            with suppress(OSError):
                self.save()
            time.sleep(self.every_s)


class Shards(Dataset[Tensor]):
    def __init__(self, rank: int, length: int) -> None:
        self.rank, self.length = rank, length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Tensor:
        return torch.arange(WIDTH, dtype=torch.float32) * (1 + self.rank + index) / 100


class Tokenizer:
    """`notes`: what is known about single records of this rank's shards, by step."""

    def __init__(self, notes: dict[int, dict[str, Any]], at: Path, rank: int) -> None:
        self.notes, self.seen = notes, at / f"seen-{rank}"
        self.lock = threading.Lock()
        self.vocabulary = {f"<{number}>": number for number in range(WIDTH)}

    def note(self, step: int, phase: str) -> dict[str, Any]:
        note = self.notes.get(step, {})
        if not note or note["phase"] != phase:
            return {}
        self.seen.touch()
        return note

    def encode(self, note: dict[str, Any]) -> None:
        kind = note.get("kind")
        if kind == "retry":
            self.fetch(note)
        elif kind == "lock":
            self.reserve()
        elif kind == "remote":
            self.request()
        elif kind == "spin":
            self.balance()
        elif kind == "pack":
            self.pack()
        elif kind == "match":
            self.clean()
        elif kind == "record":
            self.parse(note["record"])

    def fetch(self, note: dict[str, Any]) -> None:
        for attempt in range(1000):
            time.sleep(note.get("backoff_s", 60.0) * (attempt + 1))

    def reserve(self) -> None:
        self.lock.acquire()
        with self.lock:
            self.vocabulary.clear()

    def request(self) -> None:
        near, far = socket.socketpair()
        near.sendall(b"GET shard")
        far.recv(64)
        near.recv(64)

    def balance(self) -> None:
        weights = [1.0] * WIDTH
        while sum(weights) > 0:
            weights = [weight * 1.0 for weight in weights]

    def pack(self) -> None:
        ctypes.PyDLL(None).poll(None, 0, 120_000)

    def clean(self) -> None:
        re.match(r"(\w+\s?)+$", "token " * 12 + "!")

    def parse(self, record: dict[str, Any]) -> int:
        if "text" in record:
            text = json.loads(record["text"])
            return len(text)
        if "bytes" in record:
            return len(bytes.fromhex(record["bytes"]).decode("utf-8"))
        if "token" in record:
            return self.vocabulary[record["token"]]
        if "shape" in record:
            return int(torch.ones(WIDTH).view(record["shape"]).numel())
        length = record["length"]
        return WIDTH // length


class Job:
    def __init__(self, settings: dict[str, Any]) -> None:
        self.settings = settings
        self.rank, self.world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self.at = Path(settings["at"])
        own = settings["ranks"].get(str(self.rank), {})
        self.notes = {int(step): note for step, note in own.items()}
        self.started_s = time.monotonic()
        self.step = 0

    def say(self, text: str) -> None:
        print(f"[rank {self.rank}] {text}", flush=True)

    def phase(self, phase: str) -> None:
        place = {
            "rank": self.rank,
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "step": self.step,
            "phase": phase,
            "time": time.time(),
        }
        replace(self.at / f"rank-{self.rank}.json", json.dumps(place).encode())
        if note := self.tokenizer.note(self.step, phase):
            self.tokenizer.encode(note)

    def join(self) -> None:
        dist.init_process_group("gloo", timeout=timedelta(seconds=self.settings["timeout_s"]))
        names = AXES[self.settings["layout"]]
        self.mesh = init_device_mesh("cpu", tuple(self.settings["mesh"]), mesh_dim_names=names)
        self.groups = {name: self.mesh.get_group(name) for name in names}
        # a mesh gives its groups half an hour, whatever the world has
        for group in self.groups.values():
            dist.distributed_c10d._set_pg_timeout(
                timedelta(seconds=self.settings["timeout_s"]), group
            )
        self.tokenizer = Tokenizer(self.notes, self.at, self.rank)
        given = self.settings["recorder"]
        path = Path(given["folder"]) / given["name"].format(
            rank=self.rank, host=socket.gethostname()
        )
        self.recorder = Recorder(path, as_json=given["json"][self.rank], every_s=given["every_s"])
        self.recorder.save()
        self.recorder.start()
        self.stacks = (Path(self.settings["stacks"]) / f"rank_{self.rank}.txt").open("w")

    def batches(self) -> Iterator[Tensor]:
        workers = self.settings["workers"]
        length = self.settings["steps"]
        for step, note in self.notes.items():
            length = step if note["kind"] == "short" else length
        yield from DataLoader(
            Shards(self.rank, length),
            batch_size=None,
            num_workers=workers,
            prefetch_factor=2 if workers else None,
        )

    # --- a step -----------------------------------------------------------------------------------

    def tensor_parallel(self, x: Tensor) -> Tensor:
        for _ in range(2):
            x = torch.tanh(x)
            dist.all_reduce(x, group=self.groups["tp"])
            x /= self.mesh.size(1)
        self.phase("backward")
        gradient = x * 0.5
        dist.all_reduce(gradient, group=self.groups["tp"])
        return gradient

    def pipeline(self, x: Tensor) -> Tensor:
        stage, stages, width = self.mesh.get_local_rank(0), self.mesh.size(0), self.mesh.size(1)
        before, after = self.rank - width, self.rank + width
        for _ in range(2):
            if stage > 0:
                dist.recv(x, before)
            x = torch.tanh(x)
            if stage < stages - 1:
                dist.send(x, after)
        self.phase("backward")
        gradient = x * 0.5
        for _ in range(2):
            if stage < stages - 1:
                dist.recv(gradient, after)
            if stage > 0:
                dist.send(gradient, before)
        return gradient

    def sharded(self, x: Tensor) -> Tensor:
        group, size = self.groups["shard"], self.mesh.size(1)
        own, whole = x.clone(), torch.empty(WIDTH * size)
        for _ in range(2):
            dist.all_gather_into_tensor(whole, own, group=group)
            own = torch.tanh(own) * whole.mean()
        self.phase("backward")
        dist.all_gather_into_tensor(whole, own, group=group)
        gradient = torch.empty(WIDTH)
        dist.reduce_scatter_tensor(gradient, whole, group=group)
        return gradient

    def gradients(self, gradient: Tensor) -> None:
        dist.all_reduce(
            gradient,
            group=self.groups[
                {"tp_dp": "dp", "pp_dp": "dp", "hsdp": "replicate"}[self.settings["layout"]]
            ],
        )

    def norms(self, gradient: Tensor, width: int) -> Tensor:
        norms = gradient.norm().repeat(width)
        dist.all_reduce(norms)
        return norms

    def losses(self, loss: Tensor) -> Tensor:
        losses = torch.empty(self.world)
        dist.all_gather_into_tensor(losses, loss.view(1))
        return losses

    def update(self, gradient: Tensor) -> float:
        """Sum gradients over the replicas, then their norm and the loss over all ranks."""
        note = self.tokenizer.note(self.step, "update")
        kind, width, loss = note.get("kind"), note.get("width", 4), gradient.mean()
        if kind == "long":
            until_s = time.monotonic() + note["pause_s"]
            while time.monotonic() < until_s:
                loss = loss + gradient.norm() * 0.0
        if kind == "eager":
            self.norms(gradient, width)
            self.gradients(gradient)
            return float(self.losses(loss).mean())
        self.gradients(gradient)
        if kind == "early":
            losses = self.losses(loss)
            self.norms(gradient, width)
        else:
            self.norms(gradient, width)
            losses = self.losses(loss)
        return float(losses.mean())

    def save(self) -> None:
        path = Path(self.settings["checkpoints"]) / f"rank_{self.rank}" / f"step_{self.step}.pt"
        limit = self.tokenizer.note(self.step, "checkpoint").get("limit_bytes")
        if limit:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        state = torch.arange(self.settings["state_bytes"] // 4, dtype=torch.float32)
        if self.settings["plain_save"]:
            with path.open("wb") as file:
                file.write(state.numpy().tobytes())
        else:
            torch.save({"model": state, "step": self.step}, path)

    def train(self) -> None:
        forward = {"tp_dp": self.tensor_parallel, "pp_dp": self.pipeline, "hsdp": self.sharded}[
            self.settings["layout"]
        ]
        batches = self.batches()
        while True:
            if self.step > 1:  # the first ones take their time
                faulthandler.dump_traceback_later(
                    self.settings["stacks_after_s"], repeat=True, file=self.stacks
                )
            self.phase("data")
            batch = next(batches, None)
            if batch is None:
                break
            began_s = time.perf_counter()
            self.phase("forward")
            gradient = forward(batch)
            self.phase("optimizer")
            loss = self.update(gradient)
            self.say(
                f"step {self.step} loss {loss:.5f} time"
                f" {1000 * (time.perf_counter() - began_s):.1f} ms"
            )
            if self.step % self.settings["save_every"] == self.settings["save_every"] - 1:
                self.phase("checkpoint")
                self.save()
            self.step += 1
        self.say(f"end of data after {self.step} steps")
        if self.settings["last_barrier"]:
            self.phase("finish")
            dist.barrier()
        self.recorder.save()
        faulthandler.cancel_dump_traceback_later()


@record
def main() -> None:
    warnings.filterwarnings("ignore", category=FutureWarning, module="torch")
    job = Job(json.loads(Path(sys.argv[1]).read_text()))
    job.say(
        f"pid {os.getpid()} on {socket.gethostname()}, local rank {os.environ['LOCAL_RANK']} of"
        f" {job.world}, torch {torch.__version__}"
    )
    if job.settings["faulthandler"]:
        faulthandler.enable()
    job.join()
    try:
        job.train()
    except BaseException:
        with suppress(OSError):
            job.recorder.save()
        raise
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
