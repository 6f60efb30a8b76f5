"""Shape of torchvision's references: meters that are summed over ranks, a warm-up in front of a
cosine, an average of the weights, mixup in the loader's collate, and --resume from its own file.
"""

import argparse
import os
import time
from collections import defaultdict, deque

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import lr_scheduler
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset, default_collate

CLASSES = 4


class SmoothedValue:
    def __init__(self):
        self.deque, self.total, self.count = deque(maxlen=20), 0.0, 0

    def update(self, value, n=1):
        self.deque.append(value)
        self.count, self.total = self.count + n, self.total + value * n

    def synchronize_between_processes(self):
        both = torch.tensor([self.count, self.total], dtype=torch.float64)
        dist.barrier()
        dist.all_reduce(both)
        self.count, self.total = int(both[0]), both[1].item()

    @property
    def global_avg(self):
        return self.total / max(1, self.count)


class MetricLogger:
    def __init__(self):
        self.meters = defaultdict(SmoothedValue)

    def synchronize_between_processes(self):
        for meter in self.meters.values():
            meter.synchronize_between_processes()

    def log_every(self, iterable, print_freq, header):
        began = time.time()
        for i, one in enumerate(iterable):
            yield one
            if i % print_freq == 0:
                shown = "  ".join(f"{k} {m.global_avg:.4f}" for k, m in self.meters.items())
                print(f"{header} [{i}]  {shown}  time {(time.time() - began) / (i + 1):.4f}")


class ExponentialMovingAverage(torch.optim.swa_utils.AveragedModel):
    def __init__(self, model, decay):
        def average(mine, new, count):
            return decay * mine + (1 - decay) * new

        super().__init__(model, avg_fn=average, use_buffers=True)


def mixup(batch):
    x, y = default_collate(batch)
    y = nn.functional.one_hot(y, CLASSES).float()
    part = torch._sample_dirichlet(torch.tensor([0.2, 0.2]))[0]
    return x * part + x.roll(1, 0) * (1 - part), y * part + y.roll(1, 0) * (1 - part)


def net():
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(2),
        nn.Flatten(), nn.Linear(32, CLASSES),
    )  # fmt: skip  # laid out as such scripts are


def train_one_epoch(model, criterion, optimizer, loader, epoch, args, ema, scaler):
    model.train()
    logger = MetricLogger()
    for i, (x, y) in enumerate(logger.log_every(loader, 8, f"Epoch [{epoch}]")):
        with torch.amp.autocast("cpu", dtype=torch.bfloat16, enabled=scaler is not None):
            loss = criterion(model(x), y)
        optimizer.zero_grad()
        if scaler is not None:
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
        else:
            loss.backward()
            optimizer.step()
        if i % 4 == 0:
            ema.update_parameters(model)
            if epoch < args.lr_warmup_epochs:
                ema.n_averaged.fill_(0)  # copy the weights until the warm-up is over
        logger.meters["loss"].update(loss.item())


def evaluate(model, criterion, loader, header):
    model.eval()
    logger = MetricLogger()
    with torch.inference_mode():
        for x, y in logger.log_every(loader, 8, header):
            output = model(x)
            logger.meters["acc1"].update((output.argmax(1) == y).float().mean().item(), len(y))
    logger.synchronize_between_processes()
    return logger.meters["acc1"].global_avg


def save(folder, epoch, model, optimizer, scheduler, ema, scaler):
    saved = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict()}
    saved |= {"lr_scheduler": scheduler.state_dict(), "model_ema": ema.state_dict()}
    saved |= {"scaler": scaler.state_dict()} if scaler is not None else {}
    torch.save({**saved, "epoch": epoch}, os.path.join(folder, "checkpoint.new"))
    os.replace(os.path.join(folder, "checkpoint.new"), os.path.join(folder, "checkpoint.pth"))


def load_data():
    chance = torch.Generator().manual_seed(1)
    y = torch.arange(320) % CLASSES
    x = torch.randn(320, 1, 8, 8, generator=chance) + y[:, None, None, None] / 2
    return TensorDataset(x[:256], y[:256]), TensorDataset(x[256:], y[256:])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--lr-warmup-epochs", type=int, default=2)
    parser.add_argument("--amp", action="store_true")
    parser.add_argument("--output-dir", default=".")
    parser.add_argument("--resume", default="")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    data, held_out = load_data()
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=8, sampler=sampler, num_workers=1, collate_fn=mixup)
    test_loader = DataLoader(held_out, 8, sampler=DistributedSampler(held_out, shuffle=False))
    model = net()
    criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=1e-4)
    scaler = torch.amp.GradScaler("cpu") if args.amp else None
    warm_up = lr_scheduler.LinearLR(optimizer, 0.01, total_iters=args.lr_warmup_epochs)
    cosine = lr_scheduler.CosineAnnealingLR(optimizer, args.epochs - args.lr_warmup_epochs)
    scheduler = lr_scheduler.SequentialLR(optimizer, [warm_up, cosine], [args.lr_warmup_epochs])
    model = DistributedDataParallel(model)
    ema = ExponentialMovingAverage(model.module, 0.9)
    torch.manual_seed(rank)
    start = 0
    if args.resume and os.path.exists(args.resume):
        saved = torch.load(args.resume)
        model.module.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        scheduler.load_state_dict(saved["lr_scheduler"])
        ema.load_state_dict(saved["model_ema"])
        if scaler is not None:
            scaler.load_state_dict(saved["scaler"])
        start = saved["epoch"] + 1
    for epoch in range(start, args.epochs):
        sampler.set_epoch(epoch)
        train_one_epoch(model, criterion, optimizer, loader, epoch, args, ema, scaler)
        scheduler.step()
        accuracy = evaluate(model, criterion, test_loader, "Test:")
        of_ema = evaluate(ema, criterion, test_loader, "Test: EMA")
        if rank == 0:
            print(f"epoch {epoch} acc1 {accuracy:.4f} EMA {of_ema:.4f}", flush=True)
            save(args.output_dir, epoch, model, optimizer, scheduler, ema, scaler)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
