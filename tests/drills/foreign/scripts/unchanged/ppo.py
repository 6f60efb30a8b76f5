"""Shape of PPO with DDP: a rollout that feeds several epochs of minibatches, advantages by GAE, a
rate that decays by hand, and an early stop of an update by its KL divergence.
"""

import argparse

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

ENVS, LENGTH, EPOCHS, PARTS = 4, 8, 3, 4


class Envs:
    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)

    def reset(self):
        self.at = self.rng.standard_normal((ENVS, 4)).astype(np.float32)
        return torch.from_numpy(self.at)

    def step(self, action):
        reward = (action == (self.at[:, 0] > 0)).astype(np.float32)
        done = self.rng.random(ENVS) < 0.1
        self.at = 0.9 * self.at + 0.4 * self.rng.standard_normal((ENVS, 4)).astype(np.float32)
        self.at[done] = 0
        return torch.from_numpy(self.at), torch.from_numpy(reward), torch.from_numpy(done).float()


class Agent(nn.Module):
    def __init__(self):
        super().__init__()
        self.actor = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 2))
        self.critic = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 1))

    def forward(self, seen, action=None):
        chances = torch.distributions.Categorical(logits=self.actor(seen))
        action = chances.sample() if action is None else action
        value = self.critic(seen).squeeze(-1)
        return action, chances.log_prob(action), chances.entropy(), value


@torch.no_grad()
def rollout(agent, envs, seen, done):
    rows = []
    for _ in range(LENGTH):
        action, log_prob, _, value = agent(seen)
        then, reward, over = envs.step(action.numpy())
        rows.append((seen, action, log_prob, value, reward, done))
        seen, done = then, over
    seens, actions, log_probs, values, rewards, dones = map(torch.stack, zip(*rows, strict=True))
    following = torch.cat([values[1:], agent(seen)[3][None]])
    going = 1 - torch.cat([dones[1:], done[None]])
    delta = rewards + 0.99 * following * going - values
    advantages, last = torch.zeros_like(values), torch.zeros(ENVS)
    for t in reversed(range(LENGTH)):
        advantages[t] = last = delta[t] + 0.99 * 0.95 * going[t] * last
    batch = (seens, actions, log_probs, advantages, advantages + values)
    return seen, done, [part.flatten(0, 1) for part in batch]


def loss_of(model, batch, rows):
    seen, action, old, advantage, goal = (part[rows] for part in batch)
    _, log_prob, entropy, value = model(seen, action)
    ratio = (log_prob - old).exp()
    advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
    clipped = torch.max(-advantage * ratio, -advantage * ratio.clamp(0.8, 1.2)).mean()
    kl = ((ratio - 1) - (log_prob - old)).mean().detach()
    return clipped - 0.01 * entropy.mean() + 0.5 * (value - goal).square().mean(), kl


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--updates", type=int, default=20)
    parser.add_argument("--target-kl", type=float, default=0.004)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(1)
    agent = Agent()
    model = DistributedDataParallel(agent)
    optimizer = torch.optim.Adam(agent.parameters(), lr=3e-3, eps=1e-5)
    torch.manual_seed(10 + rank)
    np.random.seed(10 + rank)
    envs = Envs(10 + rank)
    seen, done = envs.reset(), torch.zeros(ENVS)
    order = np.arange(ENVS * LENGTH)
    for update in range(args.updates):
        optimizer.param_groups[0]["lr"] = 3e-3 * (1 - update / args.updates)
        seen, done, batch = rollout(agent, envs, seen, done)
        for _ in range(EPOCHS):
            np.random.shuffle(order)
            for start in range(0, len(order), len(order) // PARTS):
                loss, kl = loss_of(model, batch, order[start : start + len(order) // PARTS])
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
                optimizer.step()
            dist.all_reduce(kl)
            if kl / dist.get_world_size() > args.target_kl:
                break
        if rank == 0:
            print(f"update {update} loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
