"""The wait-for graph as text: which rank waits for which, and for what.

Each rank stands once, as near to the blame as it waits.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

Edge = tuple[int, int, str]  # the rank that waits, the rank it waits for, why

LINES_MAX = 400


@dataclass(slots=True)
class _Node:
    """Ranks that wait for the same ranks in the same place."""

    ranks: frozenset[int]
    words: str
    below: list[_Node] = field(default_factory=list)


def graph(
    edges: Sequence[Edge], *, blamed: Sequence[int], suspects: Sequence[int], boxes: bool
) -> list[str]:
    """Return the lines of a drawing in which each rank hangs below the rank it waits for.

    Its roots are the ranks to blame, the suspects, and the ranks that others wait for and that wait
    for no rank themselves.
    """
    waiting: dict[int, dict[str, set[int]]] = {}
    for who, whom, why in edges:
        waiting.setdefault(whom, {}).setdefault(why, set()).add(who)
    sources = {who for who, _, _ in edges}
    marks = dict.fromkeys(suspects, "  (suspect)") | dict.fromkeys(blamed, "  (shown guilty)")
    roots = list(dict.fromkeys([*blamed, *suspects, *sorted(set(waiting) - sources)]))
    if not roots and not edges:
        return ["no rank waits for another, as far as the dumps show"]
    forest = [_Node(frozenset([rank]), f"rank {rank}{marks.get(rank, '')}") for rank in roots]
    drawn = _grow(forest, waiting)
    out = _drawn(forest, boxes)
    rest = (set(waiting) | sources) - drawn
    if rest:
        out.append(f"in a circle: {ranks(rest)}")
        out += [
            f"  rank {who} waits for rank {whom}: {why}"
            for who, whom, why in sorted(edges)
            if who in rest and whom in rest
        ]
    return (
        out
        if len(out) <= LINES_MAX
        else [*out[:LINES_MAX], f"... and {len(out) - LINES_MAX:,} more lines"]
    )


def _grow(forest: Sequence[_Node], waiting: dict[int, dict[str, set[int]]]) -> set[int]:
    """Walk breadth first, so that no rank is placed lower than it must be."""
    placed = {rank for node in forest for rank in node.ranks}
    queue = deque(forest)
    while queue:
        node = queue.popleft()
        by_why: dict[str, set[int]] = {}
        for rank in sorted(node.ranks):
            for why, who in waiting.get(rank, {}).items():
                by_why.setdefault(why, set()).update(who - placed)
                placed |= who
        node.below = [
            _Node(frozenset(who), f"{ranks(who)} {'waits' if len(who) == 1 else 'wait'}: {why}")
            for why, who in by_why.items()
            if who
        ]
        queue.extend(node.below)
    return placed


def _drawn(forest: Sequence[_Node], boxes: bool) -> list[str]:
    tee, corner, bar = ("├─ ", "└─ ", "│  ") if boxes else ("|- ", "`- ", "|  ")
    out: list[str] = []
    stack = [(node, "", "") for node in reversed(forest)]
    while stack:
        node, mark, indent = stack.pop()
        out.append(mark + node.words)
        for place, below in enumerate(reversed(node.below)):
            stack.append(
                (
                    below,
                    indent + (corner if place == 0 else tee),
                    indent + ("   " if place == 0 else bar),
                )
            )
    return out


def ranks(some: Iterable[int]) -> str:
    """Name ranks in words: `rank 2`, `ranks 0-3, 8`."""
    listed = sorted(set(some))
    return f"rank {listed[0]}" if len(listed) == 1 else f"ranks {spans(listed)}"


def spans(some: Iterable[int]) -> str:
    """Write numbers as 0-3, 8: three or more in a row are joined."""
    runs: list[list[int]] = []
    for rank in sorted(set(some)):
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    return ", ".join(
        f"{run[0]}-{run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs
    )
