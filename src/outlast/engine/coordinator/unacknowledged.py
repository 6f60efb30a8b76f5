"""Write sentences about nodes that do not acknowledge what other nodes send to their ranks.

Workers learn this from the kernel (TCP_INFO). They report it when they answer a ping, and in their
inventories. For a process that hangs or is stopped, the kernel still acknowledges. So these
sentences tell a cut link, or a machine without power, from a process that does nothing.

This module is pure.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence

from outlast.engine.coordinator.run_parts import RunParts
from outlast.model.texts import UNACKNOWLEDGED, count, some

# For each rank: those that do not acknowledge what it has sent, and how many bytes that is.
Said = Iterable[tuple[int, Sequence[int], Sequence[int]]]


def decision_reasons(run: RunParts) -> list[str]:
    """Return what is known of links when a regroup is decided. All inventories are there then."""
    links = [run.links.reason] if run.links else []
    held = [(m.rank, m.path.inventory) for m in run.roster.members()]
    said = [(rank, one.cut_off, one.cut_off_bytes) for rank, one in held if one is not None]
    return [*links, *reasons(said, run.roster.homes)]


def reasons(said: Said, homes: Mapping[int, str]) -> list[str]:
    """Return a sentence for each node that does not acknowledge what it was sent, sorted by name.

    said    what ranks have reported; peers on the rank's own node do not count
    homes   the node of each rank
    """
    bytes_of: dict[str, int] = {}
    senders: dict[str, set[str]] = {}
    for rank, others, counts in said:
        for other, sent in itertools.zip_longest(others, counts[: len(others)], fillvalue=0):
            here, there = homes.get(rank, ""), homes.get(other, "")
            if here and there and here != there:
                bytes_of[there] = bytes_of.get(there, 0) + sent
                senders.setdefault(there, set()).add(here)
    return [
        f"{count(bytes_of[node], 'byte') if bytes_of[node] else 'data'} {UNACKNOWLEDGED} {node}"
        f" (from {some(sorted(senders[node]))})"
        for node in sorted(bytes_of)
    ]
