"""A recipe class that shards its model (FSDP2), with activation checkpointing and accumulation."""

from __future__ import annotations

import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    apply_activation_checkpointing,
)
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, TensorDataset

import outlast


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(self.up(x).relu())


class Recipe:
    def __init__(self, run: outlast.Run) -> None:
        self.run = run

    def setup(self) -> None:
        torch.manual_seed(5)
        blocks = [Block(32) for _ in range(3)]
        self.model = nn.Sequential(nn.Embedding(64, 32), *blocks, nn.Linear(32, 64))
        apply_activation_checkpointing(self.model, check_fn=lambda one: isinstance(one, Block))
        for one in self.model[1:4]:
            fully_shard(one, mesh=self.run.mesh)
        fully_shard(self.model, mesh=self.run.mesh)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self.schedule = torch.optim.lr_scheduler.LambdaLR(
            self.optimizer, lambda step: min(1.0, step / 10)
        )
        data = TensorDataset(
            torch.randint(64, (1024, 9), generator=torch.Generator().manual_seed(1))
        )
        sampler = outlast.StepSampler(data, batch_size=8 * self.run.world_size)
        self.loader = DataLoader(data, batch_sampler=sampler)

    def train(self) -> None:
        state = self.run.state(
            model=self.model, optimizer=self.optimizer, schedule=self.schedule, loader=self.loader
        )
        for step in self.run.steps(state, until=240, accumulate=2):
            with step:
                for (ids,) in step.batches:
                    logits = self.model(ids[:, :-1])
                    wanted = ids[:, 1:].flatten()
                    (nn.functional.cross_entropy(logits.flatten(0, 1), wanted) / 2).backward()
                nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
                self.optimizer.step()
                self.optimizer.zero_grad(set_to_none=True)
                self.schedule.step()


def main(run: outlast.Run) -> None:
    recipe = Recipe(run)
    recipe.setup()
    recipe.train()


if __name__ == "__main__":
    outlast.main(main)
