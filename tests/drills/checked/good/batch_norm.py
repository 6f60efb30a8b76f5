"""BatchNorm whose statistics differ by rank, noise from NumPy and Python, and a seed by rank."""

import random

import numpy as np
import torch
from torch import nn

import outlast

run = outlast.join()
seed = 17
torch.manual_seed(seed)
net = nn.Sequential(nn.Linear(4, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 2))
model = run.replicate(net, broadcast_buffers=False)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True)
random.seed(seed + run.rank)
np.random.seed(seed + run.rank)
torch.manual_seed(seed + run.rank)
state = run.state(model=model, optimizer=optimizer)
for step in run.steps(state, until=200):
    with step:
        noise = float(np.random.normal()) + random.gauss(0, 1)
        x = torch.randn(16, 4) + noise
        y = torch.randint(2, (16,))
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
