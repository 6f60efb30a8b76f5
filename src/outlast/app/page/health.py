"""How each rank and each node is, and what happened to it.

Units      seconds; shares are in [0, 1].
Symbols    productive  the rank's productive seconds over all its seconds

This module is pure: no clock, no files, no torch.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from outlast.model.goodput import Accounting
from outlast.model.records import Records
from outlast.model.terms import Cause

GOOD, WATCH, BAD = "good", "watch", "bad"
AT_WORK = ("training", "finished", "ended", "gone")


@dataclass(frozen=True, slots=True)
class RankHealth:
    """One rank. `processes` counts those that held it; `last` is its newest interruption's id."""

    rank: int
    node: str
    pid: int
    state: str
    processes: int
    interruptions: int
    last: int | None
    productive: float


@dataclass(frozen=True, slots=True)
class NodeHealth:
    """One node, with its ranks.

    level   GOOD, WATCH or BAD, and `why` says why it is not good
    """

    name: str
    level: str
    why: str
    ranks: tuple[RankHealth, ...]
    interruptions: int
    productive: float


def node_of_rank(records: Records, workers: Iterable[Mapping[str, Any]]) -> dict[int, str]:
    """Return the node that each rank is on, or was on last."""
    found = {
        life.rank: life.node for part in records.sessions for life in part.lives if life.rank >= 0
    }
    return found | {worker["rank"]: worker["node"] for worker in workers}


def health(
    records: Records,
    books: Accounting,
    status: Mapping[str, Any],
    interruptions: Sequence[Mapping[str, Any]],
    nodes: Mapping[int, str],
) -> tuple[NodeHealth, ...]:
    """Return all nodes, the worst first. `status` is that of `outlast status`."""
    counts: Counter[int] = Counter()
    last: dict[int, int] = {}
    for one in interruptions:
        for rank in one["ranks"]:
            counts[rank] += 1
            last[rank] = one["id"]
    processes = Counter(life.rank for part in records.sessions for life in part.lives)
    now = {worker["rank"]: worker for worker in status["workers"]}
    by_node: dict[str, list[RankHealth]] = {}
    for rank in range(records.world_size):
        node = nodes.get(rank, "")
        by_node.setdefault(node, []).append(
            RankHealth(
                rank=rank,
                node=node,
                pid=now[rank]["pid"] if rank in now else 0,
                state=now[rank]["state"] if rank in now else "no process",
                processes=processes[rank],
                interruptions=counts[rank],
                last=last.get(rank),
                productive=_share(books.by_rank[rank]),
            )
        )
    training = status["state"] == "training"
    total = sum(counts.values()) if len(by_node) > 1 else 0
    found = [_node(name, ranks, total, training=training) for name, ranks in by_node.items()]
    order = {BAD: 0, WATCH: 1, GOOD: 2}
    return tuple(sorted(found, key=lambda one: (order[one.level], -one.interruptions, one.name)))


def _node(name: str, ranks: list[RankHealth], total: int, *, training: bool) -> NodeHealth:
    """Judge a node. `total`: losses of ranks anywhere, or 0 if there is no other node."""
    interruptions = sum(one.interruptions for one in ranks)
    away = [one for one in ranks if one.state not in AT_WORK]
    if away and training:
        states = ", ".join(sorted({one.state for one in away}))
        level, why = BAD, f"{len(away)} of {len(ranks)} ranks do not train: {states}"
    elif total and interruptions >= 2 and interruptions > total / 2:
        level, why = WATCH, f"{interruptions} of all {total} losses of ranks were here"
    elif interruptions:
        level, why = (
            WATCH,
            "lost a rank once" if interruptions == 1 else f"lost ranks {interruptions} times",
        )
    else:
        level, why = GOOD, ""
    productive = math.fsum(one.productive for one in ranks) / len(ranks)
    return NodeHealth(name, level, why, tuple(ranks), interruptions, productive)


def _share(seconds: Mapping[Cause, float]) -> float:
    total_s = math.fsum(seconds.values())
    return seconds[Cause.PRODUCTIVE] / total_s if total_s > 0 else 0.0
