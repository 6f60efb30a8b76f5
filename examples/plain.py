"""The training of train_gpt.py without a line of outlast, as a script for torchrun looks today.

    torchrun    --nproc-per-node 4 examples/plain.py
    outlast run --nproc-per-node 4 examples/plain.py     supervised, and restarted as a whole from
                                                         warm processes

It saves a checkpoint every few steps and begins from it when it is started again; the steps since
then are lost.
"""

import argparse
import hashlib
import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from train_gpt import BATCH, GPT, Corpus


def batch_of(corpus: Corpus, step: int, seed: int) -> list[torch.Tensor]:
    """Return this rank's part of the batch of a step.

    It depends on seed and step alone, so that a restart goes on where the checkpoint was.
    """
    chosen = torch.randint(
        len(corpus), (BATCH,), generator=torch.Generator().manual_seed(seed * 1_000_003 + step)
    )
    mine = chosen[dist.get_rank() :: dist.get_world_size()].tolist()
    return [torch.stack(parts) for parts in zip(*(corpus[index] for index in mine), strict=True)]


def save(path: Path, **state: object) -> None:
    """Let rank 0 write a checkpoint beside the last one, and then put it in its place."""
    if dist.get_rank() == 0:
        path.parent.mkdir(parents=True, exist_ok=True)
        torch.save(state, path.with_suffix(".new"))
        path.with_suffix(".new").replace(path)


def digest_of(model: nn.Module) -> str:
    hasher = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        hasher.update(name.encode() + tensor.cpu().numpy().tobytes())
    return hasher.hexdigest()[:32]


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a small GPT with plain PyTorch.")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--checkpoint", type=Path, help="where to keep it; none is kept without")
    parser.add_argument("--checkpoint-every", type=int, default=10, metavar="STEPS")
    args = parser.parse_args()

    device = (
        torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        if torch.cuda.is_available()
        else torch.device("cpu")
    )
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    torch.manual_seed(args.seed)
    model = DistributedDataParallel(GPT().to(device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=args.steps)
    parts = {"model": model, "optimizer": optimizer, "schedule": schedule}
    corpus, done = Corpus(), 0

    if args.checkpoint and args.checkpoint.exists():
        saved = torch.load(args.checkpoint, map_location=device)
        done = saved["step"]
        torch.set_rng_state(saved["random"].cpu())
        for name, part in parts.items():
            part.load_state_dict(saved[name])

    for step in range(done + 1, args.steps + 1):
        inputs, targets = (part.to(device) for part in batch_of(corpus, step, args.seed))
        loss = model(inputs, targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        if step % 10 == 0:
            mean = loss.detach() / dist.get_world_size()
            dist.all_reduce(mean)
            if dist.get_rank() == 0:
                print(f"step {step} loss {mean.item():.4f}", flush=True)
        if args.checkpoint and step % args.checkpoint_every == 0:
            save(
                args.checkpoint,
                step=step,
                random=torch.get_rng_state(),
                **{name: part.state_dict() for name, part in parts.items()},
            )

    if dist.get_rank() == 0:
        print("digest", digest_of(model.module), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
