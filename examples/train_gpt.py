"""Train a small GPT, byte by byte, on the source text of Python's own standard library.

    python examples/train_gpt.py                                        alone
    outlast run --nproc-per-node 4 --spares 1 examples/train_gpt.py     four workers: kill any of
                                                                        them

The five lines marked with an arrow are all that outlast asks for. Whatever is killed, the digest at
the end is the same.
"""

import argparse
import sysconfig
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

import outlast

# 1.9 million parameters: with AdamW's moments, 23 MB of state
CONTEXT, WIDTH, HEADS, LAYERS = 64, 192, 6, 4
BATCH = 8  # sequences per step, over all ranks together


class Corpus(Dataset[tuple[Tensor, Tensor]]):
    """Windows of CONTEXT bytes, each with the same window moved on by one byte: what comes next."""

    def __init__(self, limit_bytes: int = 8_000_000) -> None:
        files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
        text = b"".join(file.read_bytes() for file in files)[:limit_bytes]
        self.text = torch.frombuffer(bytearray(text), dtype=torch.uint8)

    def __len__(self) -> int:
        return (len(self.text) - 1) // CONTEXT

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        window = self.text[index * CONTEXT : (index + 1) * CONTEXT + 1].long()
        return window[:-1], window[1:]


class Block(nn.Module):
    """Attention, then a two-layer perceptron, each added to what came in."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention_in, self.attention_out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.perceptron = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH), nn.Dropout(dropout)
        )

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = (
            part.unflatten(-1, (HEADS, -1)).transpose(1, 2)
            for part in self.attention_in(self.norm1(x)).chunk(3, dim=-1)
        )
        attended = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.attention_out(attended.transpose(1, 2).flatten(-2))
        return x + self.perceptron(self.norm2(x))


class GPT(nn.Module):
    """Bytes in, the loss of guessing each next byte out."""

    def __init__(self, dropout: float = 0.1) -> None:
        super().__init__()
        self.byte, self.position = nn.Embedding(256, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.Sequential(*(Block(dropout) for _ in range(LAYERS)))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 256, bias=False)

    def forward(self, inputs: Tensor, targets: Tensor) -> Tensor:
        x = self.byte(inputs) + self.position.weight[: inputs.shape[1]]
        logits = self.head(self.norm(self.blocks(x)))
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a small GPT on Python's standard library.")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--dropout", type=float, default=0.1)
    args = parser.parse_args()

    run = outlast.join()  # <- rank, world size, device, process group
    torch.manual_seed(args.seed)
    model = run.replicate(GPT(args.dropout))  # <- DDP, on this rank's device
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=args.steps)
    corpus = Corpus()
    loader = DataLoader(
        corpus, batch_sampler=outlast.StepSampler(corpus, batch_size=BATCH, seed=args.seed)
    )

    # <- what a repeated step needs back
    state = run.state(model=model, optimizer=optimizer, schedule=schedule, loader=loader)
    for step in run.steps(state, until=args.steps):  # <- the steps that are not committed yet
        with step:  # <- committed on every rank, or repeated
            inputs, targets = (part.to(run.device) for part in step.batch)
            loss = model(inputs, targets)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
            step.log(loss=loss.detach(), reduce="mean")

    digest = outlast.digest(model)
    if run.rank == 0:
        print("digest", digest, flush=True)


if __name__ == "__main__":
    main()
