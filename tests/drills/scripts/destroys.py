"""A script without outlast calls that ends as many do: it destroys its group, then leaves main.

In the last step the interpreter does not release its lock by itself. That happens by chance if the
code after the step takes less than five milliseconds.
"""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    dist.init_process_group("gloo")
    model = DistributedDataParallel(nn.Linear(4, 2))
    optimizer = torch.optim.AdamW(model.parameters())
    for number in range(20):
        if number == 19:
            sys.setswitchinterval(100.0)
        optimizer.zero_grad()
        model(torch.randn(8, 4)).square().mean().backward()
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
