"""Small trainings over meshes of several dimensions, each of which can be struck at any place.

--kind      fsdp-tp    fully_shard over "data", tensor parallelism over "tensor"
            sequence   the same, with activations that are sharded along the sequence
            hsdp-tp    fully_shard over "replicate" and "shard", tensor parallelism over "tensor"
            pipeline   stages over "stage"; gradients are averaged over "data"
            experts    a mixture of experts: all_to_all over "expert", which also splits the data
Its places: setup, forward, backward, before_optimizer, tail. At its end, each rank prints `digest
RANK HEX` of everything it holds, its random state included. It also prints `batches RANK HEX`,
which is the same on ranks that share their data.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
from collections.abc import Callable
from dataclasses import dataclass

import strikes
import torch
import torch.distributed as dist
import torch.nn.functional as F
from commits import note_commit
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.utils.data import DataLoader, TensorDataset

import outlast

WIDTH, LENGTH, BATCH, MICRO_BATCHES = 16, 8, 8, 2
now = {"rank": -1, "step": 0}


def strike(place: str) -> None:
    strikes.strike(place, rank=now["rank"], step=now["step"])


@dataclass
class Seen:
    """A hash of the data that a rank was given to train on, as `run.state` keeps it."""

    text: str = ""

    def add(self, batch: Tensor) -> None:
        whole = self.text.encode() + batch.numpy().tobytes()
        self.text = hashlib.sha256(whole).hexdigest()[:16]

    def state_dict(self) -> dict[str, str]:
        return {"text": self.text}

    def load_state_dict(self, saved: dict[str, str]) -> None:
        self.text = saved["text"]


class Block(nn.Module):
    """A normalisation and two linear layers, with a residual connection around them."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, inputs: Tensor) -> Tensor:
        strike("forward")
        inner = torch.tanh(self.up(self.norm(inputs)))
        if inner.requires_grad:
            inner.register_hook(lambda _: strike("backward"))
        return inputs + self.down(inner)


