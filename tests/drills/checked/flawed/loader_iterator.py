"""The script advances an iterator over a loader that run.state does not know."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import outlast

run = outlast.join()
torch.manual_seed(12)
data = TensorDataset(torch.randn(400, 8), torch.randn(400, 1))
loader = DataLoader(data, batch_size=4, shuffle=True)
model = run.replicate(nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
state = run.state(model=model, optimizer=optimizer)
batches = iter(loader)  # FLAW: batches
for step in run.steps(state, until=90):
    with step:
        x, y = next(batches)
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
