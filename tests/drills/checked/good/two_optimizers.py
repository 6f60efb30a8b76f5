"""A GAN: two models, two optimizers, and a generator of noise that run.state keeps."""

import torch
from torch import nn

import outlast

run = outlast.join()
torch.manual_seed(19)
maker = run.replicate(nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2)))
judge = run.replicate(nn.Sequential(nn.Linear(2, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1)))
opt_maker = torch.optim.Adam(maker.parameters(), lr=2e-4, betas=(0.5, 0.999))
opt_judge = torch.optim.Adam(judge.parameters(), lr=2e-4, betas=(0.5, 0.999))
noise = torch.Generator().manual_seed(100 + run.rank)
state = run.state(maker=maker, judge=judge, opt_maker=opt_maker, opt_judge=opt_judge, noise=noise)
bce = nn.functional.binary_cross_entropy_with_logits
for step in run.steps(state, until=200):
    with step:
        real = torch.randn(8, 2) + 3
        fake = maker(torch.randn(8, 4, generator=noise))
        opt_judge.zero_grad()
        loss_judge = bce(judge(real), torch.ones(8, 1)) + bce(
            judge(fake.detach()), torch.zeros(8, 1)
        )
        loss_judge.backward()
        opt_judge.step()
        opt_maker.zero_grad()
        loss_maker = bce(judge(fake), torch.ones(8, 1))
        loss_maker.backward()
        opt_maker.step()