class Stack(nn.Module):
    """Two blocks between two linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(2))

    def forward(self, inputs: Tensor) -> Tensor:
        inputs = self.first(inputs)
        for block in self.blocks:
            inputs = block(inputs)
        return torch.tanh(self.last(inputs))


@dataclass
class Parts:
    """What a kind of parallelism makes.

    data    the dimensions of the mesh that split the data
    work    the forward and backward passes of one batch
    """

    modules: dict[str, nn.Module]
    data: DeviceMesh
    work: Callable[[Tensor, Tensor], None]


def tensor_parallel(mesh: DeviceMesh, data: DeviceMesh, *, sequence: bool) -> Parts:
    """Split the blocks over "tensor", and shard everything over `data`."""
    model = Stack()
    for block in model.blocks:
        plan = {"up": ColwiseParallel(), "down": RowwiseParallel()}
        if sequence:
            plan = {
                "norm": SequenceParallel(),
                "up": ColwiseParallel(input_layouts=Shard(1)),
                "down": RowwiseParallel(output_layouts=Shard(1)),
            }
        parallelize_module(block, mesh["tensor"], plan)
    if sequence:
        plan = {
            "first": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
            "last": ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate()),
        }
        parallelize_module(model, mesh["tensor"], plan)
    for block in model.blocks:
        fully_shard(block, mesh=data)
    fully_shard(model, mesh=data)

    def work(inputs: Tensor, targets: Tensor) -> None:
        F.mse_loss(model(inputs), targets).backward()

    return Parts({"model": model}, data, work)


def pipeline(mesh: DeviceMesh, rank: int) -> Parts:
    """Put one block on each stage, and add the gradients of the pipelines that do the same work."""
    stages, at = mesh["stage"].size(), mesh.get_local_rank("stage")
    torch.manual_seed(100 + at)
    block = Block()
    rows = BATCH // mesh["data"].size() // MICRO_BATCHES
    shape = (rows, LENGTH, WIDTH)
    stage = PipelineStage(
        block,
        at,
        stages,
        torch.device("cpu"),
        group=mesh.get_group("stage"),
        input_args=torch.zeros(shape, requires_grad=at > 0),
        output_args=torch.zeros(shape, requires_grad=True),
    )
    schedule = Schedule1F1B(stage, MICRO_BATCHES, loss_fn=F.mse_loss)

    def work(inputs: Tensor, targets: Tensor) -> None:
        if at == 0:
            schedule.step(inputs)
        elif at == stages - 1:
            schedule.step(target=targets, losses=[])
        else:
            schedule.step()
        average(block, mesh["data"])

    return Parts({"block": block}, mesh["data"], work)


class Experts(nn.Module):
    """A layer of which each rank of "expert" holds one expert, with a router that all ranks hold.

    Each rank sends the same number of tokens to each expert, so that shapes are known: the tokens
    are ranked by the router's score.
    """

    def __init__(self, mesh: DeviceMesh) -> None:
        super().__init__()
        self.router = nn.Linear(WIDTH, WIDTH)
        torch.manual_seed(200 + mesh.get_local_rank())
        self.expert = Block()
        self._group, self._size = mesh.get_group(), mesh.size()

    def forward(self, inputs: Tensor) -> Tensor:
        tokens = self.router(inputs).flatten(0, 1)
        order = tokens.sum(-1).argsort()
        sent = exchange(tokens[order], self._group)
        back = exchange(self.expert(sent), self._group)
        return torch.zeros_like(back).index_copy(0, order, back).view_as(inputs)


class _Exchange(torch.autograd.Function):
    """An all_to_all of equal parts. Its gradient takes the same way back."""

    @staticmethod
    def forward(ctx: object, tokens: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        received = torch.empty_like(tokens)
        dist.all_to_all_single(received, tokens.contiguous(), group=group)
        return received

    @staticmethod
    def backward(ctx: object, grad: Tensor) -> tuple[Tensor, None]:
        received = torch.empty_like(grad)
        dist.all_to_all_single(received, grad.contiguous(), group=ctx.group)
        return received, None


def exchange(tokens: Tensor, group: dist.ProcessGroup) -> Tensor:
    return _Exchange.apply(tokens, group)


def experts(mesh: DeviceMesh) -> Parts:
    """Give each rank an expert and data of its own. The router is the same on all ranks."""
    model = Experts(mesh["expert"])

    def work(inputs: Tensor, targets: Tensor) -> None:
        F.mse_loss(model(inputs), targets).backward()
        average(model.router, mesh)
        average(model.expert, mesh["data"])

    return Parts({"model": model}, mesh, work)


def average(module: nn.Module, mesh: DeviceMesh) -> None:
    """Average the gradients over all ranks of the mesh, dimension by dimension."""
    for parameter in module.parameters():
        for name in mesh.mesh_dim_names:
            dist.all_reduce(parameter.grad, group=mesh.get_group(name))
        parameter.grad /= mesh.size()


def parts_of(run: outlast.Run, kind: str) -> Parts:
    half = run.world_size // 2
    if kind == "pipeline":
        return pipeline(run.device_mesh((2, half), ("data", "stage")), run.rank)
    if kind == "experts":
        return experts(run.device_mesh((2, half), ("data", "expert")))
    if kind == "hsdp-tp":
        names = ("replicate", "shard", "tensor")
        mesh = run.device_mesh((2, run.world_size // 4, 2), names)
        return tensor_parallel(mesh, mesh["replicate", "shard"], sequence=False)
    mesh = run.device_mesh((half, 2), ("data", "tensor"))
    return tensor_parallel(mesh, mesh["data"], sequence=kind == "sequence")


def whole_digest(modules: dict[str, nn.Module], optimizer: torch.optim.Optimizer) -> str:
    """Hash what this rank holds: parameters, optimizer tensors, random state."""
    digest = hashlib.sha256(torch.get_rng_state().numpy().tobytes())
    for module in modules.values():
        for name, parameter in module.named_parameters():
            held = {"": parameter.detach(), **optimizer.state[parameter]}
            for key, value in sorted(held.items()):
                local = value.to_local() if isinstance(value, DTensor) else torch.as_tensor(value)
                digest.update(f"{name} {key}".encode() + local.numpy().tobytes())
    return digest.hexdigest()[:16]


def train(run: outlast.Run, args: argparse.Namespace) -> None:
    now.update(rank=run.rank, step=0)
    strike("setup")
    torch.manual_seed(args.seed)
    parts = parts_of(run, args.kind)
    given = torch.Generator().manual_seed(args.seed)
    data = TensorDataset(*(torch.randn(64, LENGTH, WIDTH, generator=given) for _ in range(2)))
    sampler = outlast.StepSampler(data, batch_size=BATCH, seed=args.seed, mesh=parts.data)
    loader = DataLoader(data, batch_sampler=sampler)
    parameters = [one for module in parts.modules.values() for one in module.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=1e-3)
    seen = Seen()
    state = run.state(**parts.modules, optimizer=optimizer, loader=loader, seen=seen)
    for step in run.steps(state, until=args.steps, log_every=0):
        with step:
            now["step"] = step.number
            seen.add(step.batch[0])
            parts.work(*step.batch)
            strike("before_optimizer")
            optimizer.step()
            optimizer.zero_grad()
            strike("tail")
            step.on_commit(lambda number=step.number: note_commit(now["rank"], number))
    print(f"digest {run.rank} {whole_digest(parts.modules, optimizer)}", flush=True)
    print(f"batches {run.rank} {seen.text}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    kinds = ["fsdp-tp", "sequence", "hsdp-tp", "pipeline", "experts"]
    parser.add_argument("--kind", choices=kinds, default="fsdp-tp")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--seed", type=int, default=3)
    args = parser.parse_args()
    outlast.main(lambda run: train(run, args))


if __name__ == "__main__":
    sys.exit(main())
