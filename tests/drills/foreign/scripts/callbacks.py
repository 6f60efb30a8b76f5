"""Shape of minGPT: a config node, a Trainer class with callbacks and an endless data iterator, a
model that sorts its own parameters into groups, and samples that are drawn every so often.
"""

import os
import time
from collections import defaultdict
from types import SimpleNamespace

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset

import outlast

BLOCK, VOCAB = 12, 16


class SortDataset(Dataset):
    def __init__(self, split):
        self.split = split

    def __len__(self):
        return 512

    def __getitem__(self, index):
        while True:
            numbers = torch.randint(VOCAB, (BLOCK // 2,))
            if hash(tuple(numbers.tolist())) % 4 != (self.split == "train"):
                break
        both = torch.cat([numbers, numbers.sort()[0]])
        wanted = both[1:].clone()
        wanted[: BLOCK // 2 - 1] = -1
        return both[:-1], wanted


class GPT(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCAB, width), nn.Embedding(BLOCK, width)
        self.block = nn.TransformerEncoderLayer(width, 2, 2 * width, 0.1, batch_first=True)
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, VOCAB, bias=False)
        self.register_buffer("mask", torch.full((BLOCK, BLOCK), float("-inf")).triu(1), False)

    def configure_optimizers(self, config):
        named = dict(self.named_parameters())
        groups = [
            {"params": [p for p in named.values() if p.dim() >= 2], "weight_decay": 0.1},
            {"params": [p for p in named.values() if p.dim() < 2], "weight_decay": 0.0},
        ]
        return torch.optim.AdamW(groups, lr=config.learning_rate, betas=(0.9, 0.95))

    def forward(self, x, y=None):
        size = x.shape[1]
        inner = self.tokens(x) + self.places.weight[:size]
        logits = self.head(self.norm(self.block(inner, self.mask[:size, :size])))
        if y is None:
            return logits, None
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), y.flatten(), ignore_index=-1)
        return logits, loss

    @torch.no_grad()
    def generate(self, x, count):
        for _ in range(count):
            chances = self(x)[0][:, -1].softmax(-1)
            x = torch.cat([x, torch.multinomial(chances, 1)], dim=1)
        return x


class Trainer:
    def __init__(self, run, config, model, dataset):
        self.outlast = run
        self.config, self.model, self.dataset = config, model, dataset
        self.callbacks = defaultdict(list)
        self.iter_num, self.iter_time, self.iter_dt = 0, 0.0, 0.0

    def add_callback(self, event, callback):
        self.callbacks[event].append(callback)

    def trigger_callbacks(self, event):
        for callback in self.callbacks[event]:
            callback(self)

    def run(self):
        self.optimizer = self.model.configure_optimizers(self.config)
        model = self.outlast.replicate(self.model)
        sampler = outlast.StepSampler(
            self.dataset, self.config.batch_size * self.outlast.world_size
        )
        loader = DataLoader(self.dataset, batch_sampler=sampler, num_workers=1)
        state = self.outlast.state(
            model=model, optimizer=self.optimizer, loader=loader, kept=self.kept
        )
        model.train()
        self.iter_time = time.time()
        for step in self.outlast.steps(state, until=self.config.max_iters):
            with step:
                x, y = step.batch
                _, self.loss = model(x, y)
                model.zero_grad(set_to_none=True)
                self.loss.backward()
                nn.utils.clip_grad_norm_(model.parameters(), self.config.grad_norm_clip)
                self.optimizer.step()
            self.iter_num = step.number - 1
            for attempt in self.outlast.phase("callbacks"):
                with attempt:
                    self.trigger_callbacks("on_batch_end")
            now = time.time()
            self.iter_dt, self.iter_time = now - self.iter_time, now


def main():
    run = outlast.join()
    rank = run.rank
    torch.manual_seed(3407)
    config = SimpleNamespace(learning_rate=5e-4, batch_size=8, grad_norm_clip=1.0, max_iters=120)
    model = GPT()
    torch.manual_seed(3407 + rank)
    trainer = Trainer(run, config, model, SortDataset("train"))
    held_out = SortDataset("test")
    kept = trainer.kept = run.values(best_score=0.0)

    def batch_end_callback(trainer):
        if trainer.iter_num % 10 == 0 and rank == 0:
            print(f"iter {trainer.iter_num} loss {trainer.loss.item():.4f}", flush=True)
        if trainer.iter_num % 30 == 29:
            model.eval()
            rows = torch.stack([held_out[i][0] for i in range(8)])
            half = BLOCK // 2
            found = model.generate(rows[:, :half], half)[:, half:]
            right = (found == rows[:, :half].sort()[0]).float().mean()
            dist.all_reduce(right)
            if right.item() > kept.best_score:
                kept.best_score = right.item()
                if rank == 0:
                    torch.save(model.state_dict(), os.path.join(".", "model.pt"))
            model.train()

    trainer.add_callback("on_batch_end", batch_end_callback)
    trainer.run()


if __name__ == "__main__":
    main()
