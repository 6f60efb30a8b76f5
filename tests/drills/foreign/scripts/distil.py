"""Shape of distillation with hints: a frozen teacher, and a criterion that has weights of its own,
trained with the student. The best student so far is kept, and training stops early.
"""

import argparse
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import outlast


class Net(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.first = nn.Sequential(nn.Linear(16, width), nn.BatchNorm1d(width), nn.ReLU())
        self.drop = nn.Dropout(0.2)
        self.last = nn.Linear(width, 4)

    def forward(self, x):
        hidden = self.first(x)
        return hidden, self.last(self.drop(hidden))


class Hint(nn.Module):
    def __init__(self, student, teacher):
        super().__init__()
        self.regress = nn.Linear(student, teacher)

    def forward(self, ours, theirs):
        return (self.regress(ours) - theirs).square().mean()


def soft(ours, theirs, temperature):
    ours, theirs = (ours / temperature).log_softmax(1), (theirs / temperature).softmax(1)
    return nn.functional.kl_div(ours, theirs, reduction="batchmean") * temperature**2


@torch.no_grad()
def validate(model, x, y):
    model.eval()
    right = (model(x)[1].argmax(1) == y).float().sum()
    count = torch.tensor(float(len(y)))
    dist.all_reduce(right)
    dist.all_reduce(count)
    return (right / count).item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--patience", type=int, default=3)
    parser.add_argument("--save", type=Path, default=Path("last.pt"))
    args = parser.parse_args()
    run = outlast.join()
    rank = run.rank
    torch.manual_seed(7)
    teacher = Net(64).eval()
    teacher.requires_grad_(False)
    student = run.replicate(Net(16))
    hint = run.replicate(Hint(16, 64))
    trained = nn.ModuleList([student, hint])
    optimizer = torch.optim.SGD(trained.parameters(), lr=0.05, momentum=0.9, nesterov=True)
    scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, [4, 8], gamma=0.1)
    x = torch.randn(512, 16, generator=torch.Generator().manual_seed(0))
    y = teacher(x)[1].argmax(1)
    data = TensorDataset(x[:384], y[:384])
    sampler = outlast.StepSampler(data, batch_size=16 * run.world_size)
    loader = DataLoader(data, batch_sampler=sampler, num_workers=1)
    torch.manual_seed(7 + rank)
    kept = run.values(best=0.0, bad_epochs=0)
    state = run.state(
        trained=trained, optimizer=optimizer, scheduler=scheduler, loader=loader, kept=kept
    )
    trained.train()
    for step in run.steps(state, until=args.epochs * len(loader)):
        with step:
            image, target = step.batch
            with torch.no_grad():
                hidden, wanted = teacher(image)
            ours, logits = student(image)
            loss = nn.functional.cross_entropy(logits, target)
            loss = loss + soft(logits, wanted, 4.0) + 10.0 * hint(ours, hidden)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if step.number % len(loader) == 0:
            for attempt in run.phase("epoch"):
                with attempt:
                    scheduler.step()
                    accuracy = validate(student.module, x[384:][rank::2], y[384:][rank::2])
                    trained.train()
                    kept.bad_epochs = 0 if accuracy > kept.best else kept.bad_epochs + 1
                    kept.best = max(kept.best, accuracy)
                    if rank == 0:
                        print(f"step {step.number} accuracy {accuracy:.4f}", flush=True)
                        torch.save(trained.state_dict(), args.save)
        if kept.bad_epochs >= args.patience:
            break


if __name__ == "__main__":
    main()
