"""Titan's GPU boards, 2013 to 2019: the table that its operators published, cut into cells.

Source  Ostrouchov, Maxwell, Ashraf, Engelmann, Shankar and Rogers, "GPU Lifetimes on Titan
        Supercomputer", SC20. Data: github.com/olcf/TitanGPULife, gc_full.csv.
Rows    A row with `insert` is a stretch of one board at one place, until `remove`: an inventory in
        which it was gone, or the event that ended it (`event`: DBE, a double-bit error; OTB, off
        the bus). A row without `insert` is one more event, at `remove`, of a board whose stretch
        stands in another row. Between two stretches a board was in nobody's rack: no exposure.
        Inventories are up to 56 days apart, so insert and remove are late by as much.
Times   as written, of a clock on a wall in New York: a stretch over a change of summer time is an
        hour off (`duration` is right, and says no place).
Batch   old: first seen before 2016; new: after, when boards were replaced. Age: since the board was
        first seen. Most old ones had stood for a while by then (left truncation), and nobody wrote
        down for how long.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timezone

import numpy as np
from numpy.typing import NDArray

from outlast.errors import UsageError

COLUMNS = ["SN", "location", "insert", "remove", "duration", "out", "event"]
EVENTS = ("DBE", "OTB")
OLD, NEW = 0, 1
CAGES = 3
DAY_S = 86_400.0
YEAR_DAYS = 365.25
AGES_PER_YEAR = 12
AGES = 6 * AGES_PER_YEAR
NEW_FROM = datetime(2016, 1, 1, tzinfo=timezone.utc).timestamp() / DAY_S

_PLACE = re.compile(r"c\d{1,2}-\dc([0-2])s\d{1,2}n\d")

Floats = NDArray[np.float64]
Whole = NDArray[np.int64]


@dataclass(frozen=True)
class Boards:
    """The boards, their stretches and their events, in the order of the table.

    Times are days since 1970. `*_board` is the number of a board, counted from 0 as they come.
    """

    names: list[str]
    first: Floats  # (boards)
    stretch_board: Whole
    stretch_cage: Whole
    begin: Floats
    end: Floats
    ended_by_event: NDArray[np.bool_]
    event_board: Whole
    event_cage: Whole
    event_at: Floats
    event_kind: list[str]

    @property
    def batch(self) -> Whole:
        """Return the batch of each board, OLD or NEW."""
        return np.where(self.first >= NEW_FROM, NEW, OLD)

    def failures(self, *, apart_days: float) -> NDArray[np.bool_]:
        """Mark the events that come more than `apart_days` after the one before on that board.

        With 0 days, every event is marked.
        """
        kept = np.ones(len(self.event_at), dtype=bool)
        last: dict[int, float] = {}
        for index in np.argsort(self.event_at, kind="stable"):
            board = int(self.event_board[index])
            kept[index] = (
                apart_days == 0 or self.event_at[index] - last.get(board, -np.inf) > apart_days
            )
            last[board] = float(self.event_at[index])
        return kept


def read_boards(lines: Iterable[str], *, source: str) -> Boards:
    """Read the table. Raises UsageError, which names the line."""
    reader = csv.reader(lines)
    if next(reader, None) != COLUMNS:
        raise UsageError(
            f"{source} is not Titan's table", hint=f"its first line names {', '.join(COLUMNS)}"
        )
    number: dict[str, int] = {}
    first: list[float] = []
    stretches: list[tuple[int, int, float, float, bool]] = []
    events: list[tuple[int, int, float, str]] = []
    for line, row in enumerate(reader, 2):
        where = f"{source}, line {line}"
        if len(row) != len(COLUMNS):
            raise UsageError(f"{where} has {len(row)} cells; there are {len(COLUMNS)} columns")
        cell = dict(zip(COLUMNS, row, strict=True))
        board = number.setdefault(cell["SN"], len(number))
        if board == len(first):
            first.append(np.inf)
        cage, at = _cage(cell["location"], where), _day(cell["remove"], where)
        if cell["event"] not in ("", *EVENTS):
            raise UsageError(
                f"{where}: event is {cell['event']!r}; it is {', '.join(EVENTS)} or empty"
            )
        if cell["event"]:
            events.append((board, cage, at, cell["event"]))
        if cell["insert"]:
            begin = _day(cell["insert"], where)
            if begin > at:
                raise UsageError(f"{where}: the board was removed before it was inserted")
            first[board] = min(first[board], begin)
            stretches.append((board, cage, begin, at, bool(cell["event"])))
        elif not cell["event"]:
            raise UsageError(f"{where} is neither a stretch nor an event")
    unseen = [name for name, board in number.items() if not np.isfinite(first[board])]
    if unseen or not number:
        raise UsageError(
            f"{source}:"
            f" {f'board {unseen[0]} was never inserted' if unseen else 'there is no board'}"
        )
    boards, cages, begins, ends, by_event = zip(*stretches, strict=True)
    of, at_cages, ats, kinds = zip(*events, strict=True) if events else ((), (), (), ())
    return Boards(
        list(number),
        np.array(first),
        np.array(boards),
        np.array(cages),
        np.array(begins),
        np.array(ends),
        np.array(by_event),
        np.array(of, dtype=np.int64),
        np.array(at_cages, dtype=np.int64),
        np.array(ats, dtype=np.float64),
        list(kinds),
    )


def _cage(place: str, where: str) -> int:
    found = _PLACE.fullmatch(place)
    if not found:
        raise UsageError(
            f"{where}: location is {place!r}; it is like c11-2c1s4n1: cabinet, cage, slot, node"
        )
    return int(found[1])


def _day(text: str, where: str) -> float:
    try:
        return (
            datetime.strptime(text, "%Y-%m-%d %H:%M:%S").replace(tzinfo=timezone.utc).timestamp()
            / DAY_S
        )
    except ValueError:
        raise UsageError(
            f"{where}: {text!r} is no time", hint="as in 2017-04-09 21:36:19"
        ) from None


def table_of(boards: Boards) -> tuple[list[str], int]:
    """Return the boards as a table that `outlast calibrate --csv` reads.

    Times are seconds since 1970. The second value is how many events are left out because no
    stretch holds them.
    """
    events: dict[int, list[tuple[float, str]]] = {}
    for board, at, kind in zip(boards.event_board, boards.event_at, boards.event_kind, strict=True):
        events.setdefault(int(board), []).append((float(at), kind))
    lines, kept = ["gpu,time,class,start,end,installed"], 0
    until: dict[int, float] = {}
    for index in np.argsort(boards.begin, kind="stable"):
        board, end = int(boards.stretch_board[index]), float(boards.end[index])
        # an inventory that missed a removal has a board at two places
        begin = max(float(boards.begin[index]), until.get(board, -np.inf))
        if begin >= end:
            continue
        until[board] = end
        inside = [(at, kind) for at, kind in events.get(board, []) if begin < at <= end]
        kept += len(inside)
        watched = ",".join(f"{day * DAY_S:.0f}" for day in (begin, end, boards.first[board]))
        lines += [
            f"{boards.names[board]},{at * DAY_S:.0f},{kind},{watched}" for at, kind in inside
        ] or [f"{boards.names[board]},,,{watched}"]
    return lines, len(boards.event_at) - kept


@dataclass(frozen=True)
class Cells:
    """Board-years that were watched, and events, by month, batch, cage and age.

    An age counts twelfths of a year. `months` are written as 2016-01.
    """

    months: list[str]
    exposure: Floats
    count: Floats

    def month(self, name: str) -> int:
        """Return the place of a month."""
        return self.months.index(name)


def cells_of(boards: Boards, *, kept: NDArray[np.bool_]) -> Cells:
    """Cut what was watched into cells. An age beyond the last cell counts as the last.

    `kept` marks the events to count.
    """
    edges, months = _months(float(boards.begin.min()), float(boards.end.max()))
    shape = (len(months), 2, CAGES, AGES)
    exposure, count = np.zeros(shape), np.zeros(shape)
    first, batch = boards.first[boards.stretch_board], boards.batch[boards.stretch_board]
    birthdays = np.arange(1, AGES) * (YEAR_DAYS / AGES_PER_YEAR)
    for begin, end, born, of, cage in zip(
        boards.begin, boards.end, first, batch, boards.stretch_cage, strict=True
    ):
        ages = born + birthdays
        cuts = np.concatenate(
            [
                [begin],
                edges[(edges > begin) & (edges < end)],
                ages[(ages > begin) & (ages < end)],
                [end],
            ]
        )
        cuts.sort()
        middle = (cuts[1:] + cuts[:-1]) / 2
        np.add.at(
            exposure,
            (_month(middle, edges), of, cage, _age(middle - born)),
            np.diff(cuts) / YEAR_DAYS,
        )
    at, board = boards.event_at[kept], boards.event_board[kept]
    np.add.at(
        count,
        (
            _month(at, edges),
            boards.batch[board],
            boards.event_cage[kept],
            _age(at - boards.first[board]),
        ),
        1.0,
    )
    return Cells(months, exposure, count)


def _months(begin: float, end: float) -> tuple[Floats, list[str]]:
    """Return the first days of all months and of the one after the last, and the months' names."""
    at = datetime.fromtimestamp(begin * DAY_S, timezone.utc)
    year, month = at.year, at.month
    edges: list[float] = []
    names: list[str] = []
    while True:
        edge = datetime(year, month, 1, tzinfo=timezone.utc).timestamp() / DAY_S
        edges.append(edge)
        if edge > end:
            return np.array(edges), names
        names.append(f"{year}-{month:02d}")
        year, month = (year + 1, 1) if month == 12 else (year, month + 1)


def _month(at: Floats, edges: Floats) -> Whole:
    return np.searchsorted(edges, at, side="right") - 1


def _age(days: Floats) -> Whole:
    return np.clip((days * (AGES_PER_YEAR / YEAR_DAYS)).astype(np.int64), 0, AGES - 1)
