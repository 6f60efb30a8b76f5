"""What torch's wrapper of process groups says when ranks call different collectives.

With TORCH_DISTRIBUTED_DEBUG=DETAIL every rank compares its call with those of the others before it
makes it. If they differ, it raises an error with two fingerprints:

    [rank0]: RuntimeError: Detected mismatch between collectives on ranks. Rank 0 is running
    collective: CollectiveFingerPrint(SequenceNumber=40, OpType=ALLREDUCE, TensorShape=[256],
    TensorDtypes=Float, ...), but Rank 1 is running collective: CollectiveFingerPrint(...)

One line names two ranks. The lines of all ranks together show which of them is the odd one.

This module is pure: no clock, no files, no torch.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from outlast.diagnose.findings import Finding

_CALL = re.compile(
    r"rank (\d{1,6}) is running collective: collectivefingerprint\("
    r"sequencenumber=(\d{1,12}), optype=(\w{1,40})"
    r"(?:, tensorshape=\[([\d, x]{0,200})\])?(?:, tensordtypes=(\w{1,40}))?"
)


@dataclass(frozen=True, slots=True)
class CollectiveCall:
    """A collective that a rank was about to make: `what` is its operation, shape and type."""

    rank: int
    sequence: int
    what: str


@dataclass(frozen=True, slots=True)
class Fingerprints(Finding):
    """A line that compares the calls of two ranks."""

    calls: tuple[CollectiveCall, ...] = ()


@dataclass(frozen=True, slots=True)
class OddCall:
    """The ranks that called something else than most ranks, and what each side called.

    lines   the findings that name one of these ranks
    """

    ranks: tuple[int, ...]
    called: str
    usual: str
    lines: tuple[Fingerprints, ...]


def read_fingerprints(low: str) -> tuple[CollectiveCall, ...]:
    """Return the calls that a line in lower case compares; empty if it compares none."""
    return tuple(
        CollectiveCall(
            int(found[1]),
            int(found[2]),
            " ".join(
                part for part in (found[3], found[5], f"[{found[4]}]" if found[4] else "") if part
            ),
        )
        for found in _CALL.finditer(low)
    )


def odd_call(findings: Iterable[Finding]) -> OddCall | None:
    """Return who called something else than most ranks did; None without a clear majority.

    Only the first number at which calls differ counts: what comes after it follows from it.
    """
    lines = [one for one in findings if isinstance(one, Fingerprints)]
    by_number: dict[int, dict[int, str]] = defaultdict(dict)
    for one in lines:
        for call in one.calls:
            by_number[call.sequence].setdefault(call.rank, call.what)
    for _, called in sorted(by_number.items()):
        counts = Counter(called.values()).most_common()
        if len(counts) < 2:
            continue
        usual, most = counts[0]
        if most * 2 <= len(called):
            return None
        odd = sorted(rank for rank, what in called.items() if what != usual)
        return OddCall(
            tuple(odd),
            " or ".join(sorted({called[rank] for rank in odd})),
            usual,
            tuple(one for one in lines if any(call.rank in odd for call in one.calls)),
        )
    return None
