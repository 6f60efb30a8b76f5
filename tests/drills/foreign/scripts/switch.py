"""An adopted script that still asks its environment whether it is one of several ranks."""

import os
import sys
import time

import torch
from torch import nn

import outlast

EARLY = "--early" in sys.argv
several = EARLY and int(os.environ.get("RANK", -1)) != -1 and "LOCAL_RANK" in os.environ
run = outlast.join()
torch.manual_seed(0)
net = nn.Linear(16, 1)
if several or (not EARLY and os.getenv("RANK") is not None):
    model = run.replicate(net)
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
state = run.state(model=model, optimizer=optimizer)  # a NameError if there is no rank
for step in run.steps(state, until=150):
    with step:
        model(torch.randn(8, 16)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    time.sleep(0.02)
print(f"digest {run.rank} {outlast.digest(net)}", flush=True)
