"""An adopted loop of nanoGPT's shape: it draws micro-batches by a function of its own, one ahead.

--no-prefetch   draw each batch when its step begins
--own FOLDER    save to a file of the script at each fifth step, and begin from it if it exists
--until N       stop after step N
"""

import argparse
import math
import os
import time

import numpy as np
import torch
from torch import nn

import outlast

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=30)
parser.add_argument("--until", type=int, default=0)
parser.add_argument("--pause", type=float, default=0.02)
parser.add_argument("--no-prefetch", action="store_true")
parser.add_argument("--own", default="")
given = parser.parse_args()

run = outlast.join()
torch.manual_seed(1337 + run.rank)
data = np.random.RandomState(0).randint(0, 64, 4096).astype(np.int64)


def get_batch() -> tuple[torch.Tensor, torch.Tensor]:
    places = torch.randint(len(data) - 9, (4,))
    x = torch.stack([torch.from_numpy(data[i : i + 8]) for i in places])
    y = torch.stack([torch.from_numpy(data[i + 1 : i + 9]) for i in places])
    return x, y


def rate(step: int) -> float:
    return 1e-2 * 0.5 * (1 + math.cos(math.pi * step / given.steps))


def save(number: int) -> None:
    kept = {"model": net.state_dict(), "optimizer": optimizer.state_dict()}
    torch.save({**kept, "done": number}, own + ".new")
    os.replace(own + ".new", own)


net = nn.Sequential(nn.Embedding(64, 32), nn.Dropout(0.0 if given.own else 0.1), nn.Linear(32, 64))
model = run.replicate(net)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
scaler = torch.amp.GradScaler("cpu", enabled=False)
done, own = 0, os.path.join(given.own, "own.pt")
if given.own and os.path.exists(own):
    saved = torch.load(own)
    net.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    done = saved["done"]
    print(f"rank {run.rank} begins behind {done}", flush=True)
batches = run.draw(get_batch)
state = run.state(model=model, optimizer=optimizer, batches=batches)
for step in run.steps(state, first=done + 1, until=given.until or given.steps, accumulate=2):
    for group in optimizer.param_groups:
        group["lr"] = rate(step.number)
    with step:
        for micro, (x, y) in enumerate(step.batches):
            model.require_backward_grad_sync = micro == 1
            with torch.amp.autocast("cpu", dtype=torch.bfloat16):
                logits = model(x)
                loss = nn.functional.cross_entropy(logits.view(-1, 64), y.view(-1)) / 2
            if not given.no_prefetch:
                batches.prefetch()
            scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
        if given.own and run.rank == 0 and step.number % 5 == 0:
            step.on_commit(lambda number=step.number: save(number))
    time.sleep(given.pause)
print(f"digest {run.rank} {outlast.digest(model)}", flush=True)
