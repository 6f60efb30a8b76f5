"""Train the GPT of train_gpt.py, sharded by FSDP2: each rank owns a part, and nobody the whole.

    outlast run --nproc-per-node 4 --spares 1 examples/train_fsdp.py           one mesh of four
    outlast run --nproc-per-node 4 --spares 1 examples/train_fsdp.py --hsdp    two replicas of two
                                                                               shards each

Sharded modules cannot be moved to another process group. So the training stands in a function that
is given to `outlast.main`: after a fault the survivors enter it again, in the same process, and
`run.state` fills in the newest step that every owner had sealed.
"""

import argparse

import torch
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader
from train_gpt import BATCH, GPT, Corpus

import outlast


def train(run: outlast.Run) -> None:
    parser = argparse.ArgumentParser(description="Train a small GPT with FSDP2.")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--hsdp", action="store_true", help="a mesh of two replicas; the world size must be even"
    )
    args = parser.parse_args()

    mesh = (
        run.device_mesh((2, run.world_size // 2), ("replicate", "shard")) if args.hsdp else run.mesh
    )
    torch.manual_seed(args.seed)
    model = GPT().to(run.device)
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=args.steps)
    corpus = Corpus()
    loader = DataLoader(
        corpus, batch_sampler=outlast.StepSampler(corpus, batch_size=BATCH, seed=args.seed)
    )

    state = run.state(model=model, optimizer=optimizer, schedule=schedule, loader=loader)
    for step in run.steps(state, until=args.steps):
        with step:
            inputs, targets = (part.to(run.device) for part in step.batch)
            loss = model(inputs, targets)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
            step.log(loss=loss.detach(), reduce="mean")

    digest = outlast.digest(model)  # all ranks take part: each holds only its shards
    if run.rank == 0:
        print("digest", digest, flush=True)


if __name__ == "__main__":
    outlast.main(train)
