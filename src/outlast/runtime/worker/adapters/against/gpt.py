"""A small GPT that is trained on the source text of Python's standard library, byte by byte.

A batch and its random numbers depend on the step and the rank alone, and not on what came before.
So a step that is repeated, also from a checkpoint, gives the same bits under every launcher.

A drill reads two kinds of lines: `step 12`, printed once for each step by one of the ranks, and
`digest 0a1b...`, printed at the end.
"""

from __future__ import annotations

import sys
import sysconfig
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

# 1.9 million parameters: with AdamW's moments, 23 MB of state
CONTEXT, WIDTH, HEADS, LAYERS = 64, 192, 6, 4
SEQUENCES = 2  # in the batch of each rank
RANKS_MOST = 4_096


class GPT(nn.Module):
    """A model that takes bytes, and returns the loss of predicting each next byte."""

    def __init__(self) -> None:
        super().__init__()
        self.byte, self.position = nn.Embedding(256, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        block = nn.TransformerEncoderLayer(
            WIDTH, HEADS, 4 * WIDTH, activation="gelu", batch_first=True, norm_first=True
        )
        self.blocks = nn.TransformerEncoder(block, LAYERS, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, 256, bias=False)
        self.mask: Tensor
        mask = nn.Transformer.generate_square_subsequent_mask(CONTEXT)
        self.register_buffer("mask", mask, persistent=False)

    def forward(self, windows: Tensor) -> Tensor:
        inputs, targets = windows[:, :-1], windows[:, 1:]
        x = self.byte(inputs) + self.position.weight
        guesses = self.head(self.blocks(x, mask=self.mask, is_causal=True))
        return functional.cross_entropy(guesses.flatten(0, 1), targets.flatten())


class Corpus:
    """The training text, as bytes."""

    def __init__(self) -> None:
        files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
        text = b"".join(file.read_bytes() for file in files)
        self._text = torch.frombuffer(bytearray(text), dtype=torch.uint8)

    def batch(self, step: int, rank: int) -> Tensor:
        """Return a rank's windows of a step. This also seeds the random numbers of that step."""
        torch.manual_seed(step * RANKS_MOST + rank)
        begins = torch.randint(len(self._text) - CONTEXT - 1, (SEQUENCES,)).tolist()
        return torch.stack([self._text[at : at + CONTEXT + 1] for at in begins]).long()


def optimizer_of(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=1e-3)


def say(line: str) -> None:
    """Print a line for the drill with one write, so that no other process writes into it."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()
