"""Which nodes are in a run, and which are voters, according to the newest events of its ledger.

This reads a few rows of the file, where `read_ledger` reads all of it. A run writes its ledger once
a second, so what is read may be as old.

A node that has departed gets no more work. It stays in the run, with what is there, if the run's
policy has excluded it. If it was drained, its launcher ends; whoever started that sees it.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from outlast.model.records import LEADS

_COMES, _GOES = "node_joined", "node_lost"
_KINDS = (_COMES, _GOES, LEADS)
_SQL = (
    f"SELECT kind, wall_s, data FROM events WHERE kind IN ({', '.join('?' * len(_KINDS))})"
    " AND session = (SELECT max(session) FROM sessions) ORDER BY rowid"
)


@dataclass(frozen=True, slots=True)
class NodesIn:
    """The nodes of a run.

    `since_wall_s`: when each node last joined. `voters`: the voters; () while there are none.
    """

    since_wall_s: Mapping[str, float] = field(default_factory=dict)
    voters: tuple[str, ...] = ()


def read_nodes(ledger: Path) -> NodesIn:
    """Return the nodes that are in the run. There are none if the file cannot be read now."""
    since: dict[str, float] = {}
    voters: tuple[str, ...] = ()
    with contextlib.suppress(sqlite3.Error, ValueError):
        uri = f"{ledger.resolve().as_uri()}?mode=ro"
        with contextlib.closing(sqlite3.connect(uri, uri=True, timeout=0.2)) as connection:
            rows = connection.execute(_SQL, _KINDS).fetchall()
        for kind, wall_s, text in rows:
            data = json.loads(text)
            if kind == _COMES:
                since[data["node"]] = wall_s
            elif kind == _GOES:
                since.pop(data["node"], None)
            else:
                voters = tuple(data["voters"])
    return NodesIn(since, voters)
