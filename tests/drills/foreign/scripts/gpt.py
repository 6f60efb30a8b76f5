"""Shape of nanoGPT: settings as globals, batches drawn ahead from a token file, a GradScaler that
is off, accumulation, clipping, a schedule by hand, an estimate of the loss, and a resume from
ckpt.pt.
"""

import math
import os
import sys
import time
from contextlib import nullcontext

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

import outlast

out_dir = "."
eval_interval = 20
eval_iters = 2
log_interval = 10
init_from = "resume" if "--resume" in sys.argv and os.path.exists("ckpt.pt") else "scratch"
accumulation_steps = 4
batch_size = 4
block_size = 16
vocab_size = 64
n_embd = 32
dropout = 0.1
learning_rate = 1e-3
min_lr = 1e-4
warmup_iters = 10
max_iters = 120
grad_clip = 1.0
dtype = "float32"

run = outlast.join()
ddp = int(os.environ.get("RANK", -1)) != -1
if ddp:
    ddp_rank = int(os.environ["RANK"])
    ddp_world_size = int(os.environ["WORLD_SIZE"])
    master_process = ddp_rank == 0
    seed_offset = ddp_rank
    accumulation_steps //= ddp_world_size
else:
    master_process = True
    seed_offset = 0
torch.manual_seed(1337 + seed_offset)
ctx = nullcontext() if dtype == "float32" else torch.autocast("cpu", dtype=torch.bfloat16)

data = {
    "train": torch.randint(vocab_size, (4096,), generator=torch.Generator().manual_seed(0)),
    "val": torch.randint(vocab_size, (1024,), generator=torch.Generator().manual_seed(1)),
}


def get_batch(split):
    ix = torch.randint(len(data[split]) - block_size, (batch_size,))
    x = torch.stack([data[split][i : i + block_size] for i in ix])
    y = torch.stack([data[split][i + 1 : i + 1 + block_size] for i in ix])
    return x, y


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln = nn.LayerNorm(n_embd)
        self.attn = nn.MultiheadAttention(n_embd, 2, dropout, batch_first=True)
        self.mlp = nn.Sequential(
            nn.Linear(n_embd, 4 * n_embd), nn.GELU(), nn.Linear(4 * n_embd, n_embd)
        )

    def forward(self, x):
        inner = self.ln(x)
        x = x + self.attn(inner, inner, inner, need_weights=False)[0]
        return x + self.mlp(x)


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte = nn.Embedding(vocab_size, n_embd)
        self.h = nn.ModuleList([Block() for _ in range(2)])
        self.lm_head = nn.Linear(n_embd, vocab_size, bias=False)

    def forward(self, idx, targets):
        x = self.wte(idx)
        for block in self.h:
            x = block(x)
        logits = self.lm_head(x)
        return logits, F.cross_entropy(logits.view(-1, vocab_size), targets.view(-1))

    def configure_optimizers(self):
        decay = [p for p in self.parameters() if p.dim() >= 2]
        other = [p for p in self.parameters() if p.dim() < 2]
        groups = [
            {"params": decay, "weight_decay": 0.1},
            {"params": other, "weight_decay": 0.0},
        ]
        return torch.optim.AdamW(groups, lr=learning_rate, betas=(0.9, 0.95))


iter_num = 0
best_val_loss = 1e9
model = GPT()
if init_from == "resume":
    checkpoint = torch.load(os.path.join(out_dir, "ckpt.pt"))
    model.load_state_dict(checkpoint["model"])
    iter_num = checkpoint["iter_num"]
    best_val_loss = checkpoint["best_val_loss"]
scaler = torch.amp.GradScaler("cpu", enabled=(dtype == "float16"))
optimizer = model.configure_optimizers()
if init_from == "resume":
    optimizer.load_state_dict(checkpoint["optimizer"])
    checkpoint = None
if ddp:
    model = DistributedDataParallel(model)


@torch.no_grad()
def estimate_loss():
    out = {}
    model.eval()
    for split in ["train", "val"]:
        losses = torch.zeros(eval_iters)
        for k in range(eval_iters):
            x, y = get_batch(split)
            with ctx:
                _, loss = model(x, y)
            losses[k] = loss.item()
        out[split] = losses.mean()
    model.train()
    return out


def get_lr(it):
    if it < warmup_iters:
        return learning_rate * (it + 1) / (warmup_iters + 1)
    coeff = 0.5 * (1.0 + math.cos(math.pi * (it - warmup_iters) / (max_iters - warmup_iters)))
    return min_lr + coeff * (learning_rate - min_lr)


batches = run.draw(lambda: get_batch("train"))
kept = run.values(best_val_loss=best_val_loss)
state = run.state(model=model, optimizer=optimizer, scaler=scaler, batches=batches, kept=kept)
t0 = time.time()
raw_model = model.module if ddp else model
for step in run.steps(state, first=iter_num + 1, until=max_iters, accumulate=accumulation_steps):
    iter_num = step.number - 1
    lr = get_lr(iter_num)
    for param_group in optimizer.param_groups:
        param_group["lr"] = lr
    if iter_num % eval_interval == 0 and master_process:
        losses = estimate_loss()
        print(f"step {iter_num}: train {losses['train']:.4f}, val {losses['val']:.4f}", flush=True)
        if losses["val"] < kept.best_val_loss:
            kept.best_val_loss = losses["val"]
            if iter_num > 0:
                checkpoint = {
                    "model": raw_model.state_dict(),
                    "optimizer": optimizer.state_dict(),
                    "iter_num": iter_num,
                    "best_val_loss": kept.best_val_loss,
                }
                torch.save(checkpoint, os.path.join(out_dir, "ckpt.pt"))
    with step:
        for micro_step, (x, y) in enumerate(step.batches):
            if ddp:
                model.require_backward_grad_sync = micro_step == accumulation_steps - 1
            with ctx:
                logits, loss = model(x, y)
                loss = loss / accumulation_steps
            scaler.scale(loss).backward()
        if grad_clip != 0.0:
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), grad_clip)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
    dt, t0 = time.time() - t0, time.time()
    if iter_num % log_interval == 0 and master_process:
        lossf = loss.item() * accumulation_steps
        print(f"iter {iter_num}: loss {lossf:.4f}, time {dt * 1000:.2f}ms", flush=True)
