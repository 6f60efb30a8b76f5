"""Shape of a DCGAN: two networks, two optimizers that take turns, samples from fixed noise, and
losses that are collected in lists.
"""

import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

NOISE = 8


class Images(Dataset):
    def __len__(self):
        return 256

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        image = torch.rand(1, 8, 8, generator=generator) * 2 - 1
        return image.flip(-1) if torch.rand(()) < 0.5 else image


def weights_init(module):
    if isinstance(module, (nn.Conv2d, nn.ConvTranspose2d)):
        nn.init.normal_(module.weight, 0.0, 0.02)
    elif isinstance(module, nn.BatchNorm2d):
        nn.init.normal_(module.weight, 1.0, 0.02)
        nn.init.zeros_(module.bias)


def generator():
    return nn.Sequential(
        nn.ConvTranspose2d(NOISE, 16, 4, 1, 0, bias=False), nn.BatchNorm2d(16), nn.ReLU(True),
        nn.ConvTranspose2d(16, 1, 4, 2, 1, bias=False), nn.Tanh(),
    )  # fmt: skip  # laid out as such scripts are


def discriminator():
    return nn.Sequential(
        nn.Conv2d(1, 16, 4, 2, 1, bias=False), nn.BatchNorm2d(16), nn.LeakyReLU(0.2, True),
        nn.Conv2d(16, 1, 4, 1, 0, bias=False), nn.Flatten(0),
    )  # fmt: skip  # laid out as such scripts are


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--out", default=".")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(999)
    net_g, net_d = generator().apply(weights_init), discriminator().apply(weights_init)
    net_g = DistributedDataParallel(net_g, broadcast_buffers=False)
    net_d = DistributedDataParallel(net_d, broadcast_buffers=False)
    fixed_noise = torch.randn(16, NOISE, 1, 1)
    torch.manual_seed(999 + rank)
    data = Images()
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=8, sampler=sampler)
    criterion = nn.BCEWithLogitsLoss()
    opt_d = torch.optim.Adam(net_d.parameters(), lr=2e-4, betas=(0.5, 0.999))
    opt_g = torch.optim.Adam(net_g.parameters(), lr=2e-4, betas=(0.5, 0.999))
    losses_g, losses_d, images = [], [], []
    iters = 0
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for i, real in enumerate(loader):
            # maximize log(D(x)) + log(1 - D(G(z)))
            net_d.requires_grad_(True)
            net_d.zero_grad()
            label = torch.full((len(real),), 1.0)
            real_loss = criterion(net_d(real), label)
            real_loss.backward()
            fake = net_g(torch.randn(len(real), NOISE, 1, 1))
            label.fill_(0.0)
            fake_loss = criterion(net_d(fake.detach()), label)
            fake_loss.backward()
            opt_d.step()
            # maximize log(D(G(z)))
            net_d.requires_grad_(False)
            net_g.zero_grad()
            label.fill_(1.0)
            loss_g = criterion(net_d.module(fake), label)
            loss_g.backward()
            opt_g.step()
            losses_g.append(loss_g.item())
            losses_d.append((real_loss + fake_loss).item())
            if i % 8 == 0 and rank == 0:
                print(f"[{epoch}][{i}] loss_D {losses_d[-1]:.4f} loss_G {losses_g[-1]:.4f}")
            if iters % 20 == 0:
                with torch.no_grad():
                    images.append(net_g.module(fixed_noise))
            iters += 1
        if rank == 0:
            torch.save(net_g.state_dict(), os.path.join(args.out, f"netG_{epoch}.pt"))
            torch.save(net_d.state_dict(), os.path.join(args.out, f"netD_{epoch}.pt"))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
