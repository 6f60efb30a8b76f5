"""Which nodes keep copies or parity of each rank's images, as `--keep` asks and ranks live now.

`engine.placement` chooses the nodes. This module is pure.
"""

from __future__ import annotations

from collections.abc import Mapping

from outlast.engine.coordinator.parity_rows import shares_of
from outlast.engine.coordinator.run_parts import RunParts
from outlast.engine.placement import Stripe, keepers, stripes
from outlast.model.messages import Share


def place_copies(run: RunParts, homes: Mapping[int, str]) -> dict[int, tuple[str, ...]]:
    """Choose and note the nodes that keep copies of each rank's images. Empty: no copies are made.

    homes   the node of each rank
    """
    options = run.options
    if not options.peer_copies or options.parity is not None:
        return {}
    placed = keepers(homes, copies=options.peers)
    run.roster.remains.copies.place(placed)
    return placed


def place_parity(run: RunParts, homes: Mapping[int, str]) -> tuple[Stripe, ...]:
    """Choose and note the stripes in which parity is kept. Empty: no parity is kept."""
    code = run.options.parity
    if code is None:
        return ()
    placed = stripes(homes, data=code.data, rows=code.parity)
    run.roster.remains.parity.place(placed)
    return placed


class SentTo:
    """Where each rank sends its images, or parts of them, in the generation that begins.

    homes   the node of each rank
    """

    def __init__(self, run: RunParts, homes: Mapping[int, str]) -> None:
        self._serves = run.nodes.serves
        self._keepers = place_copies(run, homes)
        self._shares = shares_of(place_parity(run, homes), run.nodes.serves)

    def of_rank(self, rank: int) -> tuple[tuple[str, ...], tuple[Share, ...]]:
        """Return the fields `keepers` and `shares` of the rank's plan."""
        nodes = self._keepers.get(rank, ())
        return tuple(map(self._serves, nodes)), self._shares.get(rank, ())
