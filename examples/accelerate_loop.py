"""A loop with accelerate under outlast: accumulation, clipping, a schedule, an evaluation.

    pip install 'outlast[torch,hf]'
    outlast run --nproc-per-node 2 examples/accelerate_loop.py

Lines with `# outlast` are those that differ from the same loop for `accelerate launch`: eight are
added, four are changed. Kill a worker: no update is lost, and the digest at the end is
that of a run that was left alone.
"""

from __future__ import annotations

import argparse
import time

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import outlast  # outlast


def points(count: int, seed: int) -> TensorDataset:
    x = torch.randn(count, 8, generator=torch.Generator().manual_seed(seed))
    return TensorDataset(x, (x[:, 0] * x[:, 1] > 0).long())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--pause", type=float, default=0.0, help="seconds for each batch")
    given = parser.parse_args()

    run = outlast.join()  # outlast: in front of Accelerator
    accelerator = Accelerator(
        cpu=not torch.cuda.is_available(), gradient_accumulation_steps=2, mixed_precision="bf16"
    )
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 2 * given.steps)
    train, check = points(640, seed=1), points(64, seed=2)
    sampler = outlast.StepSampler(train, batch_size=16 * run.world_size)  # outlast
    loader = DataLoader(train, batch_sampler=sampler)  # outlast: in place of shuffle=True
    parts = model, optimizer, schedule  # outlast: without the loader
    model, optimizer, schedule = accelerator.prepare(*parts)
    state = run.state(model=model, optimizer=optimizer, schedule=schedule, loader=loader)  # outlast
    for step in run.steps(state, until=given.steps, accumulate=2):  # outlast
        with step:  # outlast
            accelerator.step = 0  # outlast: a repeat begins its accumulation anew
            for x, y in step.batches:  # outlast
                time.sleep(given.pause)
                x, y = x.to(accelerator.device), y.to(accelerator.device)
                with accelerator.accumulate(model):
                    with accelerator.autocast():
                        loss = nn.functional.cross_entropy(model(x), y)
                    accelerator.backward(loss)
                    if accelerator.sync_gradients:
                        accelerator.clip_grad_norm_(model.parameters(), 0.5)
                    optimizer.step()
                    schedule.step()
                    optimizer.zero_grad()
        if step.number % 10 == 0:
            for attempt in run.phase("evaluate"):  # outlast: it communicates
                with attempt:  # outlast
                    model.eval()
                    with torch.no_grad():
                        x, y = check[accelerator.process_index :: accelerator.num_processes]
                        right = model(x.to(accelerator.device)).argmax(1).cpu() == y
                    accuracy = accelerator.gather(right.float().to(accelerator.device)).mean()
                    accelerator.print(f"step {step.number}: accuracy {accuracy:.3f}")
                model.train()
    print(f"digest {run.rank} {outlast.digest(model, all=True)}", flush=True)


if __name__ == "__main__":
    main()
