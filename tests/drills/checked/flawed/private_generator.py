"""Augmentation uses a NumPy generator that run.state does not know."""

import numpy as np
import torch
from torch import nn

import outlast


class Augment:
    def __init__(self, seed):
        self.draws = np.random.default_rng(seed)  # FLAW: draws

    def __call__(self, x):
        return x + float(self.draws.normal())


run = outlast.join()
torch.manual_seed(3)
augment = Augment(run.rank)
model = run.replicate(nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
state = run.state(model=model, optimizer=optimizer)
for step in run.steps(state, until=100):
    with step:
        model(augment(torch.randn(4, 8))).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
