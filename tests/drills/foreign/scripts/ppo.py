"""Shape of PPO with DDP: a rollout that feeds several epochs of minibatches, advantages by GAE, a
rate that decays by hand, and an early stop of an update by its KL divergence.
"""

import argparse

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

import outlast

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

    def state_dict(self):
        return {"rng": self.rng.bit_generator.state, "at": self.at}

    def load_state_dict(self, saved):
        self.rng.bit_generator.state, self.at = saved["rng"], saved["at"]


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
    run = outlast.join()
    rank = run.rank
    torch.manual_seed(1)
    agent = Agent()
    model = run.replicate(agent)
    optimizer = torch.optim.Adam(agent.parameters(), lr=3e-3, eps=1e-5)
    torch.manual_seed(10 + rank)
    np.random.seed(10 + rank)
    envs = Envs(10 + rank)
    order = np.arange(ENVS * LENGTH)
    kept = run.values(
        seen=envs.reset(), done=torch.zeros(ENVS), batch=None, order=order, update=0, part=0
    )
    state = run.state(agent=agent, optimizer=optimizer, envs=envs, kept=kept)
    size = len(order) // PARTS
    for step in run.steps(state, until=args.updates * EPOCHS * PARTS):
        if kept.part == 0:
            optimizer.param_groups[0]["lr"] = 3e-3 * (1 - kept.update / args.updates)
            kept.seen, kept.done, kept.batch = rollout(agent, envs, kept.seen, kept.done)
        if kept.part % PARTS == 0:
            np.random.shuffle(kept.order)
        with step:
            rows = kept.order[kept.part % PARTS * size :][:size]
            loss, kl = loss_of(model, kept.batch, rows)
            optimizer.zero_grad()
            loss.backward()
            dist.all_reduce(kl)
            nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
            optimizer.step()
            kept.part += 1
            stops = kept.part % PARTS == 0 and kl / run.world_size > args.target_kl
            if kept.part == EPOCHS * PARTS or stops:
                kept.update, kept.part = kept.update + 1, 0
        if kept.part == 0 and rank == 0:
            print(f"update {kept.update} loss {loss.item():.4f}", flush=True)
        if kept.update == args.updates:
            break


if __name__ == "__main__":
    main()
