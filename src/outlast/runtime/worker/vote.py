"""The vote: one small all-reduce per step, which also carries what all ranks have to know of each other.

A sum over float64, so one collective carries all of it:
  [ranks that vote, ranks whose newest step is sealed, ranks asked to stop, key, key^2, logged values ...]
Logged values are only summed if all ranks logged the same names; equality of the keys shows that
(sum(key)^2 == n * sum(key^2) only if all are equal).
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass

import torch
import torch.distributed as dist

from outlast.runtime.worker.membership import Membership

LOGGED_MAX = 27
_HEAD = 5


@dataclass(frozen=True, slots=True)
class Ballot:
    """One rank's, or the outcome. `logs`: names and values to be summed over ranks; empty in an outcome whose names differ."""

    sealed: bool
    stop: bool
    logs: tuple[tuple[str, float], ...]


def vote(member: Membership, mine: Ballot) -> Ballot:
    """All ranks vote; returns the outcome. Raises what torch raises when a peer is lost; then nothing is known of the others."""
    logs = mine.logs[:LOGGED_MAX]
    key = float(zlib.crc32("\0".join(name for name, _ in logs).encode()) % 65_521) if logs else 0.0
    box = torch.zeros(_HEAD + LOGGED_MAX, dtype=torch.float64)
    box[:_HEAD] = torch.tensor([1.0, float(mine.sealed), float(mine.stop), key, key * key], dtype=torch.float64)
    if logs:
        box[_HEAD : _HEAD + len(logs)] = torch.tensor([value for _, value in logs], dtype=torch.float64)
    with member.guards.ours():
        dist.all_reduce(box)
    counted = box.tolist()
    world = member.world_size
    assert counted[0] == world, f"{counted[0]} of {world} ranks voted"
    same = counted[3] * counted[3] == world * counted[4]
    summed = tuple((name, counted[_HEAD + index]) for index, (name, _) in enumerate(logs)) if same else ()
    return Ballot(sealed=counted[1] == world, stop=counted[2] > 0, logs=summed)
