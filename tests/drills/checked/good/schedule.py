"""Warm-up and cosine by SequentialLR, and checkpoints of the script's own."""

import os
import time

import torch
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, SequentialLR

import outlast

OUT = "out-schedule"
run = outlast.join()
torch.manual_seed(23)
model = run.replicate(nn.Linear(8, 8))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
warm = LinearLR(optimizer, start_factor=0.1, total_iters=4)
cosine = CosineAnnealingLR(optimizer, T_max=100)
scheduler = SequentialLR(optimizer, [warm, cosine], milestones=[4])
state = run.state(model=model, optimizer=optimizer, scheduler=scheduler)
began = time.time()
for step in run.steps(state, until=100):
    t0 = time.time()
    with step:
        x = torch.randn(8, 8)
        loss = (model(x) - x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        scheduler.step()
    dt = time.time() - t0
    if step.number % 3 == 0 and run.rank == 0:
        os.makedirs(OUT, exist_ok=True)
        torch.save(model.state_dict(), os.path.join(OUT, "part.pt"))
        os.replace(os.path.join(OUT, "part.pt"), os.path.join(OUT, "ckpt.pt"))
        print(f"step {step.number} {dt * 1000:.0f} ms, {time.time() - began:.0f} s")
