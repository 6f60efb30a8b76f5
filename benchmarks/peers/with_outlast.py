"""The same training with outlast: its random part is the batch, chosen by step as for the others."""

import argparse

import torch
from commits import BATCH, a_turn_ends, committed, wait_for_turn
from torch.utils.data import DataLoader
from train_gpt import GPT, Corpus

import outlast


def main() -> None:
    parser = argparse.ArgumentParser(description="Train the example's model under outlast.")
    parser.add_argument("--steps", type=int, required=True)
    args = parser.parse_args()

    run = outlast.join()
    torch.manual_seed(0)
    model = run.replicate(GPT())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    corpus = Corpus()
    loader = DataLoader(corpus, batch_sampler=outlast.StepSampler(corpus, batch_size=BATCH))
    state = run.state(model=model, optimizer=optimizer, loader=loader)
    for step in run.steps(state, until=args.steps, log_every=0):
        with step:
            model(*step.batch).backward()
            optimizer.step()
            optimizer.zero_grad()
            step.on_commit(lambda number=step.number: committed(rank=run.rank, step=number, generation=run.generation, members=run.world_size))
        if a_turn_ends(step.number):
            for attempt in run.phase("turn"):
                with attempt:
                    wait_for_turn(run.rank)


if __name__ == "__main__":
    main()
