"""FSDP2 on the run's mesh, in a function for outlast.main."""

import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, TensorDataset

import outlast


def train(run):
    torch.manual_seed(13)
    net = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 1))
    fully_shard(net[2], mesh=run.mesh)
    model = fully_shard(net, mesh=run.mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    data = TensorDataset(torch.randn(512, 8), torch.randn(512, 1))
    loader = DataLoader(data, batch_sampler=outlast.StepSampler(data, batch_size=8))
    state = run.state(model=model, optimizer=optimizer, loader=loader)
    for step in run.steps(state, until=300):
        with step:
            x, y = step.batch
            loss = nn.functional.mse_loss(model(x), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()


outlast.main(train)
