"""A half-adopted script: it calls outlast, and does by itself what outlast would do."""

import argparse
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

import outlast

parser = argparse.ArgumentParser()
parser.add_argument("how", choices=["ddp", "bare", "twice", "before", "after"])
parser.add_argument("--steps", type=int, default=60)
given = parser.parse_args()
if given.how == "before":
    dist.init_process_group("gloo")
run = outlast.join()
if given.how == "after":
    dist.init_process_group("gloo")
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1))
model = DistributedDataParallel(net)
if given.how == "twice":
    model = run.replicate(model)
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
data = TensorDataset(torch.randn(1024, 16), torch.randn(1024, 1))
loader = DataLoader(data, batch_sampler=outlast.StepSampler(data, batch_size=8))
kept = net if given.how == "bare" else model
state = run.state(model=kept, optimizer=optimizer, loader=loader)
for step in run.steps(state, until=given.steps):
    with step:
        x, y = step.batch
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
    time.sleep(0.02)
print(f"digest {run.rank} {outlast.digest(net)}", flush=True)
