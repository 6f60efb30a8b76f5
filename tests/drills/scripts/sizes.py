"""A small training, for drills that go on with another number of ranks.

--way       ddp; fsdp (FSDP2, in parts of unequal size; one parameter has fewer rows than ranks);
            hsdp (replicas of two shards)
--by-rank   each rank has a random seed of its own
--each N    the global batch has N samples for each rank, and not 12
--own       each rank trains a model of its own, which cannot be divided

Each rank prints `begin RANK STEP DIGEST` where it goes on, and `end RANK STEP DIGEST` at its end,
with the digest of parameters, optimizer and buffers. It also prints `drew RANK STEP NUMBER`, a
random number of each step, and `samples RANK STEP NUMBER ...`, the samples that it was given.
"""

from __future__ import annotations

import argparse

import torch
from commits import note_commit
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, TensorDataset

import outlast


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(3, 5))
        self.first, self.second = nn.Linear(5, 13), nn.Linear(13, 2)
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, numbers: Tensor) -> Tensor:
        self.seen += 1
        return self.second(torch.tanh(self.first(self.table[numbers % 3]))).square().mean()


def train(run: outlast.Run, args: argparse.Namespace) -> None:
    rank = run.rank
    torch.manual_seed(7)
    model: nn.Module = Net()
    if args.own:
        with torch.no_grad():
            model.table.add_(rank)
    elif args.way == "ddp":
        model = run.replicate(model)
    else:
        replicas = (run.world_size // 2, 2)
        mesh = run.mesh
        if args.way == "hsdp":
            mesh = run.device_mesh(replicas, ("replicate", "shard"))
        for part in (model.first, model):
            fully_shard(part, mesh=mesh)
    if args.by_rank:
        torch.manual_seed(7 + rank)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=3, gamma=0.9)
    data = TensorDataset(torch.arange(96))
    size = args.each * run.world_size if args.each else 12
    loader = DataLoader(data, batch_sampler=outlast.StepSampler(data, batch_size=size))
    state = run.state(model=model, optimizer=optimizer, schedule=schedule, loader=loader)
    begun = False
    for step in run.steps(state, until=args.steps, log_every=0):
        if not begun:
            print("begin", rank, step.number - 1, outlast.digest(state), flush=True)
            begun = True
        with step:
            (numbers,) = step.batch
            print("samples", rank, step.number, *numbers.tolist(), flush=True)
            print("drew", rank, step.number, float(torch.rand(())), flush=True)
            model(numbers).backward()
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
            step.on_commit(lambda number=step.number: note_commit(rank, number))
    print("end", rank, args.steps, outlast.digest(state), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--way", choices=["ddp", "fsdp", "hsdp"], default="fsdp")
    parser.add_argument("--by-rank", action="store_true")
    parser.add_argument("--own", action="store_true")
    parser.add_argument("--each", type=int, default=0)
    args = parser.parse_args()
    outlast.main(lambda run: train(run, args))


if __name__ == "__main__":
    main()
