"""Which process held which rank, and when: rows of spans and marks over the time of a run.

Units      seconds since the run began, as in `outlast report`.
Method     The time is cut into COLUMNS equal columns. A span is rounded to columns, so one that is
           shorter than half a column is not drawn. A mark is an interruption. It is always drawn,
           and several in one column of a row become one mark with a count.
Limits     At most ROWS_MOST rows. A run with more ranks has a row for each node; those with the
           most interruptions come first, and the others are only counted.

This module is pure: no clock, no files, no torch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from outlast.model.records import Records, SessionRecords

COLUMNS = 600
ROWS_MOST = 48
UP, STARTING, DOWN = "up", "starting", "down"


@dataclass(frozen=True, slots=True)
class Span:
    """Columns [begin, end) in which a row was `doing` something: UP, STARTING or DOWN."""

    begin: int
    end: int
    doing: str


@dataclass(frozen=True, slots=True)
class Mark:
    """The interruptions of a row in one column. `newest` is the id of the last of them."""

    column: int
    count: int
    newest: int


@dataclass(frozen=True, slots=True)
class LaneRow:
    """One rank, or one node. `key` is the rank's number or the node's name."""

    key: str
    spans: tuple[Span, ...]
    marks: tuple[Mark, ...]
    interruptions: int
    processes: int


@dataclass(frozen=True, slots=True)
class Lanes:
    """The rows, and what they have in common.

    by_node      rows are nodes, not ranks
    hidden       the number of rows that are not shown, because fewer interruptions struck them
    generations  the columns in which a generation began
    all_marks    the interruptions of the whole run, by column
    """

    to_s: float
    by_node: bool
    rows: tuple[LaneRow, ...]
    hidden: int
    generations: tuple[int, ...]
    all_marks: tuple[Mark, ...]


@dataclass(slots=True)
class _Lane:
    """Collect what one row shows."""

    spans: list[tuple[float, float, str]] = field(default_factory=list)
    marks: dict[int, tuple[int, int]] = field(default_factory=dict)  # column: count, newest id
    interruptions: int = 0
    processes: int = 0


def timeline(
    records: Records,
    interruptions: Sequence[Mapping[str, Any]],
    *,
    to_s: float,
    nodes: Mapping[int, str],
) -> Lanes:
    """Return the timeline of a run.

    `interruptions` are those of `Records.interruptions`; `nodes` says which node each rank is on.
    """
    everybody = range(max(records.sizes))
    by_node = len(everybody) > ROWS_MOST
    lanes: dict[str, _Lane] = {}
    for rank in everybody:
        lanes.setdefault(nodes.get(rank, "") if by_node else str(rank), _Lane())
    scale = COLUMNS / to_s if to_s > 0 else 0.0
    for part in records.sessions:
        _add_lives(lanes, part, by_node=by_node, to_s=to_s)
    all_marks: dict[int, tuple[int, int]] = {}
    for one in interruptions:
        at_s = one["detected_s"] if one["fault_s"] is None else one["fault_s"]
        column = min(COLUMNS - 1, max(0, int(at_s * scale)))
        _mark(all_marks, column, one["id"])
        ranks: Iterable[int] = one["ranks"]
        for key in {nodes.get(rank, "") if by_node else str(rank) for rank in ranks}:
            if key in lanes:
                lanes[key].interruptions += 1
                _mark(lanes[key].marks, column, one["id"])
    shown = sorted(lanes, key=lambda key: (-lanes[key].interruptions, _natural(key)))[:ROWS_MOST]
    return Lanes(
        to_s,
        by_node,
        tuple(_row(key, lanes[key], scale) for key in sorted(shown, key=_natural)),
        len(lanes) - len(shown),
        tuple(
            sorted(
                {
                    min(COLUMNS - 1, max(0, int((one.began_s - part.began_s) * scale)))
                    for part in records.sessions
                    for one in part.generations
                }
            )
        ),
        _marks(all_marks),
    )


def _add_lives(
    lanes: Mapping[str, _Lane], part: SessionRecords, *, by_node: bool, to_s: float
) -> None:
    """Add the spans of the processes of one session.

    A row of a node has only the number of its processes. A node is up while any of its ranks has a
    process.
    """
    over_s = to_s if part.session.ended_s is None else part.session.over_s - part.began_s
    for life in part.lives:
        lane = lanes.get(life.node if by_node else str(life.rank)) if life.rank >= 0 else None
        if lane is None:
            continue
        lane.processes += 1
        from_s = life.assigned_s - part.began_s
        until_s = over_s if life.ended_s is None else life.ended_s - part.began_s
        opened_s = until_s if life.opened_s is None else life.opened_s - part.began_s
        lane.spans.append((from_s, min(opened_s, until_s), STARTING))
        lane.spans.append((opened_s, until_s, UP))


def _mark(marks: dict[int, tuple[int, int]], column: int, number: int) -> None:
    count, newest = marks.get(column, (0, -1))
    marks[column] = (count + 1, max(newest, number))


def _marks(found: Mapping[int, tuple[int, int]]) -> tuple[Mark, ...]:
    return tuple(Mark(column, *found[column]) for column in sorted(found))


def _row(key: str, lane: _Lane, scale: float) -> LaneRow:
    columns = bytearray(COLUMNS)  # 0: no process, 1: one starts, 2: one is up
    for from_s, until_s, doing in sorted(lane.spans, key=lambda span: span[2] == UP):
        begin, end = (min(COLUMNS, max(0, round(at_s * scale))) for at_s in (from_s, until_s))
        if end > begin:
            columns[begin:end] = bytes([2 if doing == UP else 1]) * (end - begin)
    return LaneRow(
        key, tuple(_runs(columns)), _marks(lane.marks), lane.interruptions, lane.processes
    )


def _runs(columns: bytearray) -> Iterable[Span]:
    begin = 0
    for at in range(1, len(columns) + 1):
        if at == len(columns) or columns[at] != columns[begin]:
            yield Span(begin, at, (DOWN, STARTING, UP)[columns[begin]])
            begin = at


def _natural(key: str) -> tuple[int, str]:
    return (int(key), "") if key.isdecimal() else (1 << 62, key)
