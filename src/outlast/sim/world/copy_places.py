"""Find copies and parity of images that the plans of a generation put in a wrong place.

What is right is counted here from the options alone, and not by the engine's code that places them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from outlast.engine.coordinator.machine import Coordinator
from outlast.model.messages import Regroup
from outlast.sim.options import Options

Ranks = tuple[int, ...]


class _Planned(NamedTuple):
    """A rank, the node that it lives on, and its plan."""

    rank: int
    home: str
    plan: Regroup


def misplaced_copies(coordinator: Coordinator, options: Options) -> tuple[Ranks, Ranks, Ranks]:
    """Return the fields `own_node_copies`, `few_copies` and `close_copies` of `Planned`."""
    if not options.peer_copies:
        return (), (), ()
    homes = coordinator.roster.homes
    planned = [
        _Planned(m.rank, m.home, m.path.plan)
        for m in coordinator.roster.members()
        if m.path.plan is not None
        and m.path.plan.generation == coordinator.generation
        and m.path.plan.then not in ("stand", "exit")
    ]
    spread = _Spread(homes, options)
    close = spread.close_parity(planned) if options.parity else spread.close_copies(planned)
    return _on_own_node(planned, homes), _too_few(planned, homes, options), close


def _on_own_node(planned: Sequence[_Planned], homes: Mapping[int, str]) -> Ranks:
    """Return the ranks that have to send copies of their images to their own node.

    Parity of a part may not lie on the node of any rank that gives a part to it.
    """
    return tuple(
        one.rank
        for one in planned
        if one.home in one.plan.keepers
        or any(
            share.at in {homes[rank] for rank in share.ranks if rank >= 0}
            for share in one.plan.shares
        )
    )


def _too_few(planned: Sequence[_Planned], homes: Mapping[int, str], options: Options) -> Ranks:
    """Return the ranks that send copies to fewer nodes than they should."""
    wanted = min(options.peers, len(set(homes.values())) - 1)
    copies = () if options.parity else planned
    return tuple(one.rank for one in copies if len({*one.plan.keepers}) < wanted)


class _Spread:
    """The domains of the nodes that hold ranks.

    `apart` says how far apart two nodes of the largest one can be in a ring of all of them.
    """

    def __init__(self, homes: Mapping[int, str], options: Options) -> None:
        self._homes = homes
        self._options = options
        self._nodes = set(homes.values())
        largest = max(Counter(map(self._domain, self._nodes)).values(), default=1)
        self.apart = len(self._nodes) // largest

    def _domain(self, node: str) -> str:
        place = int(node.rpartition("-")[2])
        return self._options.domain_of(place) or node

    def close_copies(self, planned: Sequence[_Planned]) -> Ranks:
        """Return the ranks whose copies are in fewer domains than they could be."""
        count = min(self._options.peers, len(self._nodes) - 1)
        wanted = count + 1 if self.apart > count else min(2, self.apart)
        return tuple(
            one.rank
            for one in planned
            if len({*map(self._domain, (one.home, *one.plan.keepers))}) < wanted
        )

    def close_parity(self, planned: Sequence[_Planned]) -> Ranks:
        """Return the ranks that give parts to a stripe of which one domain takes too much."""
        code = self._options.code
        assert code is not None
        if self.apart * code.parity < code.size or len(self._nodes) < code.size:
            return ()  # nodes of one domain have to be in the same stripe, more than it can lose
        holders: dict[tuple[int, Ranks], set[str]] = {}
        for one in planned:
            for share in one.plan.shares:
                holders.setdefault((share.stripe, share.ranks), set()).add(share.at)
        close: set[int] = set()
        for (_, ranks), nodes in holders.items():
            givers = Counter(self._domain(self._homes[rank]) for rank in ranks if rank >= 0)
            for domain, lost in givers.items():
                if lost > sum(self._domain(node) != domain for node in nodes):
                    close.update(rank for rank in ranks if rank >= 0)
        return tuple(sorted(close))
