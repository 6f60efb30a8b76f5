"""Where each rank lived, generation by generation: a verdict comes late, and names ranks as they
were then. This module is pure.
"""

from __future__ import annotations

from collections.abc import Mapping


class RankHistory:
    """Only what changes is kept."""

    def __init__(self) -> None:
        self._moves: list[tuple[int, Mapping[int, str]]] = []

    def note(self, generation: int, homes: Mapping[int, str]) -> None:
        """From `generation` on these ranks live there."""
        if homes:
            self._moves.append((generation, homes))

    def at(self, rank: int, generation: int) -> str:
        """In that generation; "" where it is not known."""
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
