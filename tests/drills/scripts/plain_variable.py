"""A training in which a variable of the script decides what comes after a step.

`seen` is set in step 2. It is a plain variable, so a process that replaces a rank later has another
value in it. With `--kept` it is a value of run.values. It decides about a phase after step 6, which
halves the weights. With `--rolled`, every fourth step sets the input of the steps after it. With
`--later`, rank 1 is told to train two steps more than the others.
"""

from __future__ import annotations

import argparse

import strikes
import torch
from commits import note_commit
from torch import nn

import outlast


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--kept", action="store_true")
    parser.add_argument("--rolled", action="store_true")
    parser.add_argument("--later", action="store_true")
    return parser.parse_args()


def main() -> None:
    args = arguments()
    run = outlast.join()
    torch.manual_seed(7)
    model = run.replicate(nn.Linear(16, 16))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    values = run.values(seen=0) if args.kept else argparse.Namespace(seen=0)
    more = {"values": values} if args.kept else {}
    state = run.state(model=model, optimizer=optimizer, **more)
    until = args.steps + (2 if args.later and run.rank == 1 else 0)
    for step in run.steps(state, until=until):
        if not args.rolled or step.number % 4 == 1:
            x = torch.full((4, 16), 0.1 * step.number)
        with step:
            strikes.strike("forward", rank=run.rank, step=step.number)
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
        note_commit(run.rank, step.number)
        if step.number == 2:
            values.seen = 1
        if step.number != 6 or not values.seen:
            continue
        for attempt in run.phase("halve"):
            with attempt, torch.no_grad():
                torch.distributed.all_reduce(torch.ones(1))
                for parameter in model.parameters():
                    parameter.mul_(0.5)
    print(f"digest {run.rank} {outlast.digest(state)}", flush=True)


if __name__ == "__main__":
    main()
