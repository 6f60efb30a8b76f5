"""A small training with state of every kind, which changes at every place. Each rank prints a
digest of everything it holds.

    --model ddp|each|seeded   one model under DDP; one for each rank, equal at first, trained on its
                              own data; seeded by rank
    --ignore                  DDP ignores one layer, which each rank then trains for itself
    --tail, --behind WHAT     what changes after the optimizer inside the block, and after the
                              block: count (the same on all ranks), loss (a meter that differs by
                              rank), draw (random numbers), ema
    --every N                 ... in each N-th step only
    --flip STEP               rank 1 changes one of its weights after that step

Its places: body, before_optimizer, tail (before anything changes there), tail_over, behind,
behind_over.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
from typing import Any

import strikes
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader, TensorDataset

import outlast


class Meter:
    """The mean of the values that it was given."""

    def __init__(self) -> None:
        self.count, self.total = 0, 0.0

    def add(self, value: float) -> None:
        self.count, self.total = self.count + 1, self.total + value

    def state_dict(self) -> dict[str, Any]:
        return {"count": self.count, "total": self.total}

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        self.count, self.total = saved["count"], saved["total"]


class Training:
    def __init__(self, run: outlast.Run, args: argparse.Namespace) -> None:
        self.run, self.args = run, args
        torch.manual_seed(run.rank if args.model == "seeded" else 0)
        self.net = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 4))
        if args.ignore:
            DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(
                self.net, ["0.bias"]
            )
        self.model = run.replicate(self.net) if args.model == "ddp" else self.net
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2)
        self.ema = AveragedModel(self.net, multi_avg_fn=get_ema_multi_avg_fn(0.9))
        self.counter, self.losses = Meter(), Meter()
        noise = torch.Generator().manual_seed(1)
        data = TensorDataset(
            torch.randn(2048, 16, generator=noise), torch.randn(2048, 4, generator=noise)
        )
        loader = DataLoader(data, batch_sampler=outlast.StepSampler(data, batch_size=16))
        torch.manual_seed(100 + run.rank)  # each rank draws its own dropout
        self.state = run.state(
            model=self.model,
            optimizer=self.optimizer,
            loader=loader,
            ema=self.ema,
            counter=self.counter,
            losses=self.losses,
        )

    def move(self, what: list[str], step: int, loss: Tensor) -> None:
        if step % self.args.every:
            return
        for one in what:
            if one == "count":
                self.counter.add(1)
            elif one == "loss":
                self.losses.add(loss.item())
            elif one == "draw":
                torch.rand(3)
            elif one == "ema":
                self.ema.update_parameters(self.net)

    def strike(self, place: str, step: int) -> None:
        strikes.strike(place, rank=self.run.rank, step=step)

    def train(self) -> None:
        for step in self.run.steps(self.state, until=self.args.steps, log_every=0):
            with step:
                inputs, targets = step.batch
                self.strike("body", step.number)
                loss = F.mse_loss(self.model(inputs), targets)
                loss.backward()
                self.strike("before_optimizer", step.number)
                self.optimizer.step()
                self.strike("tail", step.number)
                self.optimizer.zero_grad()
                self.move(self.args.tail, step.number, loss)
                self.strike("tail_over", step.number)
            self.strike("behind", step.number)
            self.move(self.args.behind, step.number, loss)
            if step.number == self.args.flip and self.run.rank == 1:
                with torch.no_grad():
                    self.net[0].weight[0, 0] += 1
            self.strike("behind_over", step.number)

    def digest(self) -> str:
        """Return the digest of everything that this rank holds, its random state included."""
        tensors: dict[str, Tensor] = {
            f"net.{name}": value for name, value in self.net.state_dict().items()
        }
        tensors |= {f"ema.{name}": value for name, value in self.ema.state_dict().items()}
        for number, state in enumerate(self.optimizer.state.values()):
            tensors |= {f"optimizer.{number}.{key}": value for key, value in state.items()}
        words = [
            f"{name} {value.detach().numpy().tobytes().hex()}"
            for name, value in sorted(tensors.items())
        ]
        words += [
            str(self.counter.state_dict()),
            str(self.losses.state_dict()),
            torch.get_rng_state().numpy().tobytes().hex(),
        ]
        return hashlib.sha256("\n".join(words).encode()).hexdigest()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--model", choices=("ddp", "each", "seeded"), default="ddp")
    parser.add_argument("--ignore", action="store_true")
    parser.add_argument("--tail", nargs="*", default=[])
    parser.add_argument("--behind", nargs="*", default=[])
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--flip", type=int, default=-1)
    training = Training(outlast.join(), parser.parse_args())
    training.train()
    print(f"digest {training.run.rank} {training.digest()}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
