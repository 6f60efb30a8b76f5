"""The lives of workers on all nodes, as their agents tell of them.

A node that is lost tells nothing more: its lives end with the last word that came from it.
"""

from __future__ import annotations

from dataclasses import replace

from outlast.model.records import Life


class ReportedLives:
    """Keep the lives that go on, where agents tell of them."""

    def __init__(self) -> None:
        self._lives: dict[tuple[int, int], tuple[Life, float]] = {}  # and when it was told of

    def note(self, life: Life, *, now_s: float) -> None:
        """Take in what is told of one life. One that has ended is forgotten."""
        key = life.worker, life.rank
        if life.ended_s is None:
            self._lives[key] = life, now_s
        else:
            self._lives.pop(key, None)

    def living(self) -> list[Life]:
        """Return the lives that go on."""
        return [life for life, _ in self._lives.values()]

    def lose(self, node: str) -> list[Life]:
        """Return the lives that end because `node` is lost, and forget them."""
        gone = [(key, *one) for key, one in self._lives.items() if one[0].node == node]
        for key, _, _ in gone:
            del self._lives[key]
        return [
            replace(life, ended_s=heard_s, end="lost with its node") for _, life, heard_s in gone
        ]
