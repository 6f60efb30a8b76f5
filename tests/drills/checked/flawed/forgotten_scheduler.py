"""The scheduler is not given to run.state."""

import torch
from torch import nn
from torch.optim.lr_scheduler import ExponentialLR

import outlast


class Trainer:
    def __init__(self, run):
        self.run = run
        self.model = run.replicate(nn.Linear(8, 1))
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.05)
        self.scheduler = ExponentialLR(self.optimizer, 0.9)  # FLAW: scheduler
        self.state = run.state(model=self.model, optimizer=self.optimizer)

    def train(self):
        for step in self.run.steps(self.state, until=100):
            with step:
                self.model(torch.randn(4, 8)).square().mean().backward()
                self.optimizer.step()
                self.optimizer.zero_grad()
                self.scheduler.step()


torch.manual_seed(13)
Trainer(outlast.join()).train()
