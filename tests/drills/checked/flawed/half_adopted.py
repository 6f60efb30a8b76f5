"""The script calls outlast.join(), and then makes a process group of its own."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import outlast

run = outlast.join()
dist.init_process_group("gloo")  # FLAW: init_process_group
torch.manual_seed(0)
model = DistributedDataParallel(nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
state = run.state(model=model, optimizer=optimizer)
for step in run.steps(state, until=100):
    with step:
        model(torch.randn(4, 8)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
