"""Shape of a DCGAN: two networks, two optimizers that take turns, samples from fixed noise, and
losses that are collected in lists.
"""

import argparse
import os

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

import outlast

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
    run = outlast.join()
    rank = run.rank
    torch.manual_seed(999)
    net_g, net_d = generator().apply(weights_init), discriminator().apply(weights_init)
    net_g = run.replicate(net_g, broadcast_buffers=False)
    net_d = run.replicate(net_d, broadcast_buffers=False)
    fixed_noise = torch.randn(16, NOISE, 1, 1)
    torch.manual_seed(999 + rank)
    data = Images()
    sampler = outlast.StepSampler(data, batch_size=8 * run.world_size)
    loader = DataLoader(data, batch_sampler=sampler)
    criterion = nn.BCEWithLogitsLoss()
    opt_d = torch.optim.Adam(net_d.parameters(), lr=2e-4, betas=(0.5, 0.999))
    opt_g = torch.optim.Adam(net_g.parameters(), lr=2e-4, betas=(0.5, 0.999))
    kept = run.values(losses_g=[], losses_d=[], images=[])
    state = run.state(net_g=net_g, net_d=net_d, opt_g=opt_g, opt_d=opt_d, loader=loader, kept=kept)
    for step in run.steps(state, until=args.epochs * len(loader)):
        epoch, i = divmod(step.number - 1, len(loader))
        with step:
            real = step.batch
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
            kept.losses_g.append(loss_g.item())
            kept.losses_d.append((real_loss + fake_loss).item())
            if i % 8 == 0 and rank == 0:
                print(
                    f"[{epoch}][{i}] loss_D {kept.losses_d[-1]:.4f} loss_G {kept.losses_g[-1]:.4f}"
                )
            if (step.number - 1) % 20 == 0:
                with torch.no_grad():
                    kept.images.append(net_g.module(fixed_noise))
        if rank == 0 and i == len(loader) - 1:
            torch.save(net_g.state_dict(), os.path.join(args.out, f"netG_{epoch}.pt"))
            torch.save(net_d.state_dict(), os.path.join(args.out, f"netD_{epoch}.pt"))


if __name__ == "__main__":
    main()
