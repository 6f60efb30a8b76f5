"""A pipeline under outlast: each rank holds one stage, and data parallelism stands beside it.

    outlast run --nproc-per-node 4 examples/train_pipeline.py

The mesh has two pipelines of two stages. Both pipelines hold the same weights and have batches of
their own. Nobody else holds a stage's copy of random state and optimizer, so each rank seals its
state at each step. The mesh belongs to one process group, so the training stands in a function that
is given to `outlast.main`: after a fault the survivors enter it again, in the same process.

Kill a worker: no step is lost, and each rank's digest at the end is that of a run left alone.
"""

from __future__ import annotations

import argparse

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.utils.data import DataLoader, TensorDataset

import outlast

WIDTH, BATCH, MICRO_BATCHES = 32, 32, 4


class Block(nn.Module):
    """One stage: what comes in has the shape of what goes out."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs + self.down(torch.tanh(self.up(inputs)))


def train(run: outlast.Run) -> None:
    parser = argparse.ArgumentParser(description="Train a small pipeline.")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    mesh = run.device_mesh((2, run.world_size // 2), ("data", "stage"))
    stages, at = mesh["stage"].size(), mesh.get_local_rank("stage")
    torch.manual_seed(args.seed + at)
    block = Block().to(run.device)
    rows = BATCH // mesh["data"].size() // MICRO_BATCHES
    stage = PipelineStage(
        block,
        at,
        stages,
        run.device,
        group=mesh.get_group("stage"),
        # Without shapes torch runs the first step of a process on memory that nobody has written.
        input_args=torch.zeros(rows, WIDTH, requires_grad=at > 0),
        output_args=torch.zeros(rows, WIDTH, requires_grad=True),
    )
    schedule = Schedule1F1B(stage, MICRO_BATCHES, loss_fn=F.mse_loss)
    optimizer = torch.optim.AdamW(block.parameters(), lr=1e-3)
    given = torch.Generator().manual_seed(args.seed)
    x = torch.randn(1024, WIDTH, generator=given)
    data = TensorDataset(x, x.roll(1, dims=1))
    # the stages of one pipeline need the same batch: only "data" splits it
    sampler = outlast.StepSampler(data, batch_size=BATCH, seed=args.seed, mesh=mesh["data"])
    loader = DataLoader(data, batch_sampler=sampler)

    state = run.state(block=block, optimizer=optimizer, loader=loader)
    for step in run.steps(state, until=args.steps):
        with step:
            inputs, targets = (part.to(run.device) for part in step.batch)
            losses: list[Tensor] = []
            if at == 0:
                schedule.step(inputs)
            else:
                schedule.step(target=targets if at == stages - 1 else None, losses=losses)
            for parameter in block.parameters():  # data parallelism, before the optimizer
                dist.all_reduce(parameter.grad, group=mesh.get_group("data"))
                parameter.grad /= mesh["data"].size()
            optimizer.step()
            optimizer.zero_grad()
            mean = torch.stack(losses).mean().detach() if losses else torch.zeros(())
            # all but the last stage say 0: the sum over a pipeline is its loss
            step.log(loss=mean / mesh["data"].size(), reduce="sum")
    print(f"digest {run.rank} {outlast.digest(block)}", flush=True)


if __name__ == "__main__":
    outlast.main(train)
