"""A model with tied weights, BatchNorm and a buffer that is not persistent, for ten steps; rank 0
leaves its whole state_dict in a file at the end.

    saves.py FILE [--fsdp]
"""

import sys

import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

import outlast


class Net(nn.Module):
    def __init__(self, width: int = 7) -> None:
        super().__init__()
        self.tokens = nn.Embedding(16, width)
        self.norm = nn.BatchNorm1d(width)
        self.middle = nn.Linear(width, width)
        self.head = nn.Linear(width, 16, bias=False)
        self.head.weight = self.tokens.weight
        self.register_buffer("scale", torch.ones(1), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.middle(self.norm(self.tokens(x)))) * self.scale


def train(run: outlast.Run) -> None:
    torch.manual_seed(0)
    net = Net()
    if "--fsdp" in sys.argv:
        model = fully_shard(net, mesh=run.mesh)
    else:
        model = run.replicate(net)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    batches = run.draw(lambda: torch.randint(16, (8,)))
    state = run.state(model=model, optimizer=optimizer, batches=batches)
    for step in run.steps(state, until=10):
        with step:
            nn.functional.cross_entropy(model(step.batch), step.batch).backward()
            optimizer.step()
            optimizer.zero_grad()
    whole = {
        name: value.full_tensor() if isinstance(value, DTensor) else value
        for name, value in net.state_dict().items()
    }
    if run.rank == 0:
        torch.save(whole, sys.argv[1])


if __name__ == "__main__":
    outlast.main(train)
