"""The script installs a handler for SIGTERM that saves a checkpoint."""

import signal
import sys

import torch
from torch import nn

import outlast

run = outlast.join()
torch.manual_seed(8)
model = run.replicate(nn.Linear(8, 1))


def save_and_leave(number, frame):
    torch.save(model.state_dict(), "last.pt")
    sys.exit(0)


signal.signal(signal.SIGTERM, save_and_leave)  # FLAW: SIGTERM
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
state = run.state(model=model, optimizer=optimizer)
for step in run.steps(state, until=100):
    with step:
        model(torch.randn(4, 8)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
