"""Shape of a sharpness-aware minimizer (SAM): an optimizer of the script's own that moves the
weights uphill, has a second gradient taken there, and moves them back before it steps.
"""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import outlast


class SAM(torch.optim.Optimizer):
    def __init__(self, params, base_optimizer, rho=0.05, **kwargs):
        super().__init__(params, dict(rho=rho, **kwargs))
        self.base_optimizer = base_optimizer(self.param_groups, **kwargs)
        self.param_groups = self.base_optimizer.param_groups

    @torch.no_grad()
    def first_step(self, zero_grad=False):
        norm = self._grad_norm()
        for group in self.param_groups:
            scale = group["rho"] / (norm + 1e-12)
            for p in group["params"]:
                if p.grad is not None:
                    self.state[p]["old_p"] = p.data.clone()
                    p.add_(p.grad * scale)
        if zero_grad:
            self.zero_grad()

    @torch.no_grad()
    def second_step(self, zero_grad=False):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.data = self.state[p]["old_p"]
        self.base_optimizer.step()
        if zero_grad:
            self.zero_grad()

    def _grad_norm(self):
        grads = [p.grad for group in self.param_groups for p in group["params"]]
        return torch.stack([one.norm() for one in grads if one is not None]).norm()


def disable_running_stats(model):
    for module in model.modules():
        if isinstance(module, nn.BatchNorm1d):
            module.backup_momentum = module.momentum
            module.momentum = 0


def enable_running_stats(model):
    for module in model.modules():
        if isinstance(module, nn.BatchNorm1d) and hasattr(module, "backup_momentum"):
            module.momentum = module.backup_momentum


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--save", default="sam.pt")
    args = parser.parse_args()
    run = outlast.join()
    torch.manual_seed(42)
    net = nn.Sequential(
        nn.Linear(16, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 10)
    )
    model = run.replicate(net)
    torch.manual_seed(42 + run.rank)
    data = TensorDataset(
        torch.randn(640, 16, generator=torch.Generator().manual_seed(0)), torch.arange(640) % 10
    )
    sampler = outlast.StepSampler(data, batch_size=8 * run.world_size)
    loader = DataLoader(data, batch_sampler=sampler)
    optimizer = SAM(model.parameters(), torch.optim.SGD, rho=0.05, lr=0.1, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer.base_optimizer, 200)
    per_epoch = len(loader)
    state = run.state(
        model=model, optimizer=optimizer, base=optimizer.base_optimizer, scheduler=scheduler,
        loader=loader,
    )  # fmt: skip  # laid out as such scripts are
    for step in run.steps(state, until=args.epochs * per_epoch):
        with step:
            x, y = step.batch
            enable_running_stats(model)
            with model.no_sync():
                loss = nn.functional.cross_entropy(model(x), y, label_smoothing=0.1)
                loss.backward()
            optimizer.first_step(zero_grad=True)
            disable_running_stats(model)
            nn.functional.cross_entropy(model(x), y, label_smoothing=0.1).backward()
            optimizer.second_step(zero_grad=True)
            scheduler.step()
        epoch, batch = divmod(step.number - 1, per_epoch)
        if batch == per_epoch - 1 and run.rank == 0:
            print(f"epoch {epoch} loss {loss.item():.4f}", flush=True)
            torch.save(net.state_dict(), args.save)


if __name__ == "__main__":
    main()
