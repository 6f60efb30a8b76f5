"""On which node each rank lives: first placement, and places for ranks that were lost.

Also on which node the copies of a rank's images lie, and which nodes keep parity of them.

This module is pure.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


def place(
    ranks: Sequence[int], *, homes: Mapping[int, str], room: Mapping[str, int]
) -> dict[int, str]:
    """Return a node for each rank, in the order of `ranks`.

    A rank stays where it was if there is room, and else goes to the first node with room. Ranks
    that find no room are left out. `room` holds the nodes that can be had, in order of preference,
    and how many more ranks each can take. Neighbouring ranks stay together.
    """
    left = dict(room)
    out: dict[int, str] = {}
    for rank in ranks:
        home = homes.get(rank, "")
        if left.get(home, 0) > 0:
            out[rank] = home
            left[home] -= 1
    names = iter(left)
    name = next(names, None)
    for rank in ranks:
        if rank in out:
            continue
        while name is not None and left[name] <= 0:
            name = next(names, None)
        if name is None:
            break
        out[rank] = name
        left[name] -= 1
    return out


def keepers(homes: Mapping[int, str], *, copies: int = 1) -> dict[int, tuple[str, ...]]:
    """Return the nodes that keep copies of each rank's images. Empty: there is but one node.

    The nodes that hold ranks form a ring, in the order of their lowest ranks. The `copies` nodes
    after a rank's own keep one copy each, or all others where there are fewer. So each node keeps
    copies for as many nodes, and any `copies` nodes can be lost at once. Of one node more, some
    must not be next to each other: they kept the copies of the others' ranks.
    """
    ring = list(dict.fromkeys(homes[rank] for rank in sorted(homes)))
    count = len(ring)
    if count < 2:
        return {}
    after = {
        node: tuple(ring[(at + by) % count] for by in range(1, min(copies, count - 1) + 1))
        for at, node in enumerate(ring)
    }
    return {rank: after[home] for rank, home in homes.items()}


@dataclass(frozen=True, slots=True)
class Stripe:
    """Parts of images of several ranks that are summed up, and the nodes that keep the sums.

    The rank at place c gives part c of its image. All nodes of a stripe differ.

    number    unique among the stripes of one placement
    ranks     the rank at each place; -1: its node has fewer ranks than others, and gives nothing
    holders   the node that keeps each row of parity
    """

    number: int
    ranks: tuple[int, ...]
    holders: tuple[str, ...]


def stripes(homes: Mapping[int, str], *, data: int, rows: int) -> tuple[Stripe, ...]:
    """Return the stripes in which parity of all images is kept. Empty: there are too few nodes.

    The nodes that hold ranks form a ring, in the order of their lowest ranks. At each node of the
    ring a stripe begins: this node and those after it give a part, `data` of them, and the `rows`
    nodes after these keep the sums. So each image is divided into `data` parts in as many stripes,
    each node keeps the same share of parity, and holders rotate. Any `rows` nodes can be lost at
    once, because no node has two places in a stripe. If a node has several ranks, its first ones
    form stripes with each other, then its second ones, and so on. A node that takes over all ranks
    of a lost one takes its place in the ring.
    """
    on: dict[str, list[int]] = {}
    for rank in sorted(homes):
        on.setdefault(homes[rank], []).append(rank)
    ring = list(on)
    count = len(ring)
    if count < data + rows:
        return ()
    out = []
    for layer in range(max(map(len, on.values()))):
        for begin in range(count):
            nodes = [ring[(begin + at) % count] for at in range(data + rows)]
            ranks = tuple(on[node][layer] if layer < len(on[node]) else -1 for node in nodes[:data])
            if any(rank >= 0 for rank in ranks):
                out.append(Stripe(layer * count + begin, ranks, tuple(nodes[data:])))
    return tuple(out)


def offers(
    lost: Sequence[int],
    *,
    homes: Mapping[int, str],
    spares: Sequence[tuple[int, str]],
    room: Mapping[str, int],
) -> dict[int, tuple[int, str]]:
    """Return what takes each lost rank: a spare and its node, or -1 and a node for a new process.

    Ranks that find no place are left out. If a rank's own node can be had, the rank stays there,
    because its sealed images are there. It is given to a spare, or to a fresh process. Otherwise a
    spare elsewhere comes first. `room` counts the places of the lost ranks themselves, if their
    node can be had. `spares` are (worker, node), best first.
    """
    left = dict(room)
    ready: dict[str, deque[int]] = {}
    for worker, node in spares:
        ready.setdefault(node, deque()).append(worker)
    out: dict[int, tuple[int, str]] = {}
    for rank in lost:
        home = homes.get(rank, "")
        if left.get(home, 0) > 0:
            left[home] -= 1
            out[rank] = (ready[home].popleft() if ready.get(home) else -1, home)
    for rank in lost:
        other = (
            next(
                (node for node, workers in ready.items() if workers and left.get(node, 0) > 0), None
            )
            if rank not in out
            else None
        )
        if other is not None:
            left[other] -= 1
            out[rank] = (ready[other].popleft(), other)
    for rank, node in place(
        [rank for rank in lost if rank not in out], homes={}, room=left
    ).items():
        out[rank] = (-1, node)
    return out
