"""The same model under FSDP2 and torchrun, with a DCP checkpoint each step.

A step counts as committed when its checkpoint is in place: the file `newest` names its folder. The
two newest folders are kept.
"""

import argparse
import itertools
import os
import shutil
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from commits import BATCH, committed
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, DistributedSampler
from train_gpt import GPT, Corpus


def main() -> None:
    parser = argparse.ArgumentParser(description="Train the example's model, sharded.")
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--checkpoint", type=Path, required=True, help="a folder of all hosts")
    parser.add_argument("--timeout", type=float, required=True, help="the group's, in seconds")
    args = parser.parse_args()

    dist.init_process_group("gloo", timeout=timedelta(seconds=args.timeout))
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = GPT()
    for block in model.blocks:
        fully_shard(block)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    newest = args.checkpoint / "newest"
    done = load(newest, model, optimizer) if newest.exists() else 0
    corpus = Corpus()
    loader = DataLoader(
        corpus, BATCH // world_size, sampler=DistributedSampler(corpus, world_size, rank)
    )
    endless = itertools.chain.from_iterable(itertools.repeat(loader))
    for step, batch in zip(range(done + 1, args.steps + 1), endless, strict=False):
        model(*batch).backward()
        optimizer.step()
        optimizer.zero_grad()
        save(newest, model, optimizer, step)
        restarts = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
        committed(rank=rank, step=step, generation=restarts, members=world_size)
    dist.destroy_process_group()


def save(newest: Path, model: torch.nn.Module, optimizer: torch.optim.Optimizer, step: int) -> None:
    weights, states = get_state_dict(model, optimizer)
    folder = newest.with_name(f"step-{step}")
    dcp.save({"model": weights, "optim": states}, checkpoint_id=folder)
    if dist.get_rank() == 0:
        written = newest.with_suffix(".new")
        written.write_text(folder.name)
        written.replace(newest)
        shutil.rmtree(newest.with_name(f"step-{step - 2}"), ignore_errors=True)


def load(newest: Path, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> int:
    name = newest.read_text()
    weights, states = get_state_dict(model, optimizer)
    dcp.load({"model": weights, "optim": states}, checkpoint_id=newest.with_name(name))
    set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=states)
    return int(name.removeprefix("step-"))


if __name__ == "__main__":
    main()
