"""Shape of MoCo: a momentum encoder and a queue of keys inside the model, which forward moves. The
optimizer is given all parameters, the frozen ones included.
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import outlast

QUEUE, MOMENTUM, TEMPERATURE = 64, 0.9, 0.07


@torch.no_grad()
def gathered(x):
    parts = [torch.empty_like(x) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, x)
    return torch.cat(parts)


def encoder():
    return nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 8))


class Contrast(nn.Module):
    def __init__(self):
        super().__init__()
        self.query, self.key = encoder(), encoder()
        self.key.load_state_dict(self.query.state_dict())
        self.key.requires_grad_(False)
        self.register_buffer("queue", nn.functional.normalize(torch.randn(8, QUEUE), dim=0))
        self.register_buffer("place", torch.zeros(1, dtype=torch.long))

    @torch.no_grad()
    def move_key(self):
        for new, old in zip(self.query.parameters(), self.key.parameters(), strict=True):
            old.data = old.data * MOMENTUM + new.data * (1 - MOMENTUM)

    @torch.no_grad()
    def keys_of(self, x):
        order = torch.randperm(len(x) * dist.get_world_size())
        dist.broadcast(order, src=0)
        mine = order.chunk(dist.get_world_size())[dist.get_rank()]
        keys = gathered(nn.functional.normalize(self.key(gathered(x)[mine])))
        return keys[order.argsort()].chunk(dist.get_world_size())[dist.get_rank()]

    @torch.no_grad()
    def enqueue(self, keys):
        keys, at = gathered(keys), int(self.place)
        self.queue[:, at : at + len(keys)] = keys.T
        self.place[0] = (at + len(keys)) % QUEUE

    def forward(self, one, other):
        found = nn.functional.normalize(self.query(one))
        self.move_key()
        keys = self.keys_of(other)
        same = (found * keys).sum(1, keepdim=True)
        logits = torch.cat([same, found @ self.queue.clone()], dim=1) / TEMPERATURE
        self.enqueue(keys)
        return logits


def main():
    run = outlast.join()
    torch.manual_seed(0)
    model = run.replicate(Contrast())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.03, momentum=0.9, weight_decay=1e-4)
    torch.manual_seed(run.rank)
    data = TensorDataset(torch.randn(512, 16, generator=torch.Generator().manual_seed(1)))
    loader = DataLoader(data, batch_sampler=outlast.StepSampler(data, 8 * run.world_size))
    state = run.state(model=model, optimizer=optimizer, loader=loader)
    for step in run.steps(state, until=2000):
        with step:
            (x,) = step.batch
            logits = model(x + 0.1 * torch.randn_like(x), x + 0.1 * torch.randn_like(x))
            loss = nn.functional.cross_entropy(logits, torch.zeros(len(x), dtype=torch.long))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step.log(loss=loss.detach(), reduce="mean")


if __name__ == "__main__":
    main()
