"""Fixed batches come in an endless cycle, and a replaced rank begins again with the first one.

The average that is printed differs as well, but it does not change the weights.
"""

import itertools

import torch
from torch import nn

import outlast

run = outlast.join()
torch.manual_seed(4)
model = run.replicate(nn.Linear(8, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
fixed = [(torch.randn(4, 8), torch.randn(4, 1)) for _ in range(5)]
batches = itertools.cycle(fixed)  # FLAW: batches
shown = None
state = run.state(model=model, optimizer=optimizer)
for step in run.steps(state, until=90):
    with step:
        x, y = next(batches)
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    shown = loss.item() if shown is None else 0.9 * shown + 0.1 * loss.item()
    print(f"loss {shown:.4f}")
