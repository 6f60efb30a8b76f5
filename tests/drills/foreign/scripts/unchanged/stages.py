"""Shape of transfer learning in stages: the head alone first, then the whole network with an
optimizer group of its own, larger inputs and smaller batches. When the validation loss gets worse,
the best weights so far are loaded again and the rate is halved.
"""

import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler


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
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    best_file = os.path.join(args.folder, "best.pt")
    torch.manual_seed(0)
    net = Net()
    net.body.requires_grad_(False)
    model = DistributedDataParallel(net)
    optimizer = torch.optim.AdamW(net.head.parameters(), lr=1e-2)
    torch.manual_seed(100 + rank)
    best = float("inf")
    for stage, (size, batch) in enumerate([(8, 32), (12, 16)]):
        if stage == 1:
            net.body.requires_grad_(True)
            model = DistributedDataParallel(net)
            optimizer.add_param_group({"params": net.body.parameters(), "lr": 1e-3})
        data = Images(size)
        sampler = DistributedSampler(data)
        loader = DataLoader(data, batch_size=batch // world, sampler=sampler)
        for epoch in range(args.epochs[stage]):
            sampler.set_epoch(epoch)
            for x, y in loader:
                loss = nn.functional.cross_entropy(model(x), y)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            validation = validate(net)
            if validation < best:
                best = validation
                if rank == 0:
                    torch.save(net.state_dict(), best_file)
                dist.barrier()
            else:
                net.load_state_dict(torch.load(best_file))
                for group in optimizer.param_groups:
                    group["lr"] /= 2
            if rank == 0:
                print(f"stage {stage} epoch {epoch} loss {validation:.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
