"""The vote: one small all-reduce per step, which also carries what all ranks have to know of each other.

A sum over float64, so one collective carries all of it:
  [ranks that vote, ranks whose newest step is sealed, ranks asked to stop, key, key^2, key', key'^2, logged values ...]
Logged values are only summed if all ranks logged the same names; equality of the keys shows that
(sum(key)^2 == n * sum(key^2) only if all are equal). Those of the step in hand come first and have a key of their own:
a rank that was replaced lacks what its predecessor logged in the tail of the step before.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass

import torch
import torch.distributed as dist

from outlast.runtime.worker.membership import Membership

LOGGED_MAX = 27
_HEAD = 7
Values = tuple[tuple[str, float], ...]


@dataclass(frozen=True, slots=True)
class Ballot:
    """One rank's, or the outcome. `current` and `earlier`: names and values of the step in hand and of steps before, to be summed over
    ranks; None in an outcome whose names differ between ranks."""

    sealed: bool
    stop: bool
    current: Values | None = ()
    earlier: Values | None = ()


def vote(member: Membership, mine: Ballot) -> Ballot:
    """All ranks vote; returns the outcome. Raises what torch raises when a peer is lost; then nothing is known of the others."""
    current, earlier = mine.current or (), mine.earlier or ()
    keys = (_key(current), _key(earlier))
    values = [value for _, value in (*current, *earlier)]
    head = [1.0, float(mine.sealed), float(mine.stop), keys[0], keys[0] ** 2, keys[1], keys[1] ** 2]
    box = torch.tensor(head + values + [0.0] * (LOGGED_MAX - len(values)), dtype=torch.float64)
    group = dist.group.WORLD
    assert group is not None
    with member.guards.ours():
        group.allreduce([box]).wait()  # as dist.all_reduce, without its logging: half the processor time
    counted = box.tolist()
    world = member.world_size
    assert counted[0] == world, f"{counted[0]} of {world} ranks voted"
    same_current, same_earlier = (counted[at] ** 2 == world * counted[at + 1] for at in (3, 5))
    split = _HEAD + len(current)
    return Ballot(
        sealed=counted[1] == world, stop=counted[2] > 0,
        current=_named(current, counted[_HEAD:split]) if same_current else None,
        earlier=_named(earlier, counted[split:]) if same_current and same_earlier else None,
    )  # fmt: skip


def _key(values: Values) -> float:
    return float(zlib.crc32("\0".join(name for name, _ in values).encode()) % 65_521) if values else 0.0


def _named(values: Values, sums: list[float]) -> Values:
    return tuple((name, total) for (name, _), total in zip(values, sums, strict=False))
