"""Choose which nodes keep copies or parity of each rank's images.

That depends on `--keep`, and on where ranks live now. `engine.placement` has the rules. This module
is pure.
"""

from __future__ import annotations

from collections.abc import Mapping

from outlast.engine.coordinator.parity_rows import shares_of
from outlast.engine.coordinator.run_parts import RunParts
from outlast.engine.placement import (
    KeptGroup,
    Stripe,
    exposed,
    groups_of_copies,
    groups_of_parity,
    keepers,
    stripes,
)
from outlast.model.messages import Share
from outlast.model.texts import some


def place_copies(run: RunParts, homes: Mapping[int, str]) -> dict[int, tuple[str, ...]]:
    """Choose and note the nodes that keep copies of each rank's images. Empty: no copies are made.

    homes   the node of each rank
    """
    options = run.options
    if not options.peer_copies or options.parity is not None:
        return {}
    placed = keepers(homes, copies=options.peers, domains=run.nodes.domains)
    run.roster.remains.copies.place(placed)
    return placed


def place_parity(run: RunParts, homes: Mapping[int, str]) -> tuple[Stripe, ...]:
    """Choose and note the stripes in which parity is kept. Empty: no parity is kept."""
    code = run.options.parity
    if code is None:
        return ()
    placed = stripes(homes, data=code.data, rows=code.parity, domains=run.nodes.domains)
    run.roster.remains.parity.place(placed)
    return placed


class SentTo:
    """This says where each rank sends its images, or parts of them, in the generation that begins.

    homes   the node of each rank
    """

    def __init__(self, run: RunParts, homes: Mapping[int, str]) -> None:
        self._run = run
        self._homes = homes
        self._keepers = place_copies(run, homes)
        self._stripes = place_parity(run, homes)
        self._shares = shares_of(self._stripes, run.nodes.serves)

    def of_rank(self, rank: int) -> tuple[tuple[str, ...], tuple[Share, ...]]:
        """Return the fields `keepers` and `shares` of the rank's plan."""
        nodes = self._keepers.get(rank, ())
        return tuple(map(self._run.nodes.serves, nodes)), self._shares.get(rank, ())

    def warnings(self) -> tuple[str, ...]:
        """Return warnings about failure domains, such as one that must not be lost."""
        domains = self._run.nodes.domains
        nodes = list(dict.fromkeys(self._homes[rank] for rank in sorted(self._homes)))
        named = {domains.get(node, "") for node in nodes} - {""}
        groups = self._groups()
        if not named or not groups:
            return ()
        silent = [node for node in nodes if not domains.get(node)]
        said = []
        if silent:
            said.append(
                f"no failure domain is known of {_nodes(silent)} (--node-domain), so each counts"
                " as one of its own"
            )
        if not silent and len(named) == 1 and len(nodes) > 1:
            return (
                f"all nodes with ranks are in domain {min(named)}, so no copies and no parity"
                " survive its loss",
            )
        known = {node: domains.get(node, "") for node in nodes}
        for domain, taken in exposed(groups, known).items():
            said.append(
                f"there are too few nodes in other domains: the loss of domain {domain} would take"
                f" the images of {_nodes(taken)} and all that restores them"
            )
        return tuple(said)

    def _groups(self) -> frozenset[KeptGroup]:
        if self._stripes:
            return groups_of_parity(self._homes, self._stripes)
        return groups_of_copies(self._homes, self._keepers)


def _nodes(names: list[str] | tuple[str, ...]) -> str:
    return f"node {names[0]}" if len(names) == 1 else f"nodes {some(names)}"
