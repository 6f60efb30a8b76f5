"""A small training under FSDP2 that can be struck at any place.

Its places: setup, forward, backward, before_optimizer, apply (between two parameter groups), tail.

--way       main: inside outlast.main; respawn: at module level, so that all ranks restart after a
            fault
--memory    rank 0 prints at each entry how many bytes its living tensors and its process take

Each rank prints `digest RANK HEX` at its end, and appends "RANK STEP PID" to $DRILL_COMMITS at each
commit.
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
import time

import strikes
import torch
from commits import note_commit
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.utils.data import DataLoader, TensorDataset

import outlast

now = {"rank": -1, "step": 0}


def strike(place: str) -> None:
    strikes.strike(place, rank=now["rank"], step=now["step"])


class Net(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 2 * width), nn.Tanh(), nn.Linear(2 * width, width))
            for _ in range(2)
        )
        self.drop = nn.Dropout(0.1)

    def forward(self, inputs: Tensor) -> Tensor:
        for block in self.blocks:
            inputs = inputs + self.drop(block(inputs))
            strike("forward")
        if inputs.requires_grad:
            inputs.register_hook(lambda _: strike("backward"))
        return inputs.square().mean()


class Optimizer(torch.optim.AdamW):
    """An optimizer with a place between its two parameter groups, where one half of the model is
    new and the other old.
    """

    def _init_group(self, group: dict, *args: object, **kwargs: object) -> bool:
        if group is self.param_groups[-1]:
            strike("apply")
        return super()._init_group(group, *args, **kwargs)


def say_memory() -> None:
    """Print the bytes of all living tensors, the resident bytes, and how often the vault's slots
    are mapped.
    """
    gc.collect()
    storages = {
        local.data_ptr(): local.nbytes()
        for local in (_storage(one) for one in gc.get_objects() if isinstance(one, Tensor))
    }
    tensors = sum(storages.values())
    with open("/proc/self/statm") as file:
        resident = int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    with open("/proc/self/maps") as file:
        maps = sum("/slot-" in line for line in file)
    print(
        f"memory {tensors} {resident} {maps} {len(os.listdir('/proc/self/fd'))}"
        f" {len(os.listdir('/proc/self/task'))}",
        flush=True,
    )


def _storage(tensor: Tensor) -> torch.UntypedStorage:
    return (tensor.to_local() if isinstance(tensor, DTensor) else tensor).untyped_storage()


def train(run: outlast.Run, args: argparse.Namespace) -> None:
    now.update(rank=run.rank, step=0)
    strike("setup")
    if args.memory and run.rank == 0:
        say_memory()
    mesh = (
        run.device_mesh((2, run.world_size // 2), ("replicate", "shard")) if args.hsdp else run.mesh
    )
    torch.manual_seed(args.seed)
    model = Net(args.width)
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    given = list(model.parameters())
    optimizer = Optimizer([{"params": given[:4]}, {"params": given[4:]}], lr=1e-3)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=3, gamma=0.9)
    data = TensorDataset(
        torch.randn(256, args.width, generator=torch.Generator().manual_seed(args.seed))
    )
    sampler = outlast.StepSampler(data, batch_size=args.batch, seed=args.seed)
    loader = DataLoader(data, batch_sampler=sampler)
    state = run.state(model=model, optimizer=optimizer, schedule=schedule, loader=loader)
    for step in run.steps(state, until=args.steps, log_every=0):
        with step:
            now["step"] = step.number
            time.sleep(args.step_s)
            model(step.batch[0]).backward()
            strike("before_optimizer")
            optimizer.step()
            optimizer.zero_grad()
            strike("tail")
            schedule.step()
            step.on_commit(lambda number=step.number: note_commit(now["rank"], number))
    print(f"digest {run.rank} {outlast.digest(model)}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--seed", type=int, default=3)
    parser.add_argument("--step-s", type=float, default=0.0, help="each step sleeps this long")
    parser.add_argument("--way", choices=["main", "respawn"], default="main")
    parser.add_argument("--hsdp", action="store_true")
    parser.add_argument("--memory", action="store_true")
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--batch", type=int, default=4, help="samples of a step, on all ranks")
    args = parser.parse_args()
    if args.way == "main":
        outlast.main(lambda run: train(run, args))
    else:
        train(outlast.join(), args)


if __name__ == "__main__":
    sys.exit(main())
