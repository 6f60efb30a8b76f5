"""A short training whose ranks 0 to 2 do not end when their script is over.

Rank 0 has a thread that is not a daemon, rank 1 a function that was given to atexit, and rank 2 an
object whose destructor waits. Each goes on for `--for-s` seconds. Rank 3 ends at once.
"""

from __future__ import annotations

import argparse
import atexit
import threading
import time
from collections.abc import Callable

import torch
from torch import nn

import outlast


class Held:
    """An object that waits in its destructor."""

    def __init__(self, for_s: float) -> None:
        self.for_s = for_s

    def __del__(self, sleep: Callable[[float], None] = time.sleep) -> None:
        sleep(self.for_s)


def saves(for_s: float) -> None:
    time.sleep(for_s)


parser = argparse.ArgumentParser()
parser.add_argument("--for-s", type=float, required=True)
for_s = parser.parse_args().for_s
run = outlast.join()
model = run.replicate(nn.Linear(2, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in run.steps(run.state(model=model, optimizer=optimizer), until=3):
    with step:
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
if run.rank == 0:
    threading.Thread(target=saves, args=(for_s,), name="saver").start()
elif run.rank == 1:
    atexit.register(saves, for_s)
elif run.rank == 2:
    held = Held(for_s)
print("over", run.rank, flush=True)
