"""Shape of PyTorch's DDP tutorial: a Trainer class that goes over epochs."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

import outlast


class MyTrainDataset(Dataset):
    def __init__(self, size):
        generator = torch.Generator().manual_seed(7)
        self.data = [
            (torch.rand(20, generator=generator), torch.rand(1, generator=generator))
            for _ in range(size)
        ]

    def __len__(self):
        return len(self.data)

    def __getitem__(self, index):
        return self.data[index]


class Trainer:
    def __init__(self, run, model, loader, optimizer):
        self.run = run
        self.model = run.replicate(model)
        self.loader = loader
        self.optimizer = optimizer
        self.state = run.state(model=self.model, optimizer=optimizer, loader=loader)

    def _run_batch(self, source, targets):
        self.optimizer.zero_grad()
        output = self.model(source)
        loss = nn.functional.mse_loss(output, targets)
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def train(self, steps):
        for step in self.run.steps(self.state, until=steps):
            with step:
                source, targets = step.batch
                loss = self._run_batch(source, targets)
                step.log(loss=loss, reduce="mean")


def main(steps):
    run = outlast.join()
    torch.manual_seed(0)
    data = MyTrainDataset(256)
    model = nn.Linear(20, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    loader = DataLoader(data, batch_sampler=outlast.StepSampler(data, batch_size=8))
    Trainer(run, model, loader, optimizer).train(steps)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1000)
