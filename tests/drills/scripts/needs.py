"""A training under DDP that makes a group, a mesh or a collective of its own, and uses it in each
step.

--need      what it makes: none, collective, new_group, imported (new_group, imported before
            outlast.join), init_mesh, run_mesh, run_device_mesh, lazy (a new group in step 2, or
            later if it is missing), behind (a new group after the block of step 2, or in a later
            step if it is missing)
--way       main: inside outlast.main; module: at module level
--rank      first: the rank is read before everything else; torch: the same, by torch.distributed,
            and once more after the model; unread: not before the first step
--wrap      before, after: the model is wrapped before the group is made, or after it
--hold      after step 3, wait until this file exists
Its places: made (what it needs exists), forward, before_optimizer, tail. Each rank prints `digest
RANK HEX` at its end, and appends "RANK STEP PID" to $DRILL_COMMITS at each commit.
"""

from __future__ import annotations

import argparse
import os
import sys
import time

import strikes
import torch
import torch.distributed as dist
import torch.nn.functional as F
from commits import note_commit
from torch import Tensor, nn
from torch.distributed import new_group as imported_new_group
from torch.distributed.device_mesh import init_device_mesh

import outlast

WIDTH = 16
LATER = ("none", "lazy", "behind")  # these make nothing before run.steps
now = {"rank": -1, "step": 0}


def strike(place: str) -> None:
    strikes.strike(place, rank=now["rank"], step=now["step"])


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = (
            nn.Linear(WIDTH, WIDTH),
            nn.BatchNorm1d(WIDTH),
            nn.Linear(WIDTH, 4),
        )

    def forward(self, inputs: Tensor) -> Tensor:
        half = self.norm(self.first(inputs))
        strike("forward")
        return self.last(F.dropout(torch.tanh(half), 0.1))


def make(run: outlast.Run, need: str) -> dist.ProcessGroup | None:
    """Make what the script needs before run.steps, or in them. Return the group in which its steps
    communicate.
    """
    if need == "collective":
        dist.all_reduce(torch.ones(1))
        return dist.group.WORLD
    ranks = list(range(run.world_size))
    if need == "imported":
        return imported_new_group(ranks)
    if need == "init_mesh":
        return init_device_mesh("cpu", (run.world_size,)).get_group()
    if need == "run_mesh":
        return run.mesh.get_group()
    if need == "run_device_mesh":
        return run.device_mesh((2, run.world_size // 2), ("rows", "columns")).get_group("columns")
    return dist.new_group(ranks)


def train(run: outlast.Run, args: argparse.Namespace) -> None:
    if args.rank != "unread":
        now.update(rank=dist.get_rank() if args.rank == "torch" else run.rank)
    torch.manual_seed(args.seed)
    group: dist.ProcessGroup | None = None
    if args.wrap == "after" and args.need not in LATER:
        group = make(run, args.need)
    model = run.replicate(Net())
    if args.wrap == "before" and args.need not in LATER:
        group = make(run, args.need)
    strike("made")
    if args.rank == "torch":
        told, true = (
            (now["rank"], dist.get_rank(), dist.get_world_size()),
            (run.rank, run.rank, run.world_size),
        )
        assert told == true, f"torch says {told}, outlast {true}"
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    state = run.state(model=model, optimizer=optimizer)
    for step in run.steps(state, until=args.steps, log_every=0):
        with step:
            now.update(rank=-1 if run._membership.is_spare else run.rank, step=step.number)
            if group is None and step.number >= {"lazy": 2, "behind": 3}.get(
                args.need, args.steps + 1
            ):
                group = make(run, args.need)
            given = torch.Generator().manual_seed(step.number * 10 + now["rank"])
            inputs, targets = (
                torch.randn(8, WIDTH, generator=given),
                torch.randn(8, 4, generator=given),
            )
            loss = F.mse_loss(model(inputs), targets)
            if group is not None:
                weight = torch.tensor(1.0 + now["rank"])
                dist.all_reduce(weight, group=group)
                loss = loss * weight  # so that what the group sums up is in the weights
            loss.backward()
            strike("before_optimizer")
            optimizer.step()
            optimizer.zero_grad()
            strike("tail")
            step.on_commit(lambda number=step.number: note_commit(now["rank"], number))
        while args.hold and step.number == 3 and not os.path.exists(args.hold):
            time.sleep(0.01)
        if args.need == "behind" and step.number == 2 and group is None:
            group = make(run, args.need)
    print(f"digest {run.rank} {outlast.digest(state)}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--seed", type=int, default=3)
    parser.add_argument("--hold", default="", metavar="FILE")
    parser.add_argument("--need", default="new_group")
    parser.add_argument("--way", choices=["main", "module"], default="main")
    parser.add_argument("--rank", choices=["first", "torch", "unread"], default="first")
    parser.add_argument("--wrap", choices=["before", "after"], default="before")
    args = parser.parse_args()
    if args.way == "main":
        outlast.main(lambda run: train(run, args))
    else:
        train(outlast.join(), args)


if __name__ == "__main__":
    sys.exit(main())
