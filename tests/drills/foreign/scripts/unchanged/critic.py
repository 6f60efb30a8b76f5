"""Shape of a WGAN with a gradient penalty: the critic steps in each iteration, and the generator in
each fifth, while the critic is frozen. The generator's optimizer is a Lookahead around another.
"""

import argparse
import os
from collections import defaultdict

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class Lookahead(torch.optim.Optimizer):
    def __init__(self, optimizer, k=5, alpha=0.5):
        self.optimizer, self.k, self.alpha = optimizer, k, alpha
        self.param_groups = optimizer.param_groups
        self.state = defaultdict(dict)
        for group in self.param_groups:
            group["counter"] = 0

    def step(self, closure=None):
        self.optimizer.step()
        for group in self.param_groups:
            if group["counter"] == 0:
                for p in group["params"]:
                    slow = self.state[p].setdefault("slow", p.data.clone())
                    slow += (p.data - slow) * self.alpha
                    p.data.copy_(slow)
            group["counter"] = (group["counter"] + 1) % self.k


def penalty(critic, real, fake):
    part = torch.rand(len(real), 1)
    mixed = (part * real + (1 - part) * fake).requires_grad_(True)
    (gradient,) = torch.autograd.grad(critic(mixed).sum(), mixed, create_graph=True)
    return (gradient.norm(2, dim=1) - 1).square().mean()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--iterations", type=int, default=240)
    parser.add_argument("--out", default=".")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    generator = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2))
    critic = nn.Sequential(nn.Linear(2, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1))
    generator = DistributedDataParallel(generator)
    critic = DistributedDataParallel(critic)
    inner = torch.optim.Adam(generator.parameters(), lr=1e-3, betas=(0.5, 0.9))
    opt_g = Lookahead(inner)
    opt_c = torch.optim.Adam(critic.parameters(), lr=1e-3, betas=(0.5, 0.9))
    torch.manual_seed(rank)
    for iteration in range(1, args.iterations + 1):
        real = torch.randn(8, 2) + 3
        with torch.no_grad():
            fake = generator.module(torch.randn(8, 4))
        loss_c = critic(fake).mean() - critic(real).mean()
        loss_c = loss_c + 10 * penalty(critic.module, real, fake)
        opt_c.zero_grad()
        loss_c.backward()
        opt_c.step()
        if iteration % 5 == 0:
            critic.requires_grad_(False)
            loss_g = -critic.module(generator(torch.randn(8, 4))).mean()
            inner.zero_grad()
            loss_g.backward()
            opt_g.step()
            critic.requires_grad_(True)
        if iteration % 40 == 0 and rank == 0:
            print(f"iteration {iteration} critic {loss_c.item():.4f}", flush=True)
            torch.save(generator.module.state_dict(), os.path.join(args.out, "generator.pt"))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
