"""Shape of contrastive training (CLIP, SimCLR): features are gathered from all ranks, and gradients
flow through that. The rate is set by hand, and the scale is clamped behind the optimizer.
"""

import math

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset

import outlast


class Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        parts = [torch.zeros_like(x) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, x)
        return tuple(parts)

    @staticmethod
    def backward(ctx, *grads):
        whole = torch.stack(grads)
        dist.all_reduce(whole)
        return whole[dist.get_rank()]


class TwoTowers(nn.Module):
    def __init__(self):
        super().__init__()
        self.image = nn.Sequential(nn.Linear(24, 32), nn.ReLU(), nn.Linear(32, 16))
        self.text = nn.Sequential(nn.EmbeddingBag(50, 32), nn.Linear(32, 16))
        self.scale = nn.Parameter(torch.tensor(math.log(1 / 0.07)))

    def forward(self, images, texts):
        return (
            nn.functional.normalize(self.image(images), dim=-1),
            nn.functional.normalize(self.text(texts), dim=-1),
            self.scale.exp(),
        )


class Pairs(Dataset):
    def __init__(self):
        chance = torch.Generator().manual_seed(0)
        self.images = torch.randn(640, 24, generator=chance)
        self.texts = torch.randint(50, (640, 6), generator=chance)

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        return self.images[index] + 0.1 * torch.randn(24), self.texts[index]


class AverageMeter:
    def __init__(self):
        self.total = self.count = 0

    def update(self, value, count):
        self.total += value * count
        self.count += count


def contrast(rank, images, texts, scale):
    all_images, all_texts = torch.cat(Gather.apply(images)), torch.cat(Gather.apply(texts))
    wanted = torch.arange(len(images)) + len(images) * rank
    by_image, by_text = scale * images @ all_texts.T, scale * texts @ all_images.T
    return (
        nn.functional.cross_entropy(by_image, wanted) + nn.functional.cross_entropy(by_text, wanted)
    ) / 2


def main():
    run = outlast.join()
    torch.manual_seed(run.rank)
    model = run.replicate(TwoTowers())
    weights = [one for one in model.parameters() if one.ndim > 1]
    others = [one for one in model.parameters() if one.ndim <= 1]
    optimizer = torch.optim.AdamW(
        [{"params": others, "weight_decay": 0.0}, {"params": weights, "weight_decay": 0.2}],
        betas=(0.9, 0.98),
    )
    data = Pairs()
    sampler = outlast.StepSampler(data, batch_size=16 * run.world_size)
    loader = DataLoader(data, batch_sampler=sampler, num_workers=1)
    losses, scales = AverageMeter(), AverageMeter()
    state = run.state(model=model, optimizer=optimizer, loader=loader)
    for step in run.steps(state, until=2000):
        for group in optimizer.param_groups:
            group["lr"] = 1e-3 * min(1.0, step.number / 10)
        with step:
            images, texts = step.batch
            optimizer.zero_grad()
            images, texts, scale = model(images, texts)
            loss = contrast(run.rank, images, texts, scale)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            with torch.no_grad():
                model.module.scale.clamp_(0, math.log(100))
        losses.update(loss.item(), len(images))
        scales.update(scale.item(), 1)
        if run.rank == 0 and step.number % 5 == 0:
            print(f"[{step.number}] loss {losses.total / losses.count:.4f}")


if __name__ == "__main__":
    main()
