"""Plain DDP under torchrun: with --checkpoint, one each step, which is what losing no step costs
there; without, the bare training.

Devices and backend are those that outlast would choose: NCCL where each rank has a GPU of its own,
gloo where ranks share one or have none. A step counts as committed when its checkpoint is in place.
torchrun counts restarts; that is the generation.
"""

import argparse
import itertools
import os
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from commits import BATCH, a_turn_ends, committed, wait_for_turn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler
from train_gpt import GPT, Corpus


def main() -> None:
    parser = argparse.ArgumentParser(description="Train the example's model under torchrun.")
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--checkpoint", type=Path, help="save here each step, and begin from it")
    parser.add_argument(
        "--timeout",
        type=float,
        help="the process group's, in seconds (torch's default: 30 minutes)",
    )
    args = parser.parse_args()

    local_rank, gpus = int(os.environ["LOCAL_RANK"]), torch.cuda.device_count()
    device = torch.device("cuda", local_rank % gpus) if gpus else torch.device("cpu")
    if gpus:
        torch.cuda.set_device(device)
    own_gpus = gpus >= int(os.environ["LOCAL_WORLD_SIZE"])
    dist.init_process_group(
        "nccl" if own_gpus else "gloo",
        timeout=timedelta(seconds=args.timeout) if args.timeout else None,
    )
    rank, world_size, restarts = (
        dist.get_rank(),
        dist.get_world_size(),
        int(os.environ["TORCHELASTIC_RESTART_COUNT"]),
    )
    torch.manual_seed(0)
    model = DistributedDataParallel(GPT().to(device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    done = (
        load(args.checkpoint, model, optimizer)
        if args.checkpoint and args.checkpoint.exists()
        else 0
    )
    corpus = Corpus()
    loader = DataLoader(
        corpus, BATCH // world_size, sampler=DistributedSampler(corpus, world_size, rank)
    )
    endless = itertools.chain.from_iterable(itertools.repeat(loader))
    for step, batch in zip(range(done + 1, args.steps + 1), endless, strict=False):
        model(*(part.to(device) for part in batch)).backward()
        optimizer.step()
        optimizer.zero_grad()
        if args.checkpoint and rank == 0:
            save(args.checkpoint, model, optimizer, step)
        committed(rank=rank, step=step, generation=restarts, members=world_size)
        if a_turn_ends(step):
            wait_for_turn(rank)
    dist.destroy_process_group()


def save(path: Path, model: torch.nn.Module, optimizer: torch.optim.Optimizer, step: int) -> None:
    new = path.with_suffix(".new")
    torch.save(
        {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, new
    )
    new.replace(path)


def load(path: Path, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> int:
    saved = torch.load(path, map_location="cpu")
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    return saved["step"]


if __name__ == "__main__":
    main()
