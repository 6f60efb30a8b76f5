"""Which lines of a block are worth a look: all that could match a rule, and few others.

Every rule needs one of its literals ("needles", `rules/table.py`). Of each needle the rarest four
bytes are kept in a table of 2^20 bits; a block of text, in lower case, is looked up four bytes at a
time with numpy. What the table lets through is checked by the rules themselves, so a collision
costs time and never a finding.

This module is pure: no clock, no files, no torch.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

GRAM = 4
BITS = 20
_MULTIPLIER = np.uint32(2654435761)  # Knuth's multiplicative hash
_SHIFT = np.uint32(32 - BITS)
# Words that healthy logs are made of: four bytes that occur in them make a poor sieve.
HEALTHY = b"""
[2024-05-01 12:00:00,      123] iteration        1/          2  info warning debug (rank 0) : \
[rank0]: [default0]: 0: iteration iterations epoch step
 steps | consumed samples: elapsed time per iteration (ms):  learning rate: global batch size: \
micro batch lm loss: 1.0e-04 loss scale: grad norm:
 num zeros params number of skipped iterations: nan iterations: | train training trainer  \
validation evaluating evaluation accuracy perplexity
 throughput tokens per second samples/s tflops mfu gpu memory allocated reserved cached max peak \
gb mb gib device cuda  loading loaded saving saved
 successfully checkpoint checkpoints at from to shard model state optimizer scheduler started \
finished starting done end begin complete completed
 nccl info channel ring tree via p2p/cumem net/ib/0/gdrdma trees connected all rings init \
complete comm nranks busid commid bootstrap using network
 interface ncclcomminitrank  distributed backend world size local group initialized initializing \
process launch running version python torch pytorch
 transformers site-packages config configuration argument  arguments setting default using data \
dataset dataloader workers num batch batches index
 shuffle seed cache building built compile compiled inductor forward backward update  kernel: usb \
cpu audit systemd session user root of service
 started. reached target eth0 link up ipv6 ipv4 docker bridge port entered forwarding blocking \
promiscuous mode  node0 node1 host worker-0 trainer.py
 main.py utils.py read write open send recv cumem/read code total found only slow fast down drain \
cost error_rate errors: 0  http https 200 ok get
 post metrics health request response client server address available enabled disabled true false \
none null value values name path file files
"""


class Sieve:
    """A filter of lines: `found(lines)` gives the owners of the needles in each line, ascending."""

    def __init__(self, needles: Sequence[Iterable[bytes]]) -> None:
        self._table = np.zeros(1 << BITS, dtype=bool)
        # four bytes -> (where in the needle, needle, owner)
        self._needles: dict[bytes, list[tuple[int, bytes, int]]] = {}
        for owner, some in enumerate(needles):
            for needle in some:
                assert len(needle) >= GRAM, needle
                gram = rarest(needle)
                self._needles.setdefault(gram, []).append((needle.index(gram), needle, owner))
        for gram in self._needles:
            self._table[_hash(np.frombuffer(gram, dtype=np.uint8))] = True

    def found(self, lines: Sequence[bytes]) -> dict[int, tuple[int, ...]]:
        """Return the owners of the needles in each line, by the line's place in `lines`.

        The lines are in lower case, and may end in a newline.
        """
        block = b"".join(lines)
        if len(block) < GRAM:
            return {}
        hits = np.flatnonzero(self._table[_hash(np.frombuffer(block, dtype=np.uint8))])
        if not len(hits):
            return {}
        ends = np.cumsum(np.fromiter(map(len, lines), dtype=np.int64, count=len(lines)))
        rows = np.searchsorted(ends, hits, side="right").tolist()
        found: dict[int, set[int]] = {}
        for row, at in zip(rows, hits.tolist(), strict=True):
            for offset, needle, owner in self._needles.get(block[at : at + GRAM], ()):
                if block.startswith(needle, at - offset):
                    found.setdefault(row, set()).add(owner)
        return {row: tuple(sorted(owners)) for row, owners in found.items()}


def rarest(needle: bytes) -> bytes:
    """Return the four bytes of a needle that healthy logs hold least often."""
    return min((needle[at : at + GRAM] for at in range(len(needle) - GRAM + 1)), key=HEALTHY.count)


def _hash(octets: NDArray[np.uint8]) -> NDArray[np.uint32]:
    wide = octets.astype(np.uint32)
    words: NDArray[np.uint32] = (
        wide[:-3]
        | (wide[1:-2] << np.uint32(8))
        | (wide[2:-1] << np.uint32(16))
        | (wide[3:] << np.uint32(24))
    )
    words *= _MULTIPLIER
    words >>= _SHIFT
    return words
