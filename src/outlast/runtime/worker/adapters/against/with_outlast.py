"""Train the model of gpt.py under `outlast run`."""

from __future__ import annotations

import argparse

import torch

from outlast.runtime.worker.adapters.against.gpt import GPT, Corpus, optimizer_of, say
from outlast.runtime.worker.run import join
from outlast.runtime.worker.run_state.digest import digest


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a small GPT under outlast.")
    parser.add_argument("--steps", type=int, required=True)
    args = parser.parse_args()

    run = join()
    torch.manual_seed(0)
    bare = GPT()
    model = run.replicate(bare)
    optimizer = optimizer_of(model)
    corpus = Corpus()
    state = run.state(model=model, optimizer=optimizer)
    for step in run.steps(state, until=args.steps, log_every=0):
        with step:
            model(corpus.batch(step.number, run.rank)).backward()
            optimizer.step()
            optimizer.zero_grad()
    if run.rank == 0:
        say(f"digest {digest(bare)}")


if __name__ == "__main__":
    main()
