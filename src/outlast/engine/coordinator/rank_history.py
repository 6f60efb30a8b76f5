"""Where each rank lived, generation by generation.

A verdict comes late, and names ranks as they were at the time of the fault. This module is pure.
"""

from __future__ import annotations

from collections.abc import Mapping


class RankHistory:
    """Keep the node of each rank, generation by generation. Only changes are kept.

    domains   the failure domain of each of these nodes, as the ledger says
    """

    def __init__(self) -> None:
        self.domains: dict[str, str] = {}
        self._moves: list[tuple[int, Mapping[int, str]]] = []

    def note(self, generation: int, homes: Mapping[int, str]) -> None:
        """Note that these ranks live on these nodes from `generation` on."""
        if homes:
            self._moves.append((generation, homes))

    def at(self, rank: int, generation: int) -> str:
        """Return the node of `rank` in `generation`; "" if it is not known."""
        return next(
            (
                homes[rank]
                for since, homes in reversed(self._moves)
                if since <= generation and rank in homes
            ),
            "",
        )

    def recover(self, earlier: RankHistory) -> None:
        """Go on from what the ledger says of the generations before this coordinator."""
        self._moves = list(earlier._moves)
