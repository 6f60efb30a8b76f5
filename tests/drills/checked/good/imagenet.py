"""Shape of the ImageNet example: convolutions, BatchNorm, loader workers that augment, meters."""

import random

import torch
from torch import nn
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader, Dataset

import outlast


class AverageMeter:
    """Average of what was seen."""

    def __init__(self):
        self.total, self.count = 0.0, 0

    def update(self, value):
        self.total += value
        self.count += 1

    def state_dict(self):
        return {"total": self.total, "count": self.count}

    def load_state_dict(self, state):
        self.total, self.count = state["total"], state["count"]


class Images(Dataset):
    def __len__(self):
        return 512

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        image = torch.randn(3, 8, 8, generator=generator)
        if random.random() < 0.5:
            image = image.flip(-1)
        return image + 0.01 * torch.randn(3, 8, 8), index % 10


def main():
    run = outlast.join()
    torch.manual_seed(3)
    net = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Dropout(0.1),
        nn.Linear(8, 10),
    )
    model = run.replicate(net)
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=1e-4)
    scheduler = StepLR(optimizer, step_size=3, gamma=0.1)
    images = Images()
    sampler = outlast.StepSampler(images, batch_size=8)
    loader = DataLoader(images, batch_sampler=sampler, num_workers=1)
    losses = AverageMeter()
    state = run.state(
        model=model, optimizer=optimizer, scheduler=scheduler, loader=loader, losses=losses
    )
    model.train()
    for step in run.steps(state, until=2000):
        with step:
            images, target = step.batch
            output = model(images)
            loss = criterion(output, target)
            losses.update(loss.item())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()
        if step.number % 4 == 0:
            print(f"[{step.number}] loss {losses.total / losses.count:.4f}")


if __name__ == "__main__":
    main()
