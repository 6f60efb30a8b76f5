"""The rank that a file's name claims for a dump.

If the content names the rank (dumps.py), it counts more. The names of all files are judged together
(identity.py).

Recorders append the rank to a prefix; people put hosts, dates, attempts and extensions around it.
Known forms, first match wins:
    rank7 rank-7 rank_007 rank=7      anywhere in the file's name
    nccl_trace_rank_host12_7, _dump_7, fr.7.json.gz   digits at the end, after any extensions
    rank_7/trace.pickle, 7/trace      the same two of the folder that it is in
    7_of_16.json, "dump_7 (copy)"     the number before "of"; the first number, if nothing else

This module is pure.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

RANKS_MAX = 1 << 20  # a larger number is a date or a process id

_NAMED = re.compile(r"(?<![a-zA-Z])(?:global_?)?rank[-_=. ]?(\d+)(?!\d)", re.IGNORECASE)
_EXTENSION = re.compile(r"\.(?!\d+$)[A-Za-z0-9]{1,12}$")
_OF = re.compile(r"(\d+)[-_ ]?of[-_ ]?\d+$", re.IGNORECASE)
_LAST = re.compile(r"(\d+)$")
_FIRST = re.compile(r"\d+")


@dataclass(frozen=True, slots=True)
class RankClaim:
    """The rank that a file's name claims, and how much that claim counts.

    strength   2: the name says "rank" or "7_of_16"; 1: the rank is its last number; 0: any number
    pattern    the name without that number. It is the same for files that were named in one way
    """

    rank: int
    strength: int
    pattern: str


def claim_of(name: str) -> RankClaim | None:
    """Return the rank that the name of a dump claims; None if it has no number."""
    parts = [part for part in re.split(r"[/\\!]", name)[-2:] if part]
    for part in reversed(parts):
        stem = part
        while (shorter := _EXTENSION.sub("", stem)) != stem and shorter:
            stem = shorter
        for strength, pattern in ((2, _NAMED), (2, _OF), (1, _LAST)):
            if (found := pattern.search(stem)) and (rank := _number(found.group(1))) is not None:
                return RankClaim(rank, strength, f"{stem[: found.start(1)]}*{stem[found.end(1) :]}")
    if (
        parts
        and (found := _FIRST.search(parts[-1]))
        and (rank := _number(found.group())) is not None
    ):
        return RankClaim(rank, 0, f"{parts[-1][: found.start()]}*{parts[-1][found.end() :]}")
    return None


def rank_of_dump(name: str) -> int | None:
    """Return the rank that the name of a dump claims, however weakly; None if it has no number."""
    claim = claim_of(name)
    return None if claim is None else claim.rank


def _number(digits: str) -> int | None:
    return int(digits) if len(digits) < 10 and int(digits) < RANKS_MAX else None
