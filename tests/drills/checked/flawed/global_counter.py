"""A function keeps a counter of steps in a global variable, and the learning rate depends on it."""

import torch
from torch import nn

import outlast

updates = 0


def adjust(optimizer):
    global updates
    updates += 1  # FLAW: updates
    for group in optimizer.param_groups:
        group["lr"] = 0.1 / updates


run = outlast.join()
torch.manual_seed(2)
model = run.replicate(nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
state = run.state(model=model, optimizer=optimizer)
for step in run.steps(state, until=100):
    with step:
        loss = model(torch.randn(4, 8)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        adjust(optimizer)
        optimizer.step()
