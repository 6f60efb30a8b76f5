"""The vote: all ranks exchange one small row of numbers at each step.

Each rank gives a row of float64, and gets the rows of all ranks:

    vote             1
    sealed           1 if the newest step is sealed
    flags            the sum of: 1, it was asked to stop; 2, it was asked for a checkpoint; 4, it
                     votes late; 8, it is unsure; 16, it was asked to seal after each step; and 32
                     times the bits of `Ballot.keep`
    ready            for how many seconds it has been ready
    current, earlier checksums of the names of logged values: of this step, and of earlier steps.
                     Values are summed only if all ranks logged the same names. Two checksums are
                     needed, because a replaced rank lacks what its predecessor had logged at the
                     end of the step before
    movers           `PrivateState.movers_key`; compared between the ranks
    watched          `Watch.key`; compared between the ranks
    values ...       the logged values

Sums are made in the order of the ranks, so that all ranks get the same bits.

Ranks of one node vote through shared memory (`shared_vote`). Those of several nodes do so on each
node, and the nodes send each other messages of gloo (`node_votes`). There one rank of each node
makes the tally for all of its ranks.
"""

from __future__ import annotations

import functools
import itertools
import operator
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

from outlast.model.limits import BALLOT_MAX_BYTES
from outlast.runtime.worker.communication.node_votes import ROW_LENGTH
from outlast.runtime.worker.member.membership import Membership

LOGGED_MAX = 27
_HEAD = 8  # how many numbers of a ballot come before its values
_TALLY_HEAD = 9  # how many numbers of a tally come before its sums
assert _HEAD + LOGGED_MAX == ROW_LENGTH
assert (_TALLY_HEAD + LOGGED_MAX) * 8 <= BALLOT_MAX_BYTES
Values = tuple[tuple[str, float], ...]


@dataclass(frozen=True, slots=True)
class Ballot:
    """The values that one rank gives to a vote.

    sealed             this rank has sealed the image that is due
    stop               this rank was asked to stop
    save               this rank was asked for a checkpoint of the step
    seal               this rank was asked to let all ranks seal after each step
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
    seal: bool = False


@dataclass(frozen=True, slots=True)
class VoteOutcome:
    """The result of a vote that has passed. All ranks know it.

    sealed                      all ranks have sealed the image that is due
    stop                        some rank was asked to stop
    save                        some rank was asked for a checkpoint of the step
    seal                        some rank was asked to let all ranks seal after each step
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
    seal: bool = False


def vote(member: Membership, mine: Ballot) -> VoteOutcome:
    """Vote with all ranks, and return the outcome.

    If a peer is lost, the error of torch is raised, and it is not known how the others voted.
    """
    keys = (_key(mine.current), _key(mine.earlier))
    values = [value for _, value in (*mine.current, *mine.earlier)]
    flags = mine.stop + 2 * mine.save + 4 * mine.late + 8 * mine.unsure + 16 * mine.seal
    flags += 32 * mine.keep
    head = [1.0, float(mine.sealed), float(flags), mine.ready_s, *keys, mine.movers, mine.watched]
    with member.guards.ours():
        told = member.ballots.exchange(head + values, tally)
    votes, sealed, wished, least_s, most_s, *same = told[:_TALLY_HEAD]
    assert votes == member.world_size, f"{votes:g} of {member.world_size} ranks voted"
    current, earlier, movers, watched = (bool(one) for one in same)
    sums, split = told[_TALLY_HEAD:], len(mine.current)
    wished_bits = int(wished)
    return VoteOutcome(
        sealed=sealed == member.world_size,
        stop=bool(wished_bits & 1),
        current=_named(mine.current, sums[:split]) if current else None,
        earlier=_named(mine.earlier, sums[split:]) if current and earlier else None,
        same_movers=movers,
        same_watched=watched,
        ready_s=(least_s, most_s),
        save=bool(wished_bits & 2),
        unsure=wished_bits & 12 == 8,
        seal=bool(wished_bits & 16),
        keep=wished_bits >> 5,
    )


def tally(rows: Sequence[Sequence[float]]) -> list[float]:
    """Return the tally of the ballots of all ranks, which are given by rank:

    votes, sealed                       how many ranks have voted, and how many have sealed
    flags                               all bits that any rank has set
    ready                               the smallest and the largest
    current, earlier, movers, watched   1 if all ranks have given the same, otherwise 0
    sums ...                            of the logged values; they are valid if all ranks have
                                        logged the same names
    """
    columns = list(itertools.zip_longest(*rows, fillvalue=0.0))
    votes, sealed, flags, ready, *same = columns[:_HEAD]
    *alike, watched = same
    return [
        sum(votes),
        sum(sealed),
        float(functools.reduce(operator.or_, map(int, flags))),
        min(ready),
        max(ready),
        *(float(len(set(column)) == 1) for column in alike),
        float(len(set(watched)) == 1 or min(watched) * max(watched) <= 0),
        *(sum(column) for column in columns[_HEAD:]),
    ]


def _key(values: Values) -> float:
    return (
        float(zlib.crc32("\0".join(name for name, _ in values).encode()) % 65_521)
        if values
        else 0.0
    )


def _named(values: Values, sums: list[float]) -> Values:
    return tuple((name, total) for (name, _), total in zip(values, sums, strict=False))
