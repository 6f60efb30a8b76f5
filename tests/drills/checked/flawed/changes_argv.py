"""The script changes sys.argv while it runs. A process that replaces a rank has the old one."""

import sys

import torch
from torch import nn

import outlast

run = outlast.join()
torch.manual_seed(9)
model = run.replicate(nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
state = run.state(model=model, optimizer=optimizer)
for step in run.steps(state, until=100):
    with step:
        scale = 0.5 if "--late" in sys.argv else 1.0
        (scale * model(torch.randn(4, 8)).square().mean()).backward()
        optimizer.step()
        optimizer.zero_grad()
    if step.number == 2:
        sys.argv.append("--late")  # FLAW: sys.argv
