"""An optimizer wraps another one, and only the outer one is given to run.state."""

import torch
from torch import nn

import outlast


class Sharp(torch.optim.Optimizer):
    def __init__(self, params):
        super().__init__(params, {})
        self.inner = torch.optim.SGD(self.param_groups, lr=0.1, momentum=0.9)

    @torch.no_grad()
    def climb(self):
        self.before = [p.clone() for p in self.param_groups[0]["params"]]
        for p in self.param_groups[0]["params"]:
            p.add_(p.grad, alpha=0.05)

    @torch.no_grad()
    def step_back_and_down(self):
        for p, before in zip(self.param_groups[0]["params"], self.before, strict=True):
            p.copy_(before)
        self.inner.step()  # FLAW: run.state(...) was not given it


run = outlast.join()
torch.manual_seed(3)
model = run.replicate(nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)))
optimizer = Sharp(model.parameters())
state = run.state(model=model, optimizer=optimizer)
for step in run.steps(state, until=100):
    with step:
        x = torch.randn(4, 4)
        model(x).square().mean().backward()
        optimizer.climb()
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step_back_and_down()
        optimizer.zero_grad()
