"""Mixed precision by autocast and a GradScaler that is on."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import outlast


def train(run):
    torch.manual_seed(11)
    model = run.replicate(nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1)))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler(run.device.type, init_scale=1024.0, growth_interval=2)
    data = TensorDataset(torch.randn(512, 8), torch.randn(512, 1))
    loader = DataLoader(data, batch_sampler=outlast.StepSampler(data, batch_size=16))
    state = run.state(model=model, optimizer=optimizer, scaler=scaler, loader=loader)
    for step in run.steps(state, until=300):
        with step:
            x, y = step.batch
            with torch.autocast(run.device.type, dtype=torch.bfloat16):
                loss = nn.functional.mse_loss(model(x).float(), y)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()


train(outlast.join())
