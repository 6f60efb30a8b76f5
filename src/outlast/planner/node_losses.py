"""Which losses of nodes a run survives, if other nodes keep copies or parity of its images.

`engine.placement` names the nodes that keep them, as in a run. So this answers for a run of that
many nodes whose copies or sums are all in place. What holds at a moment of a run, `outlast status`
says.

Units      counts of nodes and racks. Both are numbered from 0, in the order of their ranks. A rack
           is a row of neighbouring nodes.
Rule       A loss is survived if the images of all lost ranks can still be had. With copies: some
           node that kept one of each is left. With parity: in each stripe at most as many nodes
           that gave a part are lost as there are sums left.
Limits     Only sharded state is meant. Under DDP each node has all of the state. Checkpoints are
           left out: with one, a run goes on from there after any loss.

This module is pure.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from itertools import combinations
from math import comb
from typing import Any

from outlast.engine.placement import keepers, place, stripes
from outlast.errors import UsageError
from outlast.model.keep import NEVER, KeepOption
from outlast.model.redundancy import Code
from outlast.planner.scenario import Job

NODES_MOST = 16_384


@dataclass(frozen=True, slots=True)
class NodeLosses:
    """The losses of one node, of two nodes at once, and of one rack that a run does not survive.

    scheme      what is kept on other nodes: `peers=2` or `parity=4+2`
    nodes_least how many nodes with ranks that takes
    nodes       nodes of the run, in racks of `per_rack`
    """

    scheme: str
    nodes_least: int
    nodes: int
    per_rack: int
    single: tuple[int, ...]
    double: tuple[tuple[int, int], ...]
    rack: tuple[int, ...]

    @property
    def pairs(self) -> int:
        return comb(self.nodes, 2)

    @property
    def racks(self) -> int:
        return -(-self.nodes // self.per_rack)

    def facts(self) -> dict[str, Any]:
        """Return the same for programs. Each `not_survived` lists all losses."""
        return {
            "keep": self.scheme,
            "nodes": self.nodes,
            "nodes_per_rack": self.per_rack,
            "one_node": {"of": self.nodes, "not_survived": list(self.single)},
            "two_nodes": {"of": self.pairs, "not_survived": [list(one) for one in self.double]},
            "one_rack": {"of": self.racks, "not_survived": list(self.rack)},
        }


def node_losses(job: Job, keep: KeepOption) -> NodeLosses:
    """Return which losses are not survived. Raises UsageError if nothing is kept on other nodes."""
    copied = not (keep.peers or NEVER).is_never
    code = None if (keep.parity or NEVER).is_never else keep.code
    if not copied and code is None:
        raise UsageError(
            "--placement asks what other nodes keep, and this --keep names nothing there",
            hint="for example --placement peers=1 or --placement parity=4+2",
        )
    if job.nodes > NODES_MOST:
        raise UsageError(
            f"--placement looks at each pair of nodes, and there are {job.nodes:,} nodes",
            hint=f"at most {NODES_MOST:,}; placement is the same all along the row of nodes",
        )
    names = {str(node): job.gpus_per_node for node in range(job.nodes)}
    homes = place(range(job.gpus), homes={}, room=names)
    kept = _Kept(
        _groups_of_copies(homes, keep.copies) if code is None else _groups_of_parity(homes, code)
    )
    racks = [
        range(first, min(first + job.nodes_per_rack, job.nodes))
        for first in range(0, job.nodes, job.nodes_per_rack)
    ]
    return NodeLosses(
        scheme=f"peers={keep.copies}" if code is None else f"parity={code.data}+{code.parity}",
        nodes_least=keep.copies + 1 if code is None else code.size,
        nodes=job.nodes,
        per_rack=job.nodes_per_rack,
        single=tuple(node for node in range(job.nodes) if not kept.survives([node])),
        double=kept.fatal_pairs(job.nodes),
        rack=tuple(number for number, rack in enumerate(racks) if not kept.survives(rack)),
    )


@dataclass(frozen=True, slots=True)
class KeptGroup:
    """Nodes that depend on each other: those that give parts, and those that keep the sums.

    Copies are sums of one part.
    """

    givers: frozenset[int]
    holders: frozenset[int]

    def survives(self, lost: Collection[int]) -> bool:
        return len(self.givers.intersection(lost)) <= len(self.holders.difference(lost))


class _Kept:
    """All groups of a run, also by the nodes that give parts to them."""

    def __init__(self, groups: Iterable[KeptGroup]) -> None:
        self._groups = frozenset(groups)
        self._of_giver: dict[int, list[KeptGroup]] = {}
        for group in self._groups:
            for node in group.givers:
                self._of_giver.setdefault(node, []).append(group)

    def survives(self, lost: Collection[int]) -> bool:
        """Return whether the images of all lost nodes can be had. Without a group, none can."""
        of_lost = (group for node in lost for group in self._of_giver.get(node, ()))
        return bool(self._groups) and all(group.survives(lost) for group in of_lost)

    def fatal_pairs(self, nodes: int) -> tuple[tuple[int, int], ...]:
        """Return the pairs of nodes whose loss takes an image: both are in one group."""
        if not self._groups:
            return tuple(combinations(range(nodes), 2))
        pairs = {
            pair
            for group in self._groups
            for pair in combinations(sorted(group.givers | group.holders), 2)
            if not group.survives(pair)
        }
        return tuple(sorted(pairs))


def _groups_of_copies(homes: dict[int, str], copies: int) -> Iterator[KeptGroup]:
    if len(set(homes.values())) <= copies:
        return  # a run refuses to start
    for rank, nodes in keepers(homes, copies=copies).items():
        yield KeptGroup(frozenset([int(homes[rank])]), frozenset(map(int, nodes)))


def _groups_of_parity(homes: dict[int, str], code: Code) -> Iterator[KeptGroup]:
    for stripe in stripes(homes, data=code.data, rows=code.parity):
        givers = (int(homes[rank]) for rank in stripe.ranks if rank >= 0)
        yield KeptGroup(frozenset(givers), frozenset(map(int, stripe.holders)))
