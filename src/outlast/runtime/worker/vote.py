"""The vote: one small exchange per step, which also carries what all ranks have to know of each other.

A sum over all ranks of float64, added up in the order of the ranks, so that all get the same bits:
  [ranks that vote, ranks whose newest step is sealed, ranks asked to stop, key, key^2, key', key'^2, logged values ...]
Logged values are only summed if all ranks logged the same names; equality of the keys shows that
(sum(key)^2 == n * sum(key^2) only if all are equal). Those of the step in hand come first and have a key of their own:
a rank that was replaced lacks what its predecessor logged in the tail of the step before.

Ranks of one node vote through shared memory (`ballots`). Else it is an all-to-all of the default group: one message's way, where gloo's
all-reduce goes round a ring, 2 (n - 1) messages one after the other (measured: three times as long).
"""

from __future__ import annotations

import itertools
import struct
import zlib
from dataclasses import dataclass

import torch
import torch.distributed as dist

from outlast.model.limits import BALLOT_MAX_BYTES
from outlast.runtime.worker.membership import Membership

LOGGED_MAX = 27
_HEAD = 7
assert (_HEAD + LOGGED_MAX) * 8 <= BALLOT_MAX_BYTES
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
    counted = [sum(column) for column in itertools.zip_longest(*_exchange(member, head + values), fillvalue=0.0)]
    world = member.world_size
    assert counted[0] == world, f"{counted[0]} of {world} ranks voted"
    same_current, same_earlier = (counted[at] ** 2 == world * counted[at + 1] for at in (3, 5))
    split = _HEAD + len(current)
    return Ballot(
        sealed=counted[1] == world, stop=counted[2] > 0,
        current=_named(current, counted[_HEAD:split]) if same_current else None,
        earlier=_named(earlier, counted[split:]) if same_current and same_earlier else None,
    )  # fmt: skip


def _exchange(member: Membership, mine: list[float]) -> list[tuple[float, ...]]:
    """Every rank's numbers, by rank."""
    if member.ballots is not None:
        return [struct.unpack(f"<{len(ballot) // 8}d", ballot) for ballot in member.ballots.exchange(struct.pack(f"<{len(mine)}d", *mine))]
    world = member.world_size
    sent = torch.tensor((mine + [0.0] * (_HEAD + LOGGED_MAX - len(mine))) * world, dtype=torch.float64)
    came = torch.empty_like(sent)
    group = dist.group.WORLD
    assert group is not None
    with member.guards.ours():
        group.alltoall_base(came, sent, [], []).wait()
    return [tuple(row) for row in came.view(world, -1).tolist()]


def _key(values: Values) -> float:
    return float(zlib.crc32("\0".join(name for name, _ in values).encode()) % 65_521) if values else 0.0


def _named(values: Values, sums: list[float]) -> Values:
    return tuple((name, total) for (name, _), total in zip(values, sums, strict=False))
