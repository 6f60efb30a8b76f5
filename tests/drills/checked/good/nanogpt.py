"""Shape of nanoGPT: batches from a token file by an own function, a disabled GradScaler, gradient
accumulation, clipping, a cosine schedule by hand, an estimate of the loss in between. An option
chooses an optimizer that outlast refuses, as in llm.c.
"""

import argparse
import contextlib
import math

import torch
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer

import outlast

parser = argparse.ArgumentParser()
parser.add_argument("--max-iters", type=int, default=5000)
parser.add_argument("--accumulate", type=int, default=2)
parser.add_argument("--zero", action="store_true")
args = parser.parse_args()
block, vocab, width = 16, 64, 32

run = outlast.join()
torch.manual_seed(1337)
tokens = torch.randint(vocab, (4096,), generator=torch.Generator().manual_seed(0))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, 2, batch_first=True, dropout=0.1)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x):
        hidden = self.norm(x)
        x = x + self.attention(hidden, hidden, hidden, need_weights=False)[0]
        return x + self.mlp(x)


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(vocab, width)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.head = nn.Linear(width, vocab, bias=False)

    def forward(self, x, y):
        x = self.embed(x)
        for one in self.blocks:
            x = one(x)
        logits = self.head(x)
        return nn.functional.cross_entropy(logits.flatten(0, 1), y.flatten())


def get_batch():
    at = torch.randint(len(tokens) - block, (4,))
    x = torch.stack([tokens[i : i + block] for i in at])
    y = torch.stack([tokens[i + 1 : i + 1 + block] for i in at])
    return x.to(run.device), y.to(run.device)


def get_lr(it):
    if it < 10:
        return 1e-3 * (it + 1) / 10
    return 1e-4 + 0.5 * (1 + math.cos(math.pi * it / args.max_iters)) * 9e-4


raw = GPT()
model = run.replicate(raw)
decay = [p for p in raw.parameters() if p.dim() >= 2]
rest = [p for p in raw.parameters() if p.dim() < 2]
groups = [{"params": decay, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}]
if args.zero:  # outlast refuses it, and by default it is not used
    optimizer = ZeroRedundancyOptimizer(groups, optimizer_class=torch.optim.AdamW, lr=1e-3)
else:
    optimizer = torch.optim.AdamW(groups, lr=1e-3)
scaler = torch.amp.GradScaler("cpu", enabled=False)
torch.manual_seed(1337 + run.rank)
state = run.state(model=model, optimizer=optimizer, scaler=scaler)
for step in run.steps(state, until=args.max_iters):
    with step:
        for group in optimizer.param_groups:
            group["lr"] = get_lr(step.number)
        for micro in range(args.accumulate):
            last = micro == args.accumulate - 1
            x, y = get_batch()
            with contextlib.nullcontext() if last else model.no_sync():
                loss = model(x, y) / args.accumulate
                scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
    if step.number % 5 == 0 and run.rank == 0:
        print(f"iter {step.number}: loss {loss.item() * args.accumulate:.4f}")
