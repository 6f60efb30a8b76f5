"""Shape of a pre-training framework's loop: FSDP2, a data set with a state of its own, checkpoints
that torch saves in the background, and a resume from the newest of them.
"""

import os

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard
from torch.utils.data import IterableDataset
from torchdata.stateful_dataloader import StatefulDataLoader

import outlast

EVERY = 25


class Texts(IterableDataset):
    def __init__(self, rank, world_size):
        self.rank, self.world_size, self.number = rank, world_size, 0

    def __iter__(self):
        while True:
            chance = torch.Generator().manual_seed(self.number * self.world_size + self.rank)
            self.number += 1
            ids = torch.randint(64, (17,), generator=chance)
            yield ids[:-1], ids[1:]

    def state_dict(self):
        return {"number": self.number}

    def load_state_dict(self, saved):
        self.number = saved["number"]


class Weights(dcp.stateful.Stateful):
    def __init__(self, model, optimizer):
        self.model, self.optimizer = model, optimizer

    def state_dict(self):
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optimizer": optimizer}

    def load_state_dict(self, saved):
        set_state_dict(
            self.model,
            self.optimizer,
            model_state_dict=saved["model"],
            optim_state_dict=saved["optimizer"],
        )


class Trainer:
    def __init__(self, run):
        self.run, self.step, self.tokens, self.saving = run, 0, 0, None
        torch.manual_seed(0)
        with torch.device("meta"):
            self.model = nn.Sequential(nn.Embedding(64, 32), nn.Linear(32, 32), nn.Linear(32, 64))
        mesh = run.device_mesh((run.world_size,), ("shard",))
        fully_shard(self.model[1], mesh=mesh)
        fully_shard(self.model, mesh=mesh)
        self.model.to_empty(device=run.device)
        for one in self.model:
            one.reset_parameters()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=3e-3)
        self.schedule = torch.optim.lr_scheduler.LambdaLR(
            self.optimizer, lambda step: min(1.0, (step + 1) / 10)
        )
        self.loader = StatefulDataLoader(Texts(run.rank, run.world_size), batch_size=4)
        self.states = {
            "weights": Weights(self.model, self.optimizer),
            "schedule": self.schedule,
            f"loader-{run.rank}": self.loader,
            "train": self,
        }
        self.folder = "checkpoints"
        self.group = dist.new_group(backend="gloo")

    def state_dict(self):
        return {"step": self.step, "tokens": self.tokens}

    def load_state_dict(self, saved):
        self.step, self.tokens = saved["step"], saved["tokens"]

    def load(self):
        names = os.listdir(self.folder) if os.path.isdir(self.folder) else []
        done = [int(one) for one in names if os.path.exists(f"{self.folder}/{one}/.metadata")]
        newest = torch.tensor(max(done, default=0))
        dist.broadcast(newest, 0)
        if newest:
            dcp.load(self.states, checkpoint_id=f"{self.folder}/{newest}")

    def save(self):
        self.wait()
        self.saving = dcp.async_save(
            self.states, checkpoint_id=f"{self.folder}/{self.step}", process_group=self.group
        )

    def wait(self):
        if self.saving is not None:
            self.saving.result()
            self.saving = None

    def train(self):
        self.load()
        state = self.run.state(
            model=self.model,
            optimizer=self.optimizer,
            schedule=self.schedule,
            loader=self.loader,
            train=self,
        )
        for step in self.run.steps(state, first=self.step + 1, until=2000):
            with step:
                ids, wanted = step.batch
                self.optimizer.zero_grad()
                logits = self.model(ids)
                nn.functional.cross_entropy(logits.flatten(0, 1), wanted.flatten()).backward()
                nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
                self.optimizer.step()
                self.schedule.step()
                self.tokens += wanted.numel()
                self.step = step.number
            if step.number % EVERY == 0:
                for attempt in self.run.phase("save"):
                    with attempt:
                        self.save()


def main(run):
    trainer = Trainer(run)
    try:
        trainer.train()
    finally:
        trainer.wait()


if __name__ == "__main__":
    outlast.main(main)
