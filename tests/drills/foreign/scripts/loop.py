"""A training loop of the shape that many scripts have which use torchrun's environment as a switch.

It looks for RANK, makes its process group and its DDP by itself, draws the next batch while it
trains on the last one, keeps the best loss in a plain variable, and writes a checkpoint of its own.
It knows nothing of outlast.

--sgd          its optimizer keeps no count of its steps
--weights      its checkpoint's weights are loaded, and its optimizer is not
--handle       its checkpoint is saved and loaded through a file object
--memory       its checkpoint goes through memory
--safetensors  its checkpoint has weights alone, and is a file of safetensors
--target       a second network is set from the model at the start, and after every fifth step
--fresh        it loads no checkpoint
"""

import io
import os
import sys
import time

import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torch.distributed import destroy_process_group, init_process_group
from torch.nn.parallel import DistributedDataParallel

FOLDER, STEPS = sys.argv[1], int(sys.argv[2])
EVERY = int(sys.argv[3]) if len(sys.argv) > 3 else 10
STATELESS, BY_HANDLE = "--sgd" in sys.argv, "--handle" in sys.argv
FROM_MEMORY, SAFE, TARGET = (f"--{one}" in sys.argv for one in ("memory", "safetensors", "target"))
PAUSE_S = 0.02


def get_batch() -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.randn(8, 16)
    return x, x.sum(1, keepdim=True)


distributed = int(os.environ.get("RANK", -1)) != -1
rank = 0
if distributed:
    init_process_group("gloo")
    rank = int(os.environ["RANK"])
torch.manual_seed(1 + rank)
model: nn.Module = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1))
optimizer: torch.optim.Optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
if STATELESS:
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cpu", enabled=False)
done, best = 0, 1e9
own = os.path.join(FOLDER, "own.pt")
if SAFE and os.path.exists(own):
    weights = load_file(own)
    done = int(weights.pop("done"))
    model.load_state_dict(weights)
elif os.path.exists(own) and "--fresh" not in sys.argv:
    if FROM_MEMORY or BY_HANDLE:
        with open(own, "rb") as opened:
            saved = torch.load(io.BytesIO(opened.read()) if FROM_MEMORY else opened)
    else:
        saved = torch.load(own)
    model.load_state_dict(saved["model"])
    if "--weights" not in sys.argv:
        optimizer.load_state_dict(saved["optimizer"])
    done, best = saved["done"], saved["best"]
print(f"rank {rank} begins behind {done}", flush=True)
raw = model
target = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1))
if TARGET:
    target.load_state_dict(raw.state_dict())
if distributed:
    model = DistributedDataParallel(model)
X, Y = get_batch()
while done < STEPS:
    loss = nn.functional.mse_loss(model(X), Y)
    X, Y = get_batch()
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad(set_to_none=True)
    done += 1
    best = min(best, loss.item())
    if TARGET and done % 5 == 0:
        target.load_state_dict(raw.state_dict())
    if rank == 0 and done % EVERY == 0:
        kept = {"model": raw.state_dict(), "optimizer": optimizer.state_dict()}
        kept = {**kept, "done": done, "best": best}
        if SAFE:
            save_file({**raw.state_dict(), "done": torch.tensor(done)}, own + ".new")
        elif FROM_MEMORY:
            torch.save(kept, buffer := io.BytesIO())
            with open(own + ".new", "wb") as file:
                file.write(buffer.getvalue())
        elif BY_HANDLE:
            with open(own + ".new", "wb") as file:
                torch.save(kept, file)
        else:
            torch.save(kept, own + ".new")
        os.replace(own + ".new", own)
    if rank == 0:
        print(f"iter {done}", flush=True)
    time.sleep(PAUSE_S)
print(f"rank {rank} is done", flush=True)
if distributed:
    destroy_process_group()
