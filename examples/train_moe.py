"""A mixture of experts under outlast: each rank holds an expert, and tokens travel by all_to_all.

    outlast run --nproc-per-node 4 examples/train_moe.py

The mesh has two groups of two experts. Every rank has batches of its own: both dimensions split the
data. The router is the same on all ranks, an expert is the same on the ranks that stand for it.
The mesh belongs to one process group, so the training stands in a function that is given to
`outlast.main`: after a fault the survivors enter it again, in the same process.

Kill a worker: no step is lost, and each rank's digest at the end is that of a run left alone.
"""

from __future__ import annotations

import argparse
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.utils.data import DataLoader, TensorDataset

import outlast

WIDTH, BATCH = 32, 64


class _Exchange(torch.autograd.Function):
    """all_to_all of equal parts. Its gradient goes the same way back."""

    @staticmethod
    def forward(ctx: Any, tokens: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        received = torch.empty_like(tokens)
        dist.all_to_all_single(received, tokens.contiguous(), group=group)
        return received

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        received = torch.empty_like(grads[0])
        dist.all_to_all_single(received, grads[0].contiguous(), group=ctx.group)
        return received, None


class Mixture(nn.Module):
    """A router that all ranks hold, and the expert of this rank.

    Each expert takes as many tokens as any other ("expert choice"): those with the highest scores
    that are left. So the shapes of what is exchanged are known.
    """

    def __init__(self, mesh: DeviceMesh, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.router, self.head = nn.Linear(WIDTH, mesh.size()), nn.Linear(WIDTH, WIDTH)
        torch.manual_seed(seed + 1 + mesh.get_local_rank())
        self.expert = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )
        self._group, self._experts = mesh.get_group(), mesh.size()

    def forward(self, tokens: Tensor) -> Tensor:
        scores = self.router(tokens).softmax(-1)
        share, free, order = len(tokens) // self._experts, scores.detach().clone(), []
        for expert in range(self._experts):
            taken = free[:, expert].topk(share).indices
            free[taken] = -1.0
            order.append(taken)
        sent = torch.cat(order)
        arrived = _Exchange.apply(tokens[sent], self._group)
        back = _Exchange.apply(self.expert(arrived), self._group)
        weight = scores[sent, torch.arange(self._experts).repeat_interleave(share)]
        mixed = torch.zeros_like(tokens).index_copy(0, sent, back * weight[:, None])
        return self.head(tokens + mixed)


def average(module: nn.Module, mesh: DeviceMesh) -> None:
    """Average the gradients over the ranks of a mesh."""
    for parameter in module.parameters():
        for name in mesh.mesh_dim_names or ():
            dist.all_reduce(parameter.grad, group=mesh.get_group(name))
        parameter.grad /= mesh.size()


def train(run: outlast.Run) -> None:
    parser = argparse.ArgumentParser(description="Train a small mixture of experts.")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    mesh = run.device_mesh((2, run.world_size // 2), ("data", "expert"))
    model = Mixture(mesh["expert"], args.seed).to(run.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    x = torch.randn(1024, WIDTH, generator=torch.Generator().manual_seed(args.seed))
    data = TensorDataset(x, torch.where(x[:, :1] > 0, x.roll(1, dims=1), -x))
    sampler = outlast.StepSampler(data, batch_size=BATCH, seed=args.seed, mesh=mesh)
    loader = DataLoader(data, batch_sampler=sampler)

    state = run.state(model=model, optimizer=optimizer, loader=loader)
    for step in run.steps(state, until=args.steps):
        with step:
            inputs, targets = (part.to(run.device) for part in step.batch)
            loss = F.mse_loss(model(inputs), targets)
            loss.backward()
            for shared in (model.router, model.head):
                average(shared, mesh)
            average(model.expert, mesh["data"])
            optimizer.step()
            optimizer.zero_grad()
            step.log(loss=loss.detach(), reduce="mean")
    print(f"digest {run.rank} {outlast.digest(model)}", flush=True)


if __name__ == "__main__":
    outlast.main(train)
