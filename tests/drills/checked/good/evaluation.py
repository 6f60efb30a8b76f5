"""Two epochs, each a call of run.steps, with an evaluation by collectives in run.phase."""

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import outlast

EPOCH = 5


def evaluate(model, held_out):
    model.eval()
    with torch.no_grad():
        total = nn.functional.mse_loss(model(held_out), torch.zeros(len(held_out), 1))
    if dist.is_initialized():
        dist.all_reduce(total)
    model.train()
    return total.item()


def main():
    run = outlast.join()
    torch.manual_seed(31)
    model = run.replicate(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    data = TensorDataset(torch.randn(256, 4), torch.randn(256, 1))
    loader = DataLoader(data, batch_sampler=outlast.StepSampler(data, batch_size=8))
    held_out = torch.randn(32, 4)
    state = run.state(model=model, optimizer=optimizer, loader=loader)
    for epoch in range(4):
        for step in run.steps(state, until=EPOCH * (epoch + 1)):
            with step:
                x, y = step.batch
                nn.functional.mse_loss(model(x), y).backward()
                optimizer.step()
                optimizer.zero_grad()
            if step.number % EPOCH == 0:
                for attempt in run.phase("evaluate"):
                    with attempt:
                        loss = evaluate(model, held_out)
                        if run.rank == 0:
                            print(f"epoch {epoch}: {loss:.4f}")


if __name__ == "__main__":
    main()
