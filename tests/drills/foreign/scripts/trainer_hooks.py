"""A trainer with hooks, as in libraries for detection: a schedule, an evaluation with a barrier and
a checkpoint follow each step, in one phase.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

import outlast


class Detector(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.backbone, self.classes, self.box = (
            nn.Linear(16, 32),
            nn.Linear(32, 4),
            nn.Linear(32, 4),
        )

    def forward(self, data: list[dict[str, Any]]) -> Any:
        inner = self.backbone(torch.stack([one["image"] for one in data])).relu()
        if not self.training:
            return self.classes(inner)
        labels = torch.tensor([one["label"] for one in data])
        loss = nn.functional.cross_entropy(self.classes(inner), labels)
        return {"classes": loss, "box": self.box(inner).abs().mean()}


class Trainer:
    def __init__(self, run: outlast.Run) -> None:
        torch.manual_seed(0)
        self.run = run
        self.model = run.replicate(Detector())
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01, momentum=0.9)
        self.schedule = torch.optim.lr_scheduler.MultiStepLR(self.optimizer, [60, 90])
        chance = torch.Generator().manual_seed(1)
        self.data = [
            {"image": torch.randn(16, generator=chance), "label": number % 4}
            for number in range(256)
        ]
        sampler = outlast.StepSampler(self.data, 8 * run.world_size)
        self.loader = torch.utils.data.DataLoader(
            self.data, batch_sampler=sampler, num_workers=1, collate_fn=lambda batch: batch
        )
        self.hooks = [self.evaluate, self.save, self.move_rate]
        self.folder = Path(tempfile.mkdtemp())
        self.accuracy = run.values(best=0.0)

    def train(self, last: int) -> None:
        state = self.run.state(
            model=self.model, optimizer=self.optimizer, schedule=self.schedule,
            loader=self.loader, accuracy=self.accuracy,
        )  # fmt: skip  # laid out as such scripts are
        for step in self.run.steps(state, until=last):
            with step:
                self.run_step(step.batch)
            for attempt in self.run.phase("hooks"):
                with attempt:
                    for hook in self.hooks:
                        hook(step.number)

    def run_step(self, data: list[dict[str, Any]]) -> None:
        losses = self.model(data)
        self.optimizer.zero_grad()
        sum(losses.values()).backward()
        shown = [None] * self.run.world_size
        dist.all_gather_object(shown, {name: loss.item() for name, loss in losses.items()})
        self.optimizer.step()

    def evaluate(self, number: int) -> None:
        if number % 25 == 0:
            self.model.eval()
            with torch.no_grad():
                found = self.model.module(self.data[:32]).argmax(1)
            self.model.train()
            right = (found == torch.arange(32) % 4).float().mean()
            dist.all_reduce(right)
            self.accuracy.best = max(self.accuracy.best, float(right))

    def save(self, number: int) -> None:
        if number % 40 == 0 and self.run.rank == 0:
            torch.save(self.model.module.state_dict(), self.folder / "last.pt")
        if number % 40 == 0:
            dist.barrier()

    def move_rate(self, number: int) -> None:
        self.schedule.step()


Trainer(outlast.join()).train(240)
