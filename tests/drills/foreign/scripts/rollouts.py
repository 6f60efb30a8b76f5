"""A loop of reinforcement learning's shape: no DDP, gradients reduced by hand, and a rollout that
feeds eight steps. What later steps read is kept, because a rank may be replaced between them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

import outlast

UPDATES, EPOCHS, PARTS, ENVS, LENGTH = 30, 2, 4, 4, 8


class Envs:
    def __init__(self, seed: int) -> None:
        self.chance = np.random.default_rng(seed)
        self.seen = self.chance.standard_normal((ENVS, 4)).astype(np.float32)

    def step(self, action: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        reward = (action.numpy() == (self.seen[:, 0] > 0)).astype(np.float32)
        noise = self.chance.standard_normal((ENVS, 4)).astype(np.float32)
        self.seen = 0.9 * self.seen + 0.4 * noise
        return torch.from_numpy(self.seen.copy()), torch.from_numpy(reward)

    def state_dict(self) -> dict[str, Any]:
        return {"chance": self.chance.bit_generator.state, "seen": self.seen}

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        self.chance.bit_generator.state, self.seen = saved["chance"], saved["seen"]


def rollout(seen: torch.Tensor) -> tuple[torch.Tensor, ...]:
    rows = []
    for _ in range(LENGTH):
        with torch.no_grad():
            action = torch.distributions.Categorical(logits=agent(seen)).sample()
        then, reward = envs.step(action)
        rows.append((seen, action, reward))
        seen = then
    return (seen, *(torch.cat(part) for part in zip(*rows, strict=True)))


def reduce_gradients() -> None:
    whole = torch.cat([one.grad.view(-1) for one in agent.parameters()])
    dist.all_reduce(whole)
    at = 0
    for one in agent.parameters():
        one.grad.copy_(whole[at : at + one.numel()].view_as(one) / run.world_size)
        at += one.numel()


run = outlast.join()
torch.manual_seed(1)
agent = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 2))
optimizer = torch.optim.Adam(agent.parameters(), lr=1e-3, eps=1e-5)
torch.manual_seed(10 + run.rank)
np.random.seed(10 + run.rank)
envs = Envs(10 + run.rank)
kept = run.values(
    now=torch.from_numpy(envs.seen.copy()), seen=None, actions=None, rewards=None,
    order=np.arange(ENVS * LENGTH),
)  # fmt: skip  # laid out as such scripts are
state = run.state(agent=agent, optimizer=optimizer, envs=envs, kept=kept)
per_update = EPOCHS * PARTS
for step in run.steps(state, until=UPDATES * per_update):
    update, inner = divmod(step.number - 1, per_update)
    if inner == 0:
        optimizer.param_groups[0]["lr"] = 1e-3 * (1 - update / UPDATES)
        kept.now, kept.seen, kept.actions, kept.rewards = rollout(kept.now)
    if inner % PARTS == 0:
        np.random.shuffle(kept.order)
    with step:
        size = len(kept.order) // PARTS
        part = kept.order[inner % PARTS * size :][:size]
        chosen = torch.distributions.Categorical(logits=agent(kept.seen[part]))
        loss = -(chosen.log_prob(kept.actions[part]) * kept.rewards[part]).mean()
        optimizer.zero_grad()
        (loss - 0.01 * chosen.entropy().mean()).backward()
        reduce_gradients()
        nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
        optimizer.step()
