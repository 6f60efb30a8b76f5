"""A small training under DDP in which gradients are zeroed, not dropped, so that an optimizer goes
on moving a parameter without a gradient.

Its places: forward, backward, before_optimizer, tail. `--zero` says where gradients are cleared:
"before" the backward, "after" the optimizer, or "behind" the block. Each rank prints `digest RANK
HEX` at its end, of its own parameters and its own optimizer state.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import sys

import strikes
import torch
import torch.distributed as dist
import torch.nn.functional as F
from commits import note_commit
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

import outlast

now = {"rank": -1, "step": 0}


def strike(place: str) -> None:
    strikes.strike(place, rank=now["rank"], step=now["step"])


class Net(nn.Module):
    """A network whose layer `sometimes`, if it exists, is used in some steps: by all ranks, by the
    first one, or by none.
    """

    def __init__(self, width: int, *, unused: bool) -> None:
        super().__init__()
        self.first = nn.Linear(width, width)
        self.sometimes = nn.Linear(width, width) if unused else None
        self.middle = nn.Sequential(
            *(nn.Sequential(nn.Linear(width, width), nn.ReLU()) for _ in range(4))
        )
        self.last = nn.Linear(width, 4)

    def forward(self, inputs: Tensor, step: int) -> Tensor:
        half = self.first(inputs)
        if self.sometimes is not None and (step % 4 == 1 or (step % 4 == 2 and now["rank"] == 0)):
            half = half + self.sometimes(inputs)
        strike("forward")
        half.register_hook(lambda _: strike("backward"))
        return self.last(self.middle(half))


def make_optimizer(model: nn.Module, name: str) -> torch.optim.Optimizer:
    if name == "sgd":
        return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=0.01)
    return torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1)


def whole_digest(model: nn.Module, optimizer: torch.optim.Optimizer) -> str:
    """Hash what this rank holds: names, parameters and optimizer tensors."""
    digest = hashlib.sha256()
    for name, parameter in model.named_parameters():
        digest.update(name.encode() + parameter.detach().numpy().tobytes())
        for key, value in sorted(optimizer.state[parameter].items()):
            digest.update(key.encode() + torch.as_tensor(value).numpy().tobytes())
    return digest.hexdigest()[:16]


def backward_all(
    args: argparse.Namespace, model: DistributedDataParallel, step: outlast.Step
) -> Tensor:
    """Run forward and backward over the micro-batches; only the last one communicates under
    --no-sync.
    """
    batches = step.batches
    for number, (inputs, targets) in enumerate(batches):
        silent = args.no_sync and number < len(batches) - 1
        with model.no_sync() if silent else contextlib.nullcontext():
            loss = F.mse_loss(model(inputs, step.number), targets) / len(batches)
            loss.backward()
    return loss.detach()


def train(run: outlast.Run, args: argparse.Namespace) -> None:
    torch.manual_seed(args.seed)
    if args.collectives:
        dist.barrier()
    model = run.replicate(
        Net(args.width, unused=args.unused),
        bucket_cap_mb=args.bucket_mb,
        gradient_as_bucket_view=args.view,
        find_unused_parameters=args.unused,
    )
    optimizer = make_optimizer(model, args.optimizer)
    data = TensorDataset(torch.randn(2048, args.width), torch.randn(2048, 4))
    loader = DataLoader(
        data, batch_sampler=outlast.StepSampler(data, batch_size=16, seed=args.seed)
    )
    state = run.state(model=model, optimizer=optimizer, loader=loader)

    def clear(place: str) -> None:
        if args.zero == place:
            optimizer.zero_grad(set_to_none=args.to_none)

    for step in run.steps(state, until=args.steps, accumulate=args.accumulate, log_every=0):
        with step:
            now.update(rank=-1 if run._membership.is_spare else run.rank, step=step.number)
            clear("before")
            loss = backward_all(args, model, step)
            if args.clip:
                nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            strike("before_optimizer")
            optimizer.step()
            clear("after")
            strike("tail")
            step.log(loss=loss, reduce="mean")
            step.on_commit(lambda number=step.number: note_commit(now["rank"], number))
        clear("behind")
    print(f"digest {run.rank} {whole_digest(model.module, optimizer)}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--seed", type=int, default=3)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument(
        "--bucket-mb", type=float, default=0.02, help="so small that there are several buckets"
    )
    parser.add_argument("--view", action="store_true", help="gradient_as_bucket_view")
    parser.add_argument(
        "--unused", action="store_true", help="one layer is used in some steps only"
    )
    parser.add_argument("--to-none", action="store_true", help="zero_grad(set_to_none=True)")
    parser.add_argument("--zero", choices=["before", "after", "behind"], default="after")
    parser.add_argument("--accumulate", type=int, default=1)
    parser.add_argument("--no-sync", action="store_true")
    parser.add_argument("--clip", action="store_true")
    parser.add_argument("--optimizer", choices=["sgd", "adamw"], default="adamw")
    parser.add_argument(
        "--collectives", action="store_true", help="one of the script's own before run.steps"
    )
    train(outlast.join(), parser.parse_args())


if __name__ == "__main__":
    sys.exit(main())
