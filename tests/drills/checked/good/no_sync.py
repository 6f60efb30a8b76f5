"""Gradient accumulation over the micro-batches of a step, with no_sync for all but the last."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import outlast

MICRO = 3
run = outlast.join()
torch.manual_seed(5)
model = run.replicate(nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1)))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
data = TensorDataset(torch.randn(600, 8), torch.randn(600, 1))
loader = DataLoader(data, batch_sampler=outlast.StepSampler(data, batch_size=4))
state = run.state(model=model, optimizer=optimizer, loader=loader)
for step in run.steps(state, until=400, accumulate=MICRO):
    with step:
        total = 0.0
        for number, (x, y) in enumerate(step.batches):
            model.require_backward_grad_sync = number == MICRO - 1
            loss = nn.functional.mse_loss(model(x), y) / MICRO
            loss.backward()
            total += loss.item()
        optimizer.step()
        optimizer.zero_grad()
        step.log(loss=total)
