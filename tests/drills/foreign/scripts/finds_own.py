"""A script that communicates before run.steps only if a file of its own exists.

    finds_own.py FOLDER [--always] [--flat] [--twice]

--always   communicate at every start
--flat     do not give the training to outlast.main
--twice    lose rank 1 once more, later
"""

import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

import outlast

OWN = Path(sys.argv[1], "own")
LATER = Path(sys.argv[1], "later")


def train(run: outlast.Run) -> None:
    torch.manual_seed(0)
    model = run.replicate(nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    if OWN.exists() or "--always" in sys.argv:
        dist.barrier()
    state = run.state(model=model, optimizer=optimizer)
    for step in run.steps(state, until=12):
        with step:
            model(torch.randn(2, 4)).pow(2).mean().backward()
            if step.number == 8 and run.rank == 1 and not OWN.exists():
                OWN.touch()
                os.kill(os.getpid(), 9)
            if step.number == 10 and run.rank == 1 and "--twice" in sys.argv and not LATER.exists():
                LATER.touch()
                os.kill(os.getpid(), 9)
            optimizer.step()
            optimizer.zero_grad()
    print(f"digest {run.rank} {outlast.digest(state, all=True)}", flush=True)


if "--flat" in sys.argv:
    train(outlast.join())
else:
    outlast.main(train)
