"""The same training with outlast: its random part is the batch, chosen by step as for the others.

With METER=1 in the environment a meter of the rank's own loss is kept as well, and changes after
the optimizer.
"""

import argparse
import os

import torch
from commits import BATCH, a_turn_ends, committed, wait_for_turn
from torch.utils.data import DataLoader
from train_gpt import GPT, Corpus

import outlast


class Meter:
    """The mean loss of this rank."""

    def __init__(self) -> None:
        self.count, self.total = 0, 0.0

    def add(self, loss: float) -> None:
        self.count, self.total = self.count + 1, self.total + loss

    def state_dict(self) -> dict[str, float]:
        return {"count": self.count, "total": self.total}

    def load_state_dict(self, saved: dict[str, float]) -> None:
        self.count, self.total = int(saved["count"]), saved["total"]


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
    meter = Meter() if "METER" in os.environ else None
    state = run.state(model=model, optimizer=optimizer, loader=loader, meter=meter)
    for step in run.steps(state, until=args.steps, log_every=0):
        with step:
            loss = model(*(part.to(run.device) for part in step.batch))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            if meter is not None:
                meter.add(loss.item())
            step.on_commit(
                lambda number=step.number: committed(
                    rank=run.rank, step=number, generation=run.generation, members=run.world_size
                )
            )
        if a_turn_ends(step.number):
            for attempt in run.phase("turn"):
                with attempt:
                    wait_for_turn(run.rank)


if __name__ == "__main__":
    main()
