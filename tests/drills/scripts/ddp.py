"""A small training under DDP that can be struck at any place, with dropout, batch norm, a schedule,
and several buckets.

Its places: start, load, forward, backward, micro0.., before_optimizer, apply (between two parameter
groups), tail, evaluate, evaluated (after its collective), phase_over, second_backward. Each rank
prints `digest RANK HEX` at its end, and appends "RANK STEP PID" to $DRILL_COMMITS at each commit.
"""

from __future__ import annotations

import argparse
import sys
import time

import strikes
import torch
import torch.distributed as dist
import torch.nn.functional as F
from commits import note_commit
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

import outlast

WIDTH = 128
# where this process is; the rank is not asked for before the first step, because a spare would park
# too early
now = {"rank": -1, "step": 0}


def strike(place: str) -> None:
    strikes.strike(place, rank=now["rank"], step=now["step"])


class Numbers(Dataset[tuple[Tensor, Tensor]]):
    def __len__(self) -> int:
        return 4096

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        strike("load")
        noise = torch.Generator().manual_seed(index)
        return torch.randn(WIDTH, generator=noise), torch.randn(4, generator=noise)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(
            nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.ReLU(), nn.Dropout(0.1)
        )
        self.middle = nn.Sequential(
            *(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU()) for _ in range(4))
        )
        self.last = nn.Linear(WIDTH, 4)

    def forward(self, inputs: Tensor) -> Tensor:
        half = self.first(inputs)
        strike("forward")
        if half.requires_grad:
            half.register_hook(lambda _: strike("backward"))
        return self.last(self.middle(half))


class Optimizer(torch.optim.AdamW):
    """An optimizer with a place between its two parameter groups, where one half of the model is
    new and the other old.
    """

    def _init_group(self, group: dict, *args: object, **kwargs: object) -> bool:
        if group is self.param_groups[-1]:
            strike("apply")
        return super()._init_group(group, *args, **kwargs)


def make_optimizer(model: nn.Module, lr: float) -> Optimizer:
    given = list(model.parameters())
    return Optimizer([{"params": given[:4]}, {"params": given[4:]}], lr=lr)


def train_simply(
    args: argparse.Namespace,
    model: nn.Module,
    optimizer: Optimizer,
    scaler: torch.amp.GradScaler | None,
    step: outlast.Step,
) -> Tensor:
    batches = step.batches
    for number, (inputs, targets) in enumerate(batches):
        strike(f"micro{number}")
        loss = F.mse_loss(model(inputs), targets) / len(batches)
        if scaler is not None:
            if step.number in args.overflow:
                loss = loss * float("inf")
            loss = scaler.scale(loss)
        loss.backward()
    strike("before_optimizer")
    if scaler is not None:
        scaler.step(optimizer)
        scaler.update()
    else:
        optimizer.step()
    return loss.detach()


def train_adversaries(
    model: nn.Module,
    critic: nn.Module,
    optimizer: Optimizer,
    critic_optimizer: Optimizer,
    step: outlast.Step,
) -> Tensor:
    """Train the critic first, then the model against the critic that has just learned."""
    inputs, targets = step.batch
    F.mse_loss(critic(model.module(inputs).detach().repeat(1, WIDTH // 4)), targets).backward()
    critic_optimizer.step()
    critic_optimizer.zero_grad()
    strike("second_backward")
    loss = critic.module(model(inputs).repeat(1, WIDTH // 4)).square().mean()
    loss.backward()
    critic_optimizer.zero_grad()
    optimizer.step()
    return loss.detach()


def evaluate(run: outlast.Run, model: nn.Module, step: int) -> None:
    """Run work between steps that communicates."""
    for attempt in run.phase("evaluate"):
        with attempt:
            with torch.no_grad():
                model.eval()
                loss = model.module(torch.ones(8, WIDTH)).mean()
                strike("evaluate")
                dist.all_reduce(loss)
                strike("evaluated")
                noise = torch.rand(1)  # a phase may draw random numbers
                model.train()
            if now["rank"] == 0:
                print(f"evaluated {step} {loss.item():.6f} {noise.item():.6f}", flush=True)
    strike("phase_over")


def train(run: outlast.Run, args: argparse.Namespace) -> None:
    strike("start")
    torch.manual_seed(args.seed)
    if args.collectives:
        dist.all_reduce(torch.ones(1))
    data = Numbers()
    sampler = outlast.StepSampler(data, batch_size=16, seed=args.seed)
    loader = DataLoader(data, batch_sampler=sampler, num_workers=args.loaders)
    model = run.replicate(Net(), bucket_cap_mb=0.05)
    optimizer = make_optimizer(model, 1e-3)
    scaler = (
        torch.amp.GradScaler("cpu", init_scale=256.0, growth_interval=3) if args.scaler else None
    )
    critic = run.replicate(Net(), bucket_cap_mb=0.05) if args.gan else None
    critic_optimizer = make_optimizer(critic, 2e-3) if critic is not None else None
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=3, gamma=0.9)
    state = run.state(
        model=model,
        optimizer=optimizer,
        schedule=schedule,
        loader=loader,
        scaler=scaler,
        critic=critic,
        critic_optimizer=critic_optimizer,
    )
    for step in run.steps(state, until=args.steps, accumulate=args.accumulate, log_every=0):
        with step:
            time.sleep(args.pause)
            now.update(rank=-1 if run._membership.is_spare else run.rank, step=step.number)
            if critic is not None and critic_optimizer is not None:
                loss = train_adversaries(model, critic, optimizer, critic_optimizer, step)
            else:
                loss = train_simply(args, model, optimizer, scaler, step)
            optimizer.zero_grad()
            strike("tail")
            if not args.schedule_behind:
                schedule.step()
            step.log(loss=loss, reduce="mean")
            step.on_commit(lambda number=step.number: note_commit(now["rank"], number))
        if args.schedule_behind:
            schedule.step()
        if args.evaluate and step.number % args.evaluate == 0:
            evaluate(run, model, step.number)
    print(f"digest {run.rank} {outlast.digest(state)}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--pause", type=float, default=0.0, help="seconds that each step sleeps")
    parser.add_argument("--seed", type=int, default=3)
    parser.add_argument("--loaders", type=int, default=0)
    parser.add_argument("--accumulate", type=int, default=1)
    parser.add_argument("--scaler", action="store_true")
    parser.add_argument("--overflow", type=int, nargs="*", default=[])
    parser.add_argument("--gan", action="store_true")
    parser.add_argument("--evaluate", type=int, default=0, metavar="EVERY")
    parser.add_argument(
        "--schedule-behind",
        action="store_true",
        help="the schedule moves on behind the block of its step",
    )
    parser.add_argument(
        "--collectives",
        action="store_true",
        help="one collective of the script's own before run.steps",
    )
    parser.add_argument("--main", action="store_true", help="train inside outlast.main")
    args = parser.parse_args()
    if args.main:
        outlast.main(lambda run: train(run, args))
    else:
        train(outlast.join(), args)


if __name__ == "__main__":
    sys.exit(main())
