"""A healthy training with everything that looks like a hang: run by `healthy.py` under `outlast
run`.

Sequences of uneven length (one in forty is twenty times as long), evaluation of which rank 0 has
the larger part, checkpoints by outlast, a loss that is compiled again for new lengths, garbage
collections over a large heap, a loader that now and then takes its time.
"""

from __future__ import annotations

import argparse
import gc
import random
import time

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

import outlast

WIDTH, CLASSES = 96, 16


class Sequences(Dataset[tuple[Tensor, Tensor]]):
    """Sequences with lengths drawn by index: some are very long, and some take a while to read."""

    def __len__(self) -> int:
        return 1 << 20

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        chance = random.Random(index)
        length = chance.choice((16, 24, 32)) * (20 if chance.random() < 1 / 40 else 1)
        if chance.random() < 1 / 200:
            time.sleep(chance.uniform(0.2, 1.5))  # a slow read
        noise = torch.Generator().manual_seed(index)
        return torch.randn(length, WIDTH, generator=noise), torch.randint(
            CLASSES, (length,), generator=noise
        )


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, batch_first=True)
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x))


def loss_of(given: Tensor, wanted: Tensor) -> Tensor:
    return F.cross_entropy(given.flatten(0, 1), wanted.flatten())


class Litter:
    """Cycles that only a full collection finds."""

    def __init__(self) -> None:
        self.mine = self
        self.held = [[number] for number in range(200)]


def main() -> None:
    parser = argparse.ArgumentParser(description="Train in good health.")
    parser.add_argument("--steps", type=int, default=1 << 30)
    parser.add_argument("--evaluate-every", type=int, default=150)
    parser.add_argument("--collect-every", type=int, default=120)
    parser.add_argument("--compile", default="", help="a backend of torch.compile for the loss")
    args = parser.parse_args()
    run = outlast.join()
    torch.manual_seed(0)
    model = run.replicate(Model())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    data = Sequences()
    loader = DataLoader(
        data,
        batch_sampler=outlast.StepSampler(data, batch_size=run.world_size, seed=1),
        num_workers=1,
    )
    loss_in_use = (
        torch.compile(loss_of, backend=args.compile, dynamic=False) if args.compile else loss_of
    )
    held = [Litter() for _ in range(500)]
    state = run.state(model=model, optimizer=optimizer, loader=loader)
    for step in run.steps(state, until=args.steps):
        with step:
            inputs, targets = (part.to(run.device) for part in step.batch)
            loss = loss_in_use(model(inputs), targets)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            step.log(loss=loss.detach(), reduce="mean")
        held[step.number % len(held)] = Litter()
        if step.number % args.collect_every == args.collect_every - 1:
            gc.collect()
        if step.number % args.evaluate_every == args.evaluate_every - 1:
            for attempt in run.phase("evaluate"):
                with attempt, torch.no_grad():
                    for index in range(40 if run.rank == 0 else 4):  # rank 0 has the larger part
                        model(data[index][0][None])


if __name__ == "__main__":
    main()
