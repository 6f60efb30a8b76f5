"""The training that `live.py` strikes: a small model under FSDP2, in steps of a chosen length,
until it is told to stop.

The model is trained in earnest; then the step waits until it has lasted `--step-s`, as one waits
for an accelerator. So a step lasts as long on a busy machine as on a quiet one, and what is
measured is the recovery.
"""

from __future__ import annotations

import argparse
import time

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, TensorDataset

import outlast

ENDLESS = 1 << 30
WIDTH, LAYERS = 64, 2
# a rank that waits can be woken this often: outlast interrupts Python, and cannot interrupt a long
# sleep
GLANCE_S = 0.002


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.Tanh(), nn.Linear(2 * WIDTH, WIDTH))
            for _ in range(LAYERS)
        )

    def forward(self, inputs: Tensor) -> Tensor:
        for block in self.blocks:
            inputs = inputs + block(inputs)
        return inputs.square().mean()


def wait_until(at_s: float) -> None:
    while (left_s := at_s - time.monotonic()) > 0:
        time.sleep(min(left_s, GLANCE_S))


def train(run: outlast.Run, args: argparse.Namespace) -> None:
    torch.manual_seed(0)
    model = Net()
    fully_shard(model, mesh=run.mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    data = TensorDataset(torch.randn(4096, WIDTH, generator=torch.Generator().manual_seed(0)))
    loader = DataLoader(
        data, batch_sampler=outlast.StepSampler(data, batch_size=2 * run.world_size, seed=0)
    )
    state = run.state(model=model, optimizer=optimizer, loader=loader)
    for step in run.steps(state, until=ENDLESS, log_every=0):
        with step:
            over_s = time.monotonic() + args.step_s
            loss = model(step.batch[0])
            wait_until(over_s)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()


def main() -> None:
    parser = argparse.ArgumentParser(description="Train in steps of a chosen length.")
    parser.add_argument(
        "--step-s", type=float, default=0.05, help="seconds until the backward begins"
    )
    args = parser.parse_args()
    outlast.main(lambda run: train(run, args))


if __name__ == "__main__":
    main()
