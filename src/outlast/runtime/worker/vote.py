"""The vote: all ranks exchange one small row of numbers at each step.

Each rank gives a row of float64, and gets the rows of all ranks:

    vote             1
    sealed           1 if the newest step is sealed
    flags            the sum of: 1, it was asked to stop; 2, it was asked for a checkpoint; 4, it
                     votes late; 8, it is unsure; and 16 times the bits of `Ballot.keep`
    ready            for how many seconds it has been ready
    current, earlier checksums of the names of logged values: of this step, and of earlier steps.
                     Values are summed only if all ranks logged the same names. Two checksums are
                     needed, because a replaced rank lacks what its predecessor had logged at the
                     end of the step before
    movers           `PrivateState.movers_key`; compared between the ranks
    watched          `Watch.key`; compared between the ranks
    values ...       the logged values

Sums are made in the order of the ranks, so that all ranks get the same bits.

Ranks of one node vote through shared memory (`shared_vote`). Otherwise the vote is an all-to-all of
the default group, which takes as long as one message. Gloo's all-reduce goes round a ring, and its
2 (n - 1) messages follow one another (measured: three times as long).
"""

from __future__ import annotations

import functools
import itertools
import operator
import struct
import zlib
from dataclasses import dataclass

import torch
import torch.distributed as dist

from outlast.model.limits import BALLOT_MAX_BYTES
from outlast.runtime.worker.membership import Membership

LOGGED_MAX = 27
_HEAD = 8
assert (_HEAD + LOGGED_MAX) * 8 <= BALLOT_MAX_BYTES
Values = tuple[tuple[str, float], ...]


@dataclass(frozen=True, slots=True)
class Ballot:
    """The values that one rank gives to a vote.

    sealed             this rank has sealed the image that is due
    stop               this rank was asked to stop
    save               this rank was asked for a checkpoint of the step
    late               this rank votes after the optimizer
    unsure             this rank has seen private parts move that no vote has compared yet
    keep               where this rank wants a copy of the state after this step: bits of keeping.py
    current, earlier   names and values that were logged in this step and in earlier steps, to be
                       summed over the ranks
    movers             a checksum of the private parts that change after the vote; 0 if none do
    watched            a checksum of the piece of replicated state that is compared in this step. It
                       is negative if it was taken after the optimizer, and 0 if nothing is
                       compared. Checksums that were taken at different times are not compared
    ready_s            how long after the fault was seen this rank was in the generation with its
                       state. Without a fault: for how long it has been ready
    """

    sealed: bool
    stop: bool
    current: Values = ()
    earlier: Values = ()
    movers: float = 0.0
    watched: float = 0.0
    ready_s: float = 0.0
    save: bool = False
    late: bool = False
    unsure: bool = False
    keep: int = 0


@dataclass(frozen=True, slots=True)
class VoteOutcome:
    """The result of a vote that has passed. All ranks know it.

    sealed                      all ranks have sealed the image that is due
    stop                        some rank was asked to stop
    save                        some rank was asked for a checkpoint of the step
    unsure                      some rank has seen private parts move that no vote has compared yet,
                                and no rank votes after the optimizer
    keep                        the bits of all ranks' `keep` together
    current, earlier            sums over ranks; None where the names differ between ranks
    same_movers, same_watched   all ranks gave the same number
    ready_s                     the least and the most of all ranks' `ready_s`
    """

    sealed: bool
    stop: bool
    current: Values | None = ()
    earlier: Values | None = ()
    same_movers: bool = True
    same_watched: bool = True
    ready_s: tuple[float, float] = (0.0, 0.0)
    save: bool = False
    unsure: bool = False
    keep: int = 0


def vote(member: Membership, mine: Ballot) -> VoteOutcome:
    """Vote with all ranks, and return the outcome.

    If a peer is lost, the error of torch is raised, and the vote of the others is not known.
    """
    keys = (_key(mine.current), _key(mine.earlier))
    values = [value for _, value in (*mine.current, *mine.earlier)]
    flags = mine.stop + 2 * mine.save + 4 * mine.late + 8 * mine.unsure + 16 * mine.keep
    head = [1.0, float(mine.sealed), float(flags), mine.ready_s, *keys, mine.movers, mine.watched]
    rows = _exchange(member, head + values)
    votes, sealed, wished, ready, *same = (
        column
        for column, _ in zip(
            itertools.zip_longest(*rows, fillvalue=0.0), range(_HEAD), strict=False
        )
    )
    assert sum(votes) == member.world_size, f"{sum(votes)} of {member.world_size} ranks voted"
    *columns, watched = same
    current, earlier, movers = (len(set(column)) == 1 for column in columns)
    sums = [
        sum(column)
        for column in itertools.zip_longest(*(row[_HEAD:] for row in rows), fillvalue=0.0)
    ]
    split = len(mine.current)
    wished_bits = functools.reduce(operator.or_, map(int, wished))
    return VoteOutcome(
        sealed=sum(sealed) == member.world_size,
        stop=bool(wished_bits & 1),
        current=_named(mine.current, sums[:split]) if current else None,
        earlier=_named(mine.earlier, sums[split:]) if current and earlier else None,
        same_movers=movers,
        same_watched=len(set(watched)) == 1 or min(watched) * max(watched) <= 0,
        ready_s=(min(ready), max(ready)),
        save=bool(wished_bits & 2),
        unsure=wished_bits & 12 == 8,
        keep=wished_bits >> 4,
    )


def _exchange(member: Membership, mine: list[float]) -> list[tuple[float, ...]]:
    """Return every rank's numbers, by rank."""
    if member.pages is not None:
        return [
            struct.unpack(f"<{len(ballot) // 8}d", ballot)
            for ballot in member.pages.vote.exchange(struct.pack(f"<{len(mine)}d", *mine))
        ]
    world = member.world_size
    sent = torch.tensor(
        (mine + [0.0] * (_HEAD + LOGGED_MAX - len(mine))) * world, dtype=torch.float64
    )
    came = torch.empty_like(sent)
    group = dist.group.WORLD
    assert group is not None
    with member.guards.ours():
        group.alltoall_base(came, sent, [], []).wait()
    return [tuple(row) for row in came.view(world, -1).tolist()]


def _key(values: Values) -> float:
    return (
        float(zlib.crc32("\0".join(name for name, _ in values).encode()) % 65_521)
        if values
        else 0.0
    )


def _named(values: Values, sums: list[float]) -> Values:
    return tuple((name, total) for (name, _), total in zip(values, sums, strict=False))
