"""The script starts a process before outlast.join()."""

import multiprocessing as mp

import torch
from torch import nn

import outlast


def watch():
    return None


helper = mp.Process(target=watch)  # FLAW: processes
helper.start()
run = outlast.join()
torch.manual_seed(7)
model = run.replicate(nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
state = run.state(model=model, optimizer=optimizer)
for step in run.steps(state, until=100):
    with step:
        model(torch.randn(4, 8)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
