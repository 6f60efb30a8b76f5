"""The model is wrapped both by the script and by outlast."""

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import outlast

run = outlast.join()
torch.manual_seed(5)
net = nn.Linear(8, 1)
ddp = DistributedDataParallel(net)
model = run.replicate(ddp)  # FLAW: DistributedDataParallel
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
state = run.state(model=model, optimizer=optimizer)
for step in run.steps(state, until=100):
    with step:
        model(torch.randn(4, 8)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
