"""A small training job that breaks in one of five ways. It makes no outlast call.

    mkdir incident
    torchrun --standalone --nproc-per-node 4 --log-dir incident/logs --redirects 3 \\
        examples/broken.py sleep incident > incident/torchrun.log 2>&1
    outlast diagnose incident

sleep   rank 2 sleeps in its input while the others wait
shape   rank 1 reduces a tensor of another size
kill    rank 3 is killed by SIGKILL
disk    rank 0 saves to a disk that is full
index   rank 1 asks for a sample that does not exist
"""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import _dump_fr_trace_json

STEPS, BREAKS_AT, RECORD_EVERY_S = 1_000, 40, 1.0


def record(folder: Path, rank: int) -> None:
    """Let a thread write down each second what this rank did last, because gloo's flight recorder
    writes nothing by itself.
    """
    folder.mkdir(parents=True, exist_ok=True)

    def keep() -> None:
        while True:
            part = folder / f".fr_rank_{rank}"
            part.write_bytes(_dump_fr_trace_json(True, False))
            part.replace(folder / f"fr_rank_{rank}")
            time.sleep(RECORD_EVERY_S)

    threading.Thread(target=keep, daemon=True).start()


def break_here(how: str, rank: int, data: torch.Tensor) -> torch.Tensor:
    """Break in this way on the rank that it is about. Return the batch on all others."""
    if how == "sleep" and rank == 2:
        time.sleep(3_600)
    if how == "kill" and rank == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "shape" and rank == 1:
        dist.all_reduce(torch.zeros(3))
    if how == "disk" and rank == 0:
        with open("/dev/full", "wb") as file:  # every write to it says that the disk is full
            torch.save(data, file)
    if how == "index" and rank == 1:
        return [data][int(data.numel())]
    return data


def main(how: str, folder: Path) -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    record(folder / "dumps", rank)
    stacks = open(folder / f"stack_rank_{rank}.txt", "w")  # noqa: SIM115 - as long as the process
    model = nn.Linear(8, 1)
    for step in range(STEPS):
        faulthandler.dump_traceback_later(5, file=stacks)
        data = torch.randn(16, 8)
        if step == BREAKS_AT:
            data = break_here(how, rank, data)
        model(data).square().mean().backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
            parameter.data -= 0.01 * parameter.grad / dist.get_world_size()
        print(f"step {step} done", flush=True)
        time.sleep(0.05)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
