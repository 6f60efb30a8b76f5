"""A small training on GPUs that can be struck at any place: dropout on the device, batch norm,
float16 with a GradScaler under DDP, or FSDP2.

Its places: forward, backward, before_optimizer, tail. Besides those of strikes.py, a strike may do
"oom" (ask for more memory than any GPU has), "assert" (an index that is out of range, which leaves
the process's CUDA context unusable), "assert_later" (the same, without waiting for it) and "spin"
(a kernel that runs for a minute).
Each rank prints `digest RANK HEX` at its end, and appends "RANK STEP PID" to $DRILL_COMMITS at each
commit. Without a GPU it runs on the CPU.
"""

from __future__ import annotations

import argparse
import os
import sys
import time

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS is deterministic with it

import strikes
import torch
import torch.nn.functional as F
from commits import note_commit
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, TensorDataset

import outlast

now = {"rank": -1, "step": 0}


def strike(place: str) -> None:
    strikes.strike(place, rank=now["rank"], step=now["step"])


def ask_for_too_much() -> None:
    torch.empty(1 << 50, dtype=torch.uint8, device="cuda")


def index_out_of_range() -> None:
    torch.arange(4, device="cuda")[torch.tensor([1 << 20], device="cuda")].sum().item()


def index_out_of_range_later() -> None:
    torch.arange(4, device="cuda")[torch.tensor([1 << 20], device="cuda")].sum()


def spin() -> None:
    torch.cuda._sleep(100_000_000_000)
    torch.cuda.synchronize()


strikes.also.update(oom=ask_for_too_much, spin=spin)
strikes.also["assert"] = index_out_of_range
strikes.also["assert_later"] = index_out_of_range_later


class Net(nn.Module):
    def __init__(self, width: int, *, norm: bool) -> None:
        super().__init__()
        self.first = nn.Linear(width, width)
        self.norm = nn.BatchNorm1d(width) if norm else nn.LayerNorm(width)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))
            for _ in range(2)
        )
        self.drop = nn.Dropout(0.1)

    def forward(self, inputs: Tensor) -> Tensor:
        inputs = self.norm(self.first(inputs))
        # A strike counts its visits. If it were compiled into a graph, it would be compiled again
        # at each step.
        compiled = torch.compiler.is_compiling()
        if not compiled:
            strike("forward")
        for block in self.blocks:
            inputs = inputs + self.drop(block(inputs))
        if inputs.requires_grad and not compiled:
            inputs.register_hook(lambda _: strike("backward"))
        return inputs


def train(run: outlast.Run, args: argparse.Namespace) -> None:
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.manual_seed(args.seed)
    model: nn.Module = Net(args.width, norm=args.way == "ddp")
    if args.way == "ddp":
        # torch.compile refuses a first bucket that is larger than the next ones
        model = run.replicate(model, bucket_cap_mb=25 if args.compile else 0.05)
    else:
        model = model.to(run.device)
        for block in model.blocks:
            fully_shard(block, mesh=run.mesh)
        fully_shard(model, mesh=run.mesh)
    if args.compile:
        model.compile()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=args.fused)
    device = run.device.type if args.way == "ddp" and not args.compile else ""
    scaler = torch.amp.GradScaler(device, init_scale=256.0, growth_interval=3) if device else None
    noise = torch.Generator().manual_seed(args.seed)
    data = TensorDataset(torch.randn(256, args.width, generator=noise))
    loader = DataLoader(
        data,
        batch_sampler=outlast.StepSampler(data, batch_size=12, seed=args.seed),
        pin_memory=run.device.type == "cuda",
    )
    state = run.state(model=model, optimizer=optimizer, loader=loader, scaler=scaler)
    for step in run.steps(state, until=args.steps, log_every=0):
        with step:
            now.update(rank=run.rank, step=step.number)
            time.sleep(args.pause)
            inputs = step.batch[0].to(run.device, non_blocking=True)
            with torch.autocast(run.device.type, torch.float16, enabled=scaler is not None):
                loss = F.mse_loss(model(inputs + 0.01 * torch.randn_like(inputs)), inputs)
            if scaler is not None:
                scaler.scale(loss).backward()
                strike("before_optimizer")
                scaler.step(optimizer)
                scaler.update()
            else:
                loss.backward()
                strike("before_optimizer")
                optimizer.step()
            optimizer.zero_grad()
            strike("tail")
            step.log(loss=loss.detach(), reduce="mean")
            step.on_commit(lambda number=step.number: note_commit(now["rank"], number))
    what = state if args.way == "ddp" else model
    print(f"digest {run.rank} {outlast.digest(what)}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--way", choices=["ddp", "fsdp"], default="ddp")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--pause", type=float, default=0.0, help="seconds that each step sleeps")
    parser.add_argument("--seed", type=int, default=3)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--fused", action="store_true")
    args = parser.parse_args()
    if args.way == "fsdp":
        outlast.main(lambda run: train(run, args))
    else:
        train(outlast.join(), args)


if __name__ == "__main__":
    sys.exit(main())
