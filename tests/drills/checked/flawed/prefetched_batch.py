"""As in nanoGPT, X and Y of the next batch are drawn after the step that uses the current batch."""

import torch
from torch import nn

import outlast


def get_batch():
    x = torch.randn(4, 8)
    return x, x.sum(1, keepdim=True)


def main():
    run = outlast.join()
    torch.manual_seed(0)
    model = run.replicate(nn.Linear(8, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    torch.manual_seed(100 + run.rank)
    state = run.state(model=model, optimizer=optimizer)
    batch, target = get_batch()
    for step in run.steps(state, until=100):
        with step:
            loss = nn.functional.mse_loss(model(batch), target)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        batch, target = get_batch()  # FLAW: batch


main()
