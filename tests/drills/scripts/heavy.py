"""A model that is large for its steps: moving its state takes about as long as a step.

Each rank appends "RANK STEP PID" to $DRILL_COMMITS at each commit.
"""

from __future__ import annotations

import argparse

import torch
from commits import note_commit
from torch import nn

import outlast

WIDE = 3000  # two layers of it, and AdamW, make 216 MB of state


def main(run: outlast.Run) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, required=True)
    steps = parser.parse_args().steps
    torch.manual_seed(0)
    model = run.replicate(nn.Sequential(nn.Linear(WIDE, WIDE), nn.Linear(WIDE, WIDE)))
    optimizer = torch.optim.AdamW(model.parameters())
    state = run.state(model=model, optimizer=optimizer)
    for step in run.steps(state, until=steps):
        with step:
            model(torch.ones(2, WIDE)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            step.on_commit(lambda number=step.number: note_commit(run.rank, number))


if __name__ == "__main__":
    outlast.main(main)
