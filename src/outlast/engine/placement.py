"""Decide on which node each rank lives, and which nodes keep copies or parity of its images.

A *domain* is a set of nodes that can be lost together: those of a rack, or behind one switch. A
node that names none counts as a domain of its own.

This module is pure.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

_NO_DOMAINS: Mapping[str, str] = {}


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


def ring_of(homes: Mapping[int, str], domains: Mapping[str, str], *, size: int) -> list[str]:
    """Return the nodes that hold ranks, in a ring in which neighbours are of different domains.

    domains   the domain of each node; "": it names none
    size      nodes in a row that depend on each other

    Any `size` nodes in a row are of `size` different domains, if no domain has more than one in
    `size` of all nodes. Otherwise nodes of one domain are as far apart as possible. If the order of
    the nodes' lowest ranks has this property, it is kept.

    Method: the nodes are listed by domain, the largest domain first. They are then dealt out in
    turn to a number of rounds: as many as the largest domain has nodes, or more if each round still
    gets `size` nodes. So no round gets two nodes of one domain. A domain with a node in each round
    has it at the same place of each, so that nodes of two rounds are never too close.
    """
    nodes = list(dict.fromkeys(homes[rank] for rank in sorted(homes)))
    by_domain: dict[tuple[bool, str], list[str]] = {}
    for node in nodes:
        by_domain.setdefault(_domain_of(node, domains), []).append(node)
    count, size = len(nodes), min(size, len(nodes))
    row = [_domain_of(node, domains) for node in nodes]
    if all(len({row[(at + by) % count] for by in range(size)}) == size for at in range(count)):
        return nodes
    listed = [node for one in sorted(by_domain.values(), key=len, reverse=True) for node in one]
    rounds = max(*map(len, by_domain.values()), count // size)
    return [listed[at] for first in range(rounds) for at in range(first, count, rounds)]


def _domain_of(node: str, domains: Mapping[str, str]) -> tuple[bool, str]:
    """Return the domain of a node. A node that names none is one of its own, whatever its name."""
    named = domains.get(node, "")
    return (True, named) if named else (False, node)


def keepers(
    homes: Mapping[int, str], *, copies: int = 1, domains: Mapping[str, str] = _NO_DOMAINS
) -> dict[int, tuple[str, ...]]:
    """Return the nodes that keep copies of each rank's images. Empty: there is but one node.

    The nodes that hold ranks form a ring (`ring_of`). The `copies` nodes after a rank's own node
    keep one copy each, or all other nodes if there are fewer. So each node keeps copies for as many
    nodes, and any `copies` nodes can be lost at once. If one more is lost with them, images are
    lost only if all these nodes are next to each other in the ring: then they kept all copies of
    the first one's images.
    """
    ring = ring_of(homes, domains, size=copies + 1)
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


def stripes(
    homes: Mapping[int, str], *, data: int, rows: int, domains: Mapping[str, str] = _NO_DOMAINS
) -> tuple[Stripe, ...]:
    """Return the stripes in which parity of all images is kept. Empty: there are too few nodes.

    The nodes that hold ranks form a ring (`ring_of`). At each node of the ring a stripe begins:
    this node and those after it give a part, `data` of them, and the `rows` nodes after these keep
    the sums. So each image is divided into `data` parts in as many stripes, each node keeps the
    same share of parity, and holders rotate. Any `rows` nodes can be lost at once, because no node
    has two places in a stripe. If a node has several ranks, its first ones form stripes with each
    other, then its second ones, and so on. A node that takes over all ranks of a lost one takes its
    place in the ring, if it is of the same domain.
    """
    on: dict[str, list[int]] = {}
    for rank in sorted(homes):
        on.setdefault(homes[rank], []).append(rank)
    ring = ring_of(homes, domains, size=data + rows)
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


@dataclass(frozen=True, slots=True)
class KeptGroup:
    """Nodes that depend on each other: those that give parts, and those that keep the sums.

    Copies are sums of one part.
    """

    givers: frozenset[str]
    holders: frozenset[str]

    def survives(self, lost: Collection[str]) -> bool:
        """Return whether all parts can still be had when the nodes `lost` are gone."""
        return len(self.givers.intersection(lost)) <= len(self.holders.difference(lost))


def groups_of_copies(
    homes: Mapping[int, str], placed: Mapping[int, tuple[str, ...]]
) -> frozenset[KeptGroup]:
    """Return the groups of nodes that `keepers` made depend on each other."""
    return frozenset(
        KeptGroup(frozenset([homes[rank]]), frozenset(nodes)) for rank, nodes in placed.items()
    )


def groups_of_parity(homes: Mapping[int, str], placed: Iterable[Stripe]) -> frozenset[KeptGroup]:
    """Return the groups of nodes that `stripes` made depend on each other."""
    return frozenset(
        KeptGroup(
            frozenset(homes[rank] for rank in stripe.ranks if rank >= 0), frozenset(stripe.holders)
        )
        for stripe in placed
    )


def exposed(groups: Iterable[KeptGroup], domains: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
    """Return the domains whose loss takes images, and the nodes of each whose images it takes.

    Domains of one node are left out: no node has two places in a group.
    """
    nodes_of: dict[str, set[str]] = {}
    for node, domain in domains.items():
        if domain:
            nodes_of.setdefault(domain, set()).add(node)
    found: dict[str, set[str]] = {}
    for group in groups:
        for domain in {domains.get(node, "") for node in group.givers} - {""}:
            if not group.survives(nodes_of[domain]):
                found.setdefault(domain, set()).update(group.givers & nodes_of[domain])
    return {domain: tuple(sorted(found[domain])) for domain in sorted(found)}


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
