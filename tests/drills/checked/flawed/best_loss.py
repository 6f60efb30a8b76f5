"""The script keeps the best loss so far in a plain variable. It changes no weight, so the state is
the same.
"""

import torch
from torch import nn

import outlast


def train(run):
    torch.manual_seed(1)
    model = run.replicate(nn.Linear(8, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    state = run.state(model=model, optimizer=optimizer)
    best = float("inf")
    for step in run.steps(state, until=100):
        with step:
            x = torch.randn(4, 8) * (9 - min(step.number, 3)) / (1 + step.number % 3)
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        if loss.item() < best:
            best = loss.item()  # FLAW: best
    return best


train(outlast.join())
