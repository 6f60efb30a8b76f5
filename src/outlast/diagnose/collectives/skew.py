"""How far apart the clocks of ranks are, from collectives that they entered together.

All ranks of a group enter a collective within moments of each other, a step's time at most. Clocks
of badly kept hosts differ by minutes or hours. So compare when two ranks entered the collectives
that they have in common. The median difference is the offset of their clocks, and includes how much
later one rank usually comes. This is good enough to put hosts on one clock. It does not measure a
straggler.

This module is pure.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable

from outlast.diagnose.collectives.state import Dump

_Key = tuple[str, str, object]


def clock_offsets(dumps: Iterable[Dump]) -> dict[int, float]:
    """Return by how many seconds each rank's clock is ahead.

    It is compared with the lowest rank that it is connected with through common collectives.
    """
    times: dict[int, dict[_Key, dict[int, int]]] = {}
    ranks_of: dict[_Key, list[int]] = defaultdict(list)
    for dump in sorted(dumps, key=lambda dump: dump.rank):
        mine = times.setdefault(dump.rank, {})
        for state in dump.groups:
            if state.created_ns:
                key = (state.name, state.backend, id(state.members) if state.members else None)
                mine[key] = dict(state.created_ns)
                ranks_of[key].append(dump.rank)
    offsets: dict[int, float] = {}
    for first in sorted(times):
        if first not in offsets:
            offsets[first] = 0.0
            _spread(first, times, ranks_of, offsets)
    return offsets


def _spread(
    first: int,
    times: dict[int, dict[_Key, dict[int, int]]],
    ranks_of: dict[_Key, list[int]],
    offsets: dict[int, float],
) -> None:
    """Go from rank to rank by what they have in common; each group is gone through once."""
    waiting, done = deque([first]), set[_Key]()
    while waiting:
        known = waiting.popleft()
        for key, mine in times[known].items():
            if key in done:
                continue
            done.add(key)
            for rank in ranks_of[key]:
                common = mine.keys() & times[rank][key].keys() if rank not in offsets else ()
                if common:
                    offsets[rank] = (
                        offsets[known]
                        + _median(times[rank][key][seq] - mine[seq] for seq in common) / 1e9
                    )
                    waiting.append(rank)


def _median(values: Iterable[int]) -> int:
    """Return the lower of the two values in the middle.

    Importing `statistics` takes longer than this module needs for a thousand ranks.
    """
    ordered = sorted(values)
    return ordered[(len(ordered) - 1) // 2]
