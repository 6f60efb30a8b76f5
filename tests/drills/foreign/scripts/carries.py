"""An adopted loop that draws its batch ahead and keeps its best loss, with or without plain
variables.
"""

import sys
import time

import torch
from torch import nn

import outlast

KEEPS = "--keeps" in sys.argv


def get_batch() -> torch.Tensor:
    return torch.randn(8, 16)


run = outlast.join()
torch.manual_seed(1 + run.rank)
model = run.replicate(nn.Linear(16, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
kept = run.values(best=float("inf"), last=None)
state = run.state(model=model, optimizer=optimizer, kept=kept)
X, best = get_batch(), float("inf")
if KEEPS:
    for step in run.steps(state, until=60):
        with step:
            loss = model(get_batch()).square().mean()
            kept.best, kept.last = min(kept.best, loss.item()), step.number
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        time.sleep(0.02)
else:
    for step in run.steps(state, until=60):
        with step:
            loss = model(X).square().mean()
            X = get_batch()
            best = min(best, loss.item())
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        time.sleep(0.02)
print(f"digest {run.rank} {outlast.digest(model)}-{kept.best}-{kept.last}", flush=True)
