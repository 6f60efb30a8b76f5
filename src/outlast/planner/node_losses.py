"""Which losses of nodes a run survives, if other nodes keep copies or parity of its images.

`engine.placement` names the nodes that keep them, as in a run. So this answers for a run of that
many nodes whose copies or sums are all in place. What holds at a moment of a run, `outlast status`
says.

Units      counts of nodes and domains. Both are numbered from 0, in the order of their ranks. A
           domain is a row of neighbouring nodes that can be lost together, such as a rack.
Rule       A loss is survived if the images of all lost ranks can still be had. With copies: some
           node that kept one of each is left. With parity: in each stripe at most as many nodes
           that gave a part are lost as there are sums left.
Limits     Only sharded state is meant. Under DDP each node has all of the state. Checkpoints are
           left out: with one, a run goes on from there after any loss.

This module is pure.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import comb
from typing import Any

from outlast.engine.placement import (
    KeptGroup,
    groups_of_copies,
    groups_of_parity,
    keepers,
    place,
    stripes,
)
from outlast.errors import UsageError
from outlast.model.keep import NEVER, KeepOption
from outlast.planner.scenario import Job

NODES_MOST = 16_384


@dataclass(frozen=True, slots=True)
class NodeLosses:
    """The losses of one node, two nodes at once and one domain that a run does not survive.

    scheme       what is kept on other nodes: `peers=2` or `parity=4+2`
    nodes_least  the smallest number of nodes with ranks for which this scheme can be used
    sizes        the number of nodes of each domain
    told         True if the run knows the domains, so that they decide where copies and parity lie
    """

    scheme: str
    nodes_least: int
    sizes: tuple[int, ...]
    told: bool
    single: tuple[int, ...]
    double: tuple[tuple[int, int], ...]
    domain: tuple[int, ...]

    @property
    def nodes(self) -> int:
        return sum(self.sizes)

    @property
    def pairs(self) -> int:
        return comb(self.nodes, 2)

    def facts(self) -> dict[str, Any]:
        """Return the same for programs. Each `not_survived` lists all losses."""
        return {
            "keep": self.scheme,
            "nodes": self.nodes,
            "domains": list(self.sizes),
            "placed_by_domain": self.told,
            "one_node": {"of": self.nodes, "not_survived": list(self.single)},
            "two_nodes": {"of": self.pairs, "not_survived": [list(one) for one in self.double]},
            "one_domain": {"of": len(self.sizes), "not_survived": list(self.domain)},
        }


def domain_sizes(job: Job, given: Sequence[int] = ()) -> tuple[int, ...]:
    """Return how many nodes each domain has: as given, or the racks of the job.

    Raises UsageError if the given domains do not have all nodes.
    """
    if given and sum(given) != job.nodes:
        raise UsageError(
            f"the domains have {sum(given):,} nodes together, and the run has {job.nodes:,}",
            hint="give the number of nodes of each domain, as --domains 4,4,2, or --domains none",
        )
    whole, left = divmod(job.nodes, job.nodes_per_rack)
    return tuple(given) or (job.nodes_per_rack,) * whole + ((left,) if left else ())


def node_losses(
    job: Job, keep: KeepOption, *, sizes: Sequence[int] = (), told: bool = True
) -> NodeLosses:
    """Return which losses are not survived.

    sizes   how many nodes each domain has; empty: the domains are racks
    told    the run knows the domains (--node-domain)

    Raises UsageError if nothing is kept on other nodes.
    """
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
    sizes = domain_sizes(job, sizes)
    starts = [sum(sizes[:at]) for at in range(len(sizes))]
    domains = [range(first, first + size) for first, size in zip(starts, sizes, strict=True)]
    kept = _Kept(_groups(job, keep, domains if told else ()))
    return NodeLosses(
        scheme=f"peers={keep.copies}" if code is None else f"parity={code.data}+{code.parity}",
        nodes_least=keep.copies + 1 if code is None else code.size,
        sizes=sizes,
        told=told,
        single=tuple(node for node in range(job.nodes) if not kept.survives([node])),
        double=kept.fatal_pairs(job.nodes),
        domain=tuple(number for number, one in enumerate(domains) if not kept.survives(one)),
    )


def _groups(job: Job, keep: KeepOption, domains: Sequence[range]) -> Iterable[KeptGroup]:
    """Return the groups of nodes that depend on each other. Empty: a run refuses to start."""
    names = {str(node): job.gpus_per_node for node in range(job.nodes)}
    homes = place(range(job.gpus), homes={}, room=names)
    named = {str(node): f"{number}" for number, one in enumerate(domains) for node in one}
    if keep.code is not None and not (keep.parity or NEVER).is_never:
        code = keep.code
        placed = stripes(homes, data=code.data, rows=code.parity, domains=named)
        return groups_of_parity(homes, placed)
    if job.nodes <= keep.copies:
        return ()
    return groups_of_copies(homes, keepers(homes, copies=keep.copies, domains=named))


class _Kept:
    """All groups of a run, also by the nodes that give parts to them."""

    def __init__(self, groups: Iterable[KeptGroup]) -> None:
        self._groups = frozenset(groups)
        self._of_giver: dict[str, list[KeptGroup]] = {}
        for group in self._groups:
            for node in group.givers:
                self._of_giver.setdefault(node, []).append(group)

    def survives(self, lost: Collection[int]) -> bool:
        """Return whether the images of all lost nodes can be had. Without a group, none can."""
        names = {str(node) for node in lost}
        of_lost = (group for node in names for group in self._of_giver.get(node, ()))
        return bool(self._groups) and all(group.survives(names) for group in of_lost)

    def fatal_pairs(self, nodes: int) -> tuple[tuple[int, int], ...]:
        """Return the pairs of nodes whose loss takes an image: both are in one group."""
        if not self._groups:
            return tuple(combinations(range(nodes), 2))
        pairs = {
            (min(pair), max(pair))
            for group in self._groups
            for pair in combinations(map(int, group.givers | group.holders), 2)
            if not group.survives({str(node) for node in pair})
        }
        return tuple(sorted(pairs))
