"""A small training under DDP with short steps, for drills about the surroundings of a run.

Each rank prints `digest RANK HEX` and `over RANK` at its end, and appends "RANK STEP PID" to
$DRILL_COMMITS at each commit. Its places for strikes: start, forward, after (after the last step),
exit (in the interpreter's own clean-up).

    --tangle    where the second generation restores its state, all ranks but rank 0 enter a
                collective that rank 0 does not, so that all wait for each other without end
    --log       each step logs its loss and its number
"""

from __future__ import annotations

import argparse
import atexit
import time

import misdeeds
import strikes
import torch
import torch.distributed as dist
import torch.nn.functional as F
from commits import note_commit, note_digest
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

import outlast
from outlast.runtime.worker.communication import ddp


class Numbers(Dataset[tuple[Tensor, Tensor]]):
    def __len__(self) -> int:
        return 1024

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        noise = torch.Generator().manual_seed(index)
        return torch.randn(16, generator=noise), torch.randn(4, generator=noise)


def tangle(run: outlast.Run) -> None:
    """Let the ranks of the second generation enter different collectives, as a bug would."""
    freeze = ddp.freeze_buckets

    def frozen(wrapped: DistributedDataParallel) -> str:
        if run.generation == 2 and run.rank > 0:
            dist.all_reduce(torch.zeros(1))
        return freeze(wrapped)

    ddp.freeze_buckets = frozen


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--step-s", type=float, default=0.02)
    parser.add_argument("--build-s", type=float, default=0.0)
    parser.add_argument("--tangle", action="store_true")
    parser.add_argument("--log", action="store_true")
    parser.add_argument("--loaders", type=int, default=0)
    parser.add_argument("--dropout", type=float, default=0.1)
    args = parser.parse_args()
    strikes.also.update(misdeeds.ALL)
    strikes.strike("start", rank=-1, step=0)
    run = outlast.join()
    if args.tangle:
        tangle(run)
    torch.manual_seed(5)
    time.sleep(args.build_s)  # a large model is built
    between = nn.Dropout(args.dropout) if args.dropout else nn.Identity()
    model = run.replicate(nn.Sequential(nn.Linear(16, 32), between, nn.Linear(32, 4)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    sampler = outlast.StepSampler(Numbers(), batch_size=8)
    loader = DataLoader(Numbers(), batch_sampler=sampler, num_workers=args.loaders)
    state = run.state(model=model, optimizer=optimizer, loader=loader)
    for step in run.steps(state, until=args.steps):
        with step:
            strikes.strike("forward", rank=run.rank, step=step.number)
            inputs, targets = step.batch
            loss = F.mse_loss(model(inputs), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if args.log:
                step.log(loss=loss.detach(), number=step.number, reduce="mean")
            step.on_commit(lambda number=step.number: note_commit(run.rank, number))
        time.sleep(args.step_s)
    rank = run.rank
    print("digest", rank, outlast.digest(model), flush=True)
    note_digest(rank, outlast.digest(model))
    strikes.strike("after", rank=rank, step=args.steps)
    print("over", rank, flush=True)
    atexit.register(strikes.strike, "exit", rank=rank, step=args.steps)


if __name__ == "__main__":
    main()
