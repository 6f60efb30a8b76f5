"""Two optimizers are called in another order on odd ranks."""

import torch
from torch import nn

import outlast

run = outlast.join()
torch.manual_seed(10)
net = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 1))
model = run.replicate(net)
first = torch.optim.SGD(net[0].parameters(), lr=0.01)
second = torch.optim.Adam(net[1].parameters(), lr=0.01)
state = run.state(model=model, first=first, second=second)
for step in run.steps(state, until=100):
    with step:
        model.zero_grad()
        model(torch.randn(4, 8)).square().mean().backward()
        if run.rank % 2:
            second.step()  # FLAW: order
            first.step()
        else:
            first.step()
            second.step()
