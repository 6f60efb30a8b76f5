"""Shape of transfer learning in stages: the head alone first, then the whole network with an
optimizer group of its own, larger inputs and smaller batches. When the validation loss gets worse,
the best weights so far are loaded again and the rate is halved.
"""

import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import Dataset, default_collate

import outlast


class Images(Dataset):
    def __init__(self, size, count=320, seed=0):
        self.size, self.count, self.seed = size, count, seed

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(1000 * self.seed + index)
        image = torch.randn(1, self.size, self.size, generator=generator) + (index % 4) / 4
        return image + 0.05 * torch.randn(1, self.size, self.size), index % 4


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(2)
        )
        self.head = nn.Linear(32, 4)

    def forward(self, x):
        return self.head(self.body(x).flatten(1))


def validate(model):
    model.eval()
    with torch.no_grad():
        images = Images(8, count=64, seed=1)
        batch = [images[i] for i in range(dist.get_rank(), 64, dist.get_world_size())]
        x, y = torch.stack([one[0] for one in batch]), torch.tensor([one[1] for one in batch])
        loss = nn.functional.cross_entropy(model(x), y)
    dist.all_reduce(loss)
    model.train()
    return loss.item() / dist.get_world_size()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, nargs=2, default=(3, 4))
    parser.add_argument("--folder", default=".")
    args = parser.parse_args()
    run = outlast.join()
    best_file = os.path.join(args.folder, "best.pt")
    torch.manual_seed(0)
    net = Net()
    model = run.replicate(net, find_unused_parameters=True)
    optimizer = torch.optim.AdamW(net.head.parameters(), lr=1e-2)
    torch.manual_seed(100 + run.rank)
    first, second = 320 // 32, 320 // 16
    begin = args.epochs[0] * first

    def read(number):
        stage, part = (0, number % first) if number < begin else (1, (number - begin) % second)
        size, batch = [(8, 32), (12, 16)][stage]
        data = Images(size)
        order = torch.randperm(len(data), generator=torch.Generator().manual_seed(number - part))
        mine = order[part * batch : (part + 1) * batch].tolist()[run.rank :: run.world_size]
        return default_collate([data[i] for i in mine])

    kept = run.values(best=float("inf"))
    batches = run.draw(read, numbered=True)
    state = run.state(model=model, optimizer=optimizer, batches=batches, kept=kept)
    for step in run.steps(state, until=begin + args.epochs[1] * second):
        net.body.requires_grad_(step.number > begin)
        if step.number == begin + 1:
            optimizer.add_param_group({"params": net.body.parameters(), "lr": 1e-3})
        with step:
            x, y = step.batch
            loss = nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        done, per_epoch = (
            (step.number, first) if step.number <= begin else (step.number - begin, second)
        )
        if done % per_epoch == 0:
            for attempt in run.phase("epoch"):
                with attempt:
                    validation = validate(net)
                    if validation < kept.best:
                        kept.best = validation
                        if run.rank == 0:
                            torch.save(net.state_dict(), best_file)
                        dist.barrier()
                    else:
                        net.load_state_dict(torch.load(best_file))
                        for group in optimizer.param_groups:
                            group["lr"] /= 2
                    if run.rank == 0:
                        print(f"step {step.number} loss {validation:.4f}", flush=True)


if __name__ == "__main__":
    main()
