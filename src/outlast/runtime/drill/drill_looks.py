"""Look at the redundancy of a run at the moment of a strike (`model/drills/drill_redundancy.py`).

Most of it is read from shared memory and from the kernel, so it is as new as the look: which ranks
live, which step each has committed, and which images are sealed. What only the launcher knows is in
the ledger, which it writes once a second: whether the state is sharded, the newest checkpoint, and
what other nodes keep.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from outlast.model.drills.drill_redundancy import InForce, nodes_survived
from outlast.runtime.drill.striking import RunProcess
from outlast.runtime.ledger.node_events import read_nodes
from outlast.runtime.tiers.rank_areas import RankAreas
from outlast.runtime.tiers.vault import Vault
from outlast.runtime.tiers.vault_owner import OWNER

EACH_S = 0.25  # how old a look may be that counts for a fault which a process causes in itself
_LOOKS_COUNT = 8
RANK_TITLE = "outlast-rank"
SPARE_TITLES = ("outlast-hot", "outlast-warm")
_SQL = (
    "SELECT json, (SELECT world_size FROM sessions ORDER BY session DESC LIMIT 1),"
    " (SELECT world_size FROM meta) FROM snapshot"
)


@dataclass(frozen=True, slots=True)
class LookedAtNode:
    """One node of a run: its vault, if it has one, and its living processes."""

    vault: Vault | None
    processes: Sequence[RunProcess]


@dataclass(frozen=True, slots=True)
class LookedAtRun:
    """A run as it is now. `ledger`: the ledger of the launcher that leads."""

    nodes: Sequence[LookedAtNode]
    ledger: Path


def look(memory: LookedAtRun, struck: Collection[int]) -> InForce | None:
    """Return the redundancy of a run now, or None if it cannot be read.

    struck   pids of processes that a fault has taken from the run, though they may still be there
    """
    said = _said(memory.ledger)
    if said is None:
        return None
    snapshot, world_size = said
    known = snapshot.get("redundancy") or {}
    sharded = known.get("sharded")
    step = max((vault.newest_committed() for vault in _vaults(memory)), default=0)
    whole = [_holders(node, step, struck) for node in memory.nodes]
    copies = sum(whole) if sharded is False else None
    nodes = sum(1 for count in whole if count) if sharded is False else None
    spares = sum(
        one.title in SPARE_TITLES and one.pid not in struck
        for node in memory.nodes
        for one in node.processes
    )
    return InForce(
        step=step,
        sharded=sharded,
        copies=copies,
        nodes=nodes,
        spares=spares,
        kept_step=_kept_step(memory, world_size, sharded=bool(sharded)),
        checkpoint_step=_number((snapshot.get("last_checkpoint") or {}).get("step")),
        nodes_survived=nodes_survived(
            sharded=sharded,
            nodes=nodes,
            nodes_to_lose=known.get("nodes_to_lose"),
            voters=len(read_nodes(memory.ledger).voters),
        ),
    )


def _said(ledger: Path) -> tuple[dict[str, Any], int] | None:
    """Return the launcher's newest snapshot, and the world size of its session."""
    with contextlib.suppress(sqlite3.Error, ValueError, OSError):
        uri = f"{ledger.resolve().as_uri()}?mode=ro"
        with contextlib.closing(sqlite3.connect(uri, uri=True, timeout=0.2)) as connection:
            row = connection.execute(_SQL).fetchone()
        if row is not None:
            snapshot = json.loads(row[0])
            return (snapshot, row[1] or row[2]) if isinstance(snapshot, dict) else None
    return None


def _number(value: object) -> int:
    return value if isinstance(value, int) else 0


def _vaults(memory: LookedAtRun) -> list[Vault]:
    return [node.vault for node in memory.nodes if node.vault is not None]


def _holders(node: LookedAtNode, step: int, struck: Collection[int]) -> int:
    """Return how many ranks live on a node that hold the state of `step`, or of the step before.

    They hold the newest one if a vote has passed: those that have not committed it are about to.
    """
    if node.vault is None:
        return 0
    newest: dict[int, tuple[int, int]] = {}  # by rank: the number of its newest worker, and a step
    for beacon in node.vault.beacons():
        newest[beacon.rank] = max(newest.get(beacon.rank, (-1, 0)), (beacon.worker, beacon.step))
    living = {
        one.title.removeprefix(RANK_TITLE)
        for one in node.processes
        if one.title.startswith(RANK_TITLE) and one.pid not in struck
    }
    return sum(
        str(rank) in living and at_step >= max(1, step - 1) for rank, (_, at_step) in newest.items()
    )


def _kept_step(memory: LookedAtRun, world_size: int, *, sharded: bool) -> int:
    """Return the newest step of which shared memory has an image of every rank; 0: none.

    Of replicated state these are the copies that ranks make for the case that all are lost.
    """
    steps: dict[int, set[int]] = {rank: set() for rank in range(world_size)}
    for vault in _vaults(memory):
        if not (vault.folder / OWNER).exists():
            continue
        areas = RankAreas(vault.folder, "rank" if sharded else "kept", run=vault.run)
        with contextlib.suppress(OSError):
            for rank in areas.ranks():
                steps.setdefault(rank, set()).update(areas.steps(rank))
        areas.close()
    some = [set(steps[rank]) for rank in range(world_size)]
    return max(set.intersection(*some), default=0) if some else 0


class InForceLooks:
    """The newest looks at a run, for faults whose time is known only after they have struck.

    memory   what the run has now
    """

    def __init__(self, memory: Callable[[], LookedAtRun]) -> None:
        self._memory = memory
        self._looks: deque[tuple[float, InForce | None]] = deque(maxlen=_LOOKS_COUNT)

    def now(self, now_s: float, struck: Collection[int]) -> InForce | None:
        """Look, and remember it. `struck`: as for `look`."""
        seen = look(self._memory(), struck)
        self._looks.append((now_s, seen))
        return seen

    def refresh(self, now_s: float, struck: Collection[int]) -> None:
        """Look, unless the newest look is still new enough."""
        if not self._looks or now_s - self._looks[-1][0] >= EACH_S:
            self.now(now_s, struck)

    def at(self, at_s: float) -> InForce | None:
        """Return the newest look that is not later than this; None if there is none."""
        before = [seen for looked_s, seen in self._looks if looked_s <= at_s]
        return before[-1] if before else None
