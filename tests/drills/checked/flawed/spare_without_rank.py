"""The script reads its rank from a copy of the environment, in which a spare has none."""

import os

import torch
from torch import nn

import outlast

environment = dict(os.environ.items())
run = outlast.join()
torch.manual_seed(4)
if int(environment.get("RANK", -1)) != -1:
    seed = 100 + int(environment["RANK"])
model = run.replicate(nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
torch.manual_seed(seed)  # FLAW: spare
state = run.state(model=model, optimizer=optimizer)
for step in run.steps(state, until=100):
    with step:
        model(torch.randn(4, 8)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
