"""A training loop with several optimizers, of the shapes that many scripts have.

    phases.py FOLDER STEPS HOW

first-head  an optimizer trains the head of a network for 25 steps, and then another one all of it
kept        the same, but both optimizers exist from the start
memory      as first-head, with a checkpoint that goes through memory
gan         two optimizers, of two networks, step once each in an iteration

It makes its process group by itself, and writes a checkpoint of its own every tenth step. It knows
nothing of outlast.
"""

import io
import os
import sys
import time

import torch
from torch import nn
from torch.distributed import destroy_process_group, init_process_group
from torch.nn.parallel import DistributedDataParallel

FOLDER, STEPS, HOW = sys.argv[1], int(sys.argv[2]), sys.argv[3]
HEAD_STEPS, EVERY, PAUSE_S = 25, 10, 0.02


def optimizers_at(done: int) -> list[torch.optim.Optimizer]:
    """Return the optimizers that step in the iteration after `done`."""
    if HOW == "gan":
        return both
    if HOW == "kept":
        return [both[done >= HEAD_STEPS]]
    if done in (0, HEAD_STEPS) or not present:
        parameters = raw[2].parameters() if done < HEAD_STEPS else raw.parameters()
        return [torch.optim.AdamW(parameters, lr=1e-3)]
    return present


init_process_group("gloo")
rank = int(os.environ["RANK"])
torch.manual_seed(1 + rank)
raw = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1))
both: list[torch.optim.Optimizer] = []
if HOW == "gan":
    both = [torch.optim.AdamW(raw[at].parameters(), lr=1e-3) for at in (0, 2)]
if HOW == "kept":
    both = [torch.optim.AdamW(part.parameters(), lr=1e-3) for part in (raw[2], raw)]
present: list[torch.optim.Optimizer] = []
done, own = 0, os.path.join(FOLDER, "own.pt")
if os.path.exists(own):
    if HOW == "memory":
        with open(own, "rb") as opened:
            saved = torch.load(io.BytesIO(opened.read()))
    else:
        saved = torch.load(own)
    raw.load_state_dict(saved["model"])
    done = saved["done"]
    present = optimizers_at(done - 1)
    for one, state in zip(present, saved["optimizers"], strict=True):
        one.load_state_dict(state)
print(f"rank {rank} begins behind {done}", flush=True)
model = DistributedDataParallel(raw)
while done < STEPS:
    present = optimizers_at(done)
    for optimizer in present:
        x = torch.randn(8, 16)
        raw.zero_grad()
        nn.functional.mse_loss(model(x), x.sum(1, keepdim=True)).backward()
        optimizer.step()
    done += 1
    if rank == 0 and done % EVERY == 0:
        kept = {"model": raw.state_dict(), "done": done}
        kept["optimizers"] = [one.state_dict() for one in present]
        torch.save(kept, where := io.BytesIO() if HOW == "memory" else own + ".new")
        if isinstance(where, io.BytesIO):
            with open(own + ".new", "wb") as file:
                file.write(where.getvalue())
        os.replace(own + ".new", own)
    if rank == 0:
        print(f"iter {done}", flush=True)
    time.sleep(PAUSE_S)
destroy_process_group()
