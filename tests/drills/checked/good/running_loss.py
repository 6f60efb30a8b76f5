"""A running loss and a bar of the script's own, which are shown and decide nothing; an average of
the weights that rank 0 alone keeps; batches of a hand-written sampler, by number.
"""

import torch
from torch import nn

import outlast


class Bar:
    def __init__(self, total):
        self.n, self.total = 0, total

    def update(self, text):
        self.n += 1
        print(f"{self.n}/{self.total} {text}")


def read(number):
    epoch, part = divmod(number, 5)
    order = torch.randperm(40, generator=torch.Generator().manual_seed(epoch))
    mine = order[run.rank :: run.world_size]
    picked = mine[part * 4 : part * 4 + 4]
    return x[picked], y[picked]


run = outlast.join()
torch.manual_seed(6)
x, y = torch.randn(40, 8), torch.randn(40, 1)
model = run.replicate(nn.Linear(8, 1))
ema = torch.optim.swa_utils.AveragedModel(model.module) if run.rank == 0 else None
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
batches = run.draw(read, numbered=True)
state = run.state(model=model, optimizer=optimizer, ema=ema, batches=batches)
bar = Bar(90)
running = 0.0
for step in run.steps(state, until=90):
    if (step.number - 1) % 5 == 0:
        running = 0.0
    with step:
        inputs, targets = step.batch
        loss = nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        running += loss.item()
    if ema is not None:
        ema.update_parameters(model.module)
    bar.update(f"loss {running:.4f}")
