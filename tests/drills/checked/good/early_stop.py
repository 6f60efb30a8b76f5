"""Best loss and patience in run.values, and a break by all ranks at the same step."""

import torch
from torch import nn

import outlast

run = outlast.join()
torch.manual_seed(29)
model = run.replicate(nn.Linear(8, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
kept = run.values(best=float("inf"), patience=0, history=[])
state = run.state(model=model, optimizer=optimizer, kept=kept)
for step in run.steps(state, until=1000):
    with step:
        x = torch.randn(16, 8)
        loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        step.log(loss=loss.detach(), reduce="mean")
        improved = loss.item() < kept.best
        kept.best = min(kept.best, loss.item())
        kept.patience = 0 if improved else kept.patience + 1
        kept.history = [*kept.history, round(loss.item(), 3)]
    if step.number >= 60:
        break
