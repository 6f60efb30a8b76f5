"""The script calls outlast.join() a second time, as if for another run."""

import torch
from torch import nn

import outlast

run = outlast.join()
torch.manual_seed(6)
model = run.replicate(nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
second = outlast.join()  # FLAW: join
state = second.state(model=model, optimizer=optimizer)
for step in second.steps(state, until=100):
    with step:
        model(torch.randn(4, 8)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
