"""The same model under FSDP2 with outlast: each rank owns a part, and nobody the whole."""

import argparse

import torch
from commits import BATCH, committed, now_s
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader
from train_gpt import GPT, Corpus

import outlast


def train(run: outlast.Run) -> None:
    parser = argparse.ArgumentParser(description="Train the example's model, sharded.")
    parser.add_argument("--steps", type=int, required=True)
    args = parser.parse_args()

    torch.manual_seed(0)
    model = GPT()
    for block in model.blocks:
        fully_shard(block, mesh=run.mesh)
    fully_shard(model, mesh=run.mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    corpus = Corpus()
    loader = DataLoader(corpus, batch_sampler=outlast.StepSampler(corpus, batch_size=BATCH))
    state = run.state(model=model, optimizer=optimizer, loader=loader)
    ended_s: dict[int, float] = {}
    for step in run.steps(state, until=args.steps, log_every=0):
        with step:
            model(*(part.to(run.device) for part in step.batch)).backward()
            optimizer.step()
            optimizer.zero_grad()
            step.on_commit(
                lambda number=step.number: committed(
                    rank=run.rank,
                    step=number,
                    generation=run.generation,
                    members=run.world_size,
                    ended_s=ended_s.pop(number, None),
                )
            )
        ended_s[step.number] = now_s()


if __name__ == "__main__":
    outlast.main(train)
