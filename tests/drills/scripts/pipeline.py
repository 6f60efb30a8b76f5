"""A pipeline: each rank holds one stage with its own weights, without DDP or distributed tensors.

Its places: setup, forward (each micro-batch), backward, before_optimizer, tail.
--way       main: inside outlast.main; module: at module level
--group     what the stage is given: nothing, the default group, the group of run.mesh, or a new
            group of all ranks
The stage is told its shapes. Otherwise torch runs it once on uninitialized memory in the first step
of each process: batch statistics would be garbage, and random numbers would be drawn that a run
without faults does not draw. Each rank prints `digest RANK HEX` of everything it holds at its end.
"""

from __future__ import annotations

import argparse
import hashlib
import sys

import strikes
import torch
import torch.distributed as dist
import torch.nn.functional as F
from commits import note_commit
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

import outlast

MICRO_BATCHES, ROWS = 4, 16
now = {"rank": -1, "step": 0}


def strike(place: str) -> None:
    strikes.strike(place, rank=now["rank"], step=now["step"])


class Block(nn.Module):
    """One stage.

    Dropout draws random numbers of this rank's own, and the batch norm has statistics of its own.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear, self.norm, self.drop = (
            nn.Linear(width, width),
            nn.BatchNorm1d(width),
            nn.Dropout(0.1),
        )

    def forward(self, inputs: Tensor) -> Tensor:
        strike("forward")
        half = torch.tanh(self.linear(inputs))
        if half.requires_grad:
            half.register_hook(lambda _: strike("backward"))
        return inputs + self.drop(self.norm(half))


def whole_digest(module: nn.Module, optimizer: torch.optim.Optimizer) -> str:
    """Hash what this rank holds: parameters, buffers, optimizer tensors, random state."""
    digest = hashlib.sha256(torch.get_rng_state().numpy().tobytes())
    for name, tensor in module.state_dict().items():
        digest.update(name.encode() + tensor.numpy().tobytes())
    for parameter in module.parameters():
        for key, value in sorted(optimizer.state[parameter].items()):
            digest.update(key.encode() + torch.as_tensor(value).numpy().tobytes())
    return digest.hexdigest()[:16]


def group_for(run: outlast.Run, kind: str) -> dist.ProcessGroup | None:
    if kind == "mesh":
        return run.mesh.get_group()
    if kind == "new":
        return dist.new_group(list(range(run.world_size)))
    return dist.group.WORLD if kind == "world" else None


def train(run: outlast.Run, args: argparse.Namespace) -> None:
    now.update(rank=run.rank, step=0)
    strike("setup")
    group = group_for(run, args.group)
    torch.manual_seed(args.seed + run.rank)  # each rank makes its own stage
    block = Block(args.width)
    shape = (ROWS // MICRO_BATCHES, args.width)
    stage = PipelineStage(
        block,
        run.rank,
        run.world_size,
        run.device,
        group=group,
        input_args=torch.zeros(shape, requires_grad=run.rank > 0),
        output_args=torch.zeros(shape, requires_grad=True),
    )
    kind = ScheduleGPipe if args.schedule == "gpipe" else Schedule1F1B
    schedule = kind(stage, MICRO_BATCHES, loss_fn=F.mse_loss)
    optimizer = torch.optim.AdamW(block.parameters(), lr=1e-3)
    state = run.state(block=block, optimizer=optimizer)
    for step in run.steps(state, until=args.steps, log_every=0):
        with step:
            now["step"] = step.number
            given = torch.Generator().manual_seed(step.number)
            inputs, targets = (torch.randn(ROWS, args.width, generator=given) for _ in range(2))
            losses: list[Tensor] = []
            if run.rank == 0:
                schedule.step(inputs)
            elif run.rank == run.world_size - 1:
                schedule.step(target=targets, losses=losses)
            else:
                schedule.step()
            strike("before_optimizer")
            optimizer.step()
            optimizer.zero_grad()
            strike("tail")
            step.on_commit(lambda number=step.number: note_commit(now["rank"], number))
    print(f"digest {run.rank} {whole_digest(block, optimizer)}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--seed", type=int, default=3)
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--way", choices=["main", "module"], default="main")
    parser.add_argument("--group", choices=["none", "world", "mesh", "new"], default="mesh")
    parser.add_argument("--schedule", choices=["gpipe", "1f1b"], default="gpipe")
    args = parser.parse_args()
    if args.way == "main":
        outlast.main(lambda run: train(run, args))
    else:
        train(outlast.join(), args)


if __name__ == "__main__":
    sys.exit(main())
