"""Read a table of failures as CSV: which unit failed, when, and of which class.

If it is known, the table also says from when to when each unit was watched.

    node,time,class,start,end,installed
    n17,2025-03-02T04:11:00Z,gpu,2025-01-01,2025-06-01,2024-11-20
    n17,2025-04-20T19:30:00Z,hbm,2025-01-01,2025-06-01,2024-11-20
    n18,,,2025-01-01,2025-06-01,2024-11-20

node        The name of the unit. This column is required. It may also be called gpu or rack: it
            says which kind of unit the rate refers to.
time        The time of the failure. This column is required. It is empty in a row that only says
            that a unit was watched.
class       A failure class of the ledger (`model/terms.py`), or a name that `classes` maps to one.
            This column is required. It is empty if time is empty.
start, end  The stretch of time in which the unit was watched. A table has both columns or neither.
            Rows of one unit may give the same stretch, or stretches that do not overlap.
installed   The time at which the unit was put into service, at age 0. Without this column, nothing
            is known about ages.

All times are ISO 8601 dates or date-times (UTC if there is no zone), or all are seconds from any
zero. If there are no columns start and end, `fleet` says how many units were watched, and from when
to when. The first line names the columns, in any order. A line that begins with # is a comment. A
failure lies inside a stretch of its unit, after the beginning of the stretch. Every error names the
line.

Not promised: line ends inside quotes, other separators, other encodings than UTF-8.

This module is pure: lines in, data out.
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from itertools import pairwise

import numpy as np

from outlast.errors import UsageError
from outlast.model.strict import meant
from outlast.model.terms import FailureClass
from outlast.planner.fit.observed import EXTENT_OF, Observed, ObservedFailure
from outlast.planner.fit.weibull import Lifetimes
from outlast.planner.scenario import Unit

UNITS: Mapping[str, Unit] = {"node": Unit.NODE, "gpu": Unit.GPU, "rack": Unit.RACK}
COLUMNS = (*UNITS, "time", "class", "start", "end", "installed")
# Age cannot be told from calendar time if at least the share HALF of the unit-time belongs to units
# that were installed at about the same time, within the share COHORT of the record's length.
COHORT, HALF = 0.1, 0.5
LINE_MAX_COUNT = 64 << 10  # characters; a longer line is not a row of such a table

_SECONDS = re.compile(r"[+-]?[0-9]{1,12}(\.[0-9]{1,9})?")
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")


@dataclass(frozen=True, slots=True)
class Fleet:
    """A number of units that were all watched from `from_s` to `to_s`.

    It is given with a table that has no columns start and end.
    """

    units: int
    from_s: float
    to_s: float


@dataclass(frozen=True, slots=True)
class TableRow:
    """One line: a failure of a unit, or only the fact that it was watched."""

    line: int
    unit: str
    failed_s: float | None
    failure_class: FailureClass | None
    watched: tuple[float, float] | None
    installed_s: float | None


@dataclass(frozen=True, slots=True)
class ImportedFailures:
    """A table that was read. `fleet` is None if the rows say when each unit was watched."""

    source: str
    rows: tuple[TableRow, ...]
    unit: Unit
    fleet: Fleet | None

    def stretches(self) -> dict[str, list[tuple[float, float]]]:
        """Return the stretches in which each unit was watched, by the name of the unit.

        Units of a fleet that the table does not name get a name.
        """
        if self.fleet is None:
            return {
                name: [(from_s, to_s) for from_s, to_s, _ in of_one]
                for name, of_one in _stretches(self.rows, self.source).items()
            }
        names = sorted({row.unit for row in self.rows})
        unnamed = (f"unit {number}" for number in range(1, 2 * self.fleet.units + 1))
        names += [one for one in unnamed if one not in names][: self.fleet.units - len(names)]
        return {name: [(self.fleet.from_s, self.fleet.to_s)] for name in names}


def read_moment(text: str, where: str) -> tuple[float, bool]:
    """Return a time in seconds, and whether it was written as a date.

    Raises UsageError, whose message begins with `where`.
    """
    if _SECONDS.fullmatch(text):
        return float(text), False
    if not _DATE.match(text):
        raise UsageError(
            f"{where} is {text!r}, which is not a time",
            hint="write 2025-03-02, 2025-03-02T04:11:00Z, or seconds",
        )
    try:
        moment = datetime.fromisoformat(text[:-1] + "+00:00" if text.endswith(("Z", "z")) else text)
    except ValueError:
        raise UsageError(
            f"{where} is {text!r}, which is not a date",
            hint="write 2025-03-02 or 2025-03-02T04:11:00Z",
        ) from None
    return (moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)).timestamp(), True


def read_failures(
    lines: Iterable[str],
    *,
    source: str,
    fleet: Fleet | None = None,
    dates: bool | None = None,
    classes: Mapping[str, FailureClass] | None = None,
) -> Observed:
    """Read a table as exposure and failures. Raises UsageError, as `read_table` does."""
    table = read_table(lines, source=source, fleet=fleet, dates=dates, classes=classes)
    if table.fleet is not None:
        return _of_fleet(table.rows, table.fleet, table.unit, source)
    return _of_stretches(table.rows, table.unit, source)


def read_table(
    lines: Iterable[str],
    *,
    source: str,
    fleet: Fleet | None = None,
    dates: bool | None = None,
    classes: Mapping[str, FailureClass] | None = None,
) -> ImportedFailures:
    """Read a table. Raises UsageError, which names `source` and the line.

    fleet    required if the table has no start and end; an error if it has them
    dates    whether the times of the fleet were dates; those of the table must be the same
    classes  the names that the table has for classes; they take precedence over the ledger's names
    """
    reader = _Reader(source, classes or {}, dates)
    rows = list(reader.rows(lines))
    if not rows:
        raise UsageError(
            f"{source} has no row",
            hint=(
                "a unit that was watched and never failed is a row with its start and end, and no"
                " time"
            ),
        )
    watched = [row.watched is not None for row in rows]
    if fleet is not None:
        if any(watched):
            raise UsageError(
                f"{source}, line {rows[watched.index(True)].line}: both the table and --units,"
                " --from and --to say when units were watched",
                hint="give one of the two",
            )
        _check_fleet(rows, fleet, source)
        return ImportedFailures(source, tuple(rows), reader.unit, fleet)
    if not all(watched):
        line = rows[watched.index(False)].line
        raise UsageError(
            f"{source}, line {line}: it is not known when this unit was watched",
            hint=(
                "fill in start and end in every row, or leave both columns out and give --units,"
                " --from and --to"
            ),
        )
    return ImportedFailures(source, tuple(rows), reader.unit, None)


# --- lines to rows --------------------------------------------------------------------------------


class _Reader:
    def __init__(
        self, source: str, classes: Mapping[str, FailureClass], dates: bool | None
    ) -> None:
        self.source, self.classes, self.dates = source, classes, dates
        self.unit = Unit.NODE
        self._dated_where = "--from" if dates is not None else ""

    def rows(self, lines: Iterable[str]) -> Iterator[TableRow]:
        columns: list[str] | None = None
        for number, line in enumerate(lines, 1):
            text = line.rstrip("\r\n").removeprefix("\ufeff" if number == 1 else "")
            if not text.strip() or text.lstrip().startswith("#"):
                continue
            where = f"{self.source}, line {number}"
            cells = self._cells(text, where)
            if columns is None:
                columns = self._head(cells, where)
            elif len(cells) != len(columns):
                raise UsageError(
                    f"{where} has {len(cells)} cells; the first line names {len(columns)} columns",
                    hint="an empty cell still has its comma",
                )
            else:
                yield self._row(dict(zip(columns, cells, strict=True)), number, where)
        if columns is None:
            raise UsageError(
                f"{self.source} is empty",
                hint=(
                    "its first line names the columns:"
                    f" {', '.join(('node', *COLUMNS[len(UNITS) :]))}"
                ),
            )

    def _cells(self, text: str, where: str) -> list[str]:
        if len(text) > LINE_MAX_COUNT or "\0" in text:
            raise UsageError(f"{where} is not a line of text", hint="the table is CSV in UTF-8")
        try:
            return [cell.strip() for cell in next(csv.reader([text], strict=True))]
        except (csv.Error, StopIteration) as error:
            raise UsageError(
                f"{where} is not CSV: {error}",
                hint="cells are separated by commas; a quote ends on the line that it begins on",
            ) from None

    def _head(self, cells: Sequence[str], where: str) -> list[str]:
        names = [cell.lower() for cell in cells]
        for name in names:
            if name not in COLUMNS:
                raise UsageError(f"{where}: there is no column {name!r}", hint=meant(name, COLUMNS))
        units = [name for name in names if name in UNITS]
        if len(units) != 1:
            many = "more than one column says" if units else "no column says"
            raise UsageError(
                f"{where}: {many} which unit failed", hint="one column: node, gpu or rack"
            )
        missing = [name for name in ("time", "class") if name not in names]
        if missing or ("start" in names) != ("end" in names) or len(set(names)) < len(names):
            twice = (
                "a column occurs twice"
                if len(set(names)) < len(names)
                else "start and end go together"
            )
            raise UsageError(
                f"{where}: {f'there is no column {missing[0]!r}' if missing else twice}",
                hint=(
                    "the first line names node (or gpu, or rack), time, class, and start, end,"
                    " installed where they are known"
                ),
            )
        self.unit = UNITS[units[0]]
        return ["unit" if name in UNITS else name for name in names]

    def _row(self, cells: Mapping[str, str], line: int, where: str) -> TableRow:
        failed_s, start_s, end_s, installed_s = (
            self._moment(cells.get(name, ""), f"{where}: {name}")
            for name in ("time", "start", "end", "installed")
        )
        failure_class = self._class(cells["class"], f"{where}: class") if cells["class"] else None
        if not cells["unit"]:
            raise UsageError(f"{where}: the unit is missing", hint="each row names one")
        if (failed_s is None) != (failure_class is None):
            raise UsageError(
                f"{where}: a failure has a time and a class",
                hint="leave both empty in a row that only says that a unit was watched",
            )
        if (start_s is None) != (end_s is None):
            raise UsageError(
                f"{where}: start and end go together",
                hint="a unit that is still watched ends when the record does",
            )
        watched = None if start_s is None or end_s is None else (start_s, end_s)
        self._check_order(failed_s, watched, installed_s, where)
        return TableRow(line, cells["unit"], failed_s, failure_class, watched, installed_s)

    def _check_order(
        self,
        failed_s: float | None,
        watched: tuple[float, float] | None,
        installed_s: float | None,
        where: str,
    ) -> None:
        if watched is None:
            return
        if watched[0] >= watched[1]:
            raise UsageError(
                f"{where}: the end of watching is not after its start", hint="start is before end"
            )
        if failed_s is not None and not watched[0] < failed_s <= watched[1]:
            raise UsageError(
                f"{where}: the failure is not within start and end",
                hint="a failure comes after start, and not after end; give times, not only dates",
            )
        if installed_s is not None and installed_s > watched[0]:
            raise UsageError(
                f"{where}: the unit was watched before it was installed",
                hint="installed is not after start",
            )

    def _moment(self, text: str, where: str) -> float | None:
        if not text:
            return None
        moment_s, dated = read_moment(text, where)
        if self.dates is None:
            self.dates, self._dated_where = dated, where
        elif self.dates is not dated:
            kinds = ("seconds", "dates")
            raise UsageError(
                f"{where} is in {kinds[dated]}, and {self._dated_where} in {kinds[self.dates]}",
                hint="use one of the two throughout",
            )
        return moment_s

    def _class(self, text: str, where: str) -> FailureClass:
        if text in self.classes:
            return self.classes[text]
        known = tuple(one.value for one in FailureClass)
        if text not in known:
            raise UsageError(
                f"{where} is {text!r}, which is not known",
                hint=f"{meant(text, known)}; or give its meaning with --class {text}=CLASS",
            )
        return FailureClass(text)


# --- rows to exposure -----------------------------------------------------------------------------


def _check_fleet(rows: Sequence[TableRow], fleet: Fleet, source: str) -> None:
    span_s = fleet.to_s - fleet.from_s
    if fleet.units < 1 or not 0 < span_s < math.inf:
        raise UsageError(
            f"{fleet.units} units were watched for {span_s:g} s",
            hint="--units is at least 1, and --from is before --to",
        )
    for row in rows:
        if row.failed_s is not None and not fleet.from_s <= row.failed_s <= fleet.to_s:
            raise UsageError(
                f"{source}, line {row.line}: the failure is not within --from and --to",
                hint="leave it out, or watch for longer",
            )
    names = {row.unit for row in rows}
    if len(names) > fleet.units:
        raise UsageError(
            f"{source} names {len(names):,} units, and --units says {fleet.units:,}",
            hint="units that replaced others count as one with them",
        )


def _of_fleet(rows: Sequence[TableRow], fleet: Fleet, unit: Unit, source: str) -> Observed:
    span_s = fleet.to_s - fleet.from_s
    return Observed(
        source,
        _failures(rows, fleet.from_s),
        {unit: fleet.units * span_s},
        span_s,
        units={unit: float(fleet.units)},
        limits=(
            (
                "how old the units are: give start, end and installed for each, to find out whether"
                " the rate changes with age"
            ),
        ),
        assumptions=(
            *_assumed(rows),
            f"all {fleet.units:,} {unit.name.lower()}s were watched the whole time (--units)",
        ),
    )


def _of_stretches(rows: Sequence[TableRow], unit: Unit, source: str) -> Observed:
    stretches = _stretches(rows, source)
    exposure_s = math.fsum(
        end_s - start_s for of_one in stretches.values() for start_s, end_s, _ in of_one
    )
    begin_s = min(of_one[0][0] for of_one in stretches.values())
    span_s = max(of_one[-1][1] for of_one in stretches.values()) - begin_s
    installed = _installed(rows, stretches, source)
    unknown = sum(unit_name not in installed for unit_name in stretches)
    limits: tuple[str, ...] = (
        ()
        if not unknown
        else (
            (
                f"how old {unknown:,} of {len(stretches):,} units are: without `installed`, ages"
                " are not known"
            ),
        )
    )
    if not unknown and (cohort := _cohort(stretches, installed, COHORT * span_s)) >= HALF:
        limits += (
            (
                "the effect of age from that of calendar time: units that were installed at about"
                f" the same time hold {cohort:.0%} of the unit-time"
            ),
        )
    seen = (
        {row.failure_class for row in rows if row.failure_class is not None}
        if not unknown
        else set()
    )
    still = [
        end_s - installed[name]
        for name, of_one in stretches.items()
        for _, end_s, _ in of_one[-1:]
        if not unknown and end_s == begin_s + span_s
    ]
    return Observed(
        source,
        _failures(rows, begin_s),
        {unit: exposure_s},
        span_s,
        units={unit: exposure_s / span_s},
        lives={
            one: _lives(rows, stretches, installed, one)
            for one in sorted(seen, key=lambda one: one.value)
        },
        age_s=math.fsum(still) / len(still) if still else None,
        limits=limits,
        assumptions=(
            *_assumed(rows),
            *(("a unit that failed goes on with the age that it had",) if seen else ()),
        ),
    )


def _cohort(
    stretches: Mapping[str, Sequence[tuple[float, float, int]]],
    installed: Mapping[str, float],
    window_s: float,
) -> float:
    """Return the largest share of unit-time that units installed within one such window hold."""
    order = sorted(stretches, key=lambda unit: installed[unit])
    at_s = np.array([installed[unit] for unit in order])
    watched_s = np.cumsum(
        [
            0.0,
            *(
                math.fsum(end_s - start_s for start_s, end_s, _ in stretches[unit])
                for unit in order
            ),
        ]
    )
    ends = np.searchsorted(at_s, at_s + window_s, side="right")
    return float((watched_s[ends] - watched_s[: len(order)]).max() / watched_s[-1])


def _assumed(rows: Sequence[TableRow]) -> tuple[str, ...]:
    """Return what is taken to be lost with each class, because the table does not say it."""
    seen = sorted(
        {row.failure_class for row in rows if row.failure_class is not None},
        key=lambda one: one.value,
    )
    return (
        (
            (
                "what is lost with a failure:"
                f" {', '.join(f'{one.value}: {EXTENT_OF[one].name.lower()}' for one in seen)}"
            ),
        )
        if seen
        else ()
    )


def _failures(rows: Sequence[TableRow], begin_s: float) -> tuple[ObservedFailure, ...]:
    found = [
        ObservedFailure(
            row.failed_s - begin_s, row.failure_class, EXTENT_OF[row.failure_class], row.unit
        )
        for row in rows
        if row.failed_s is not None and row.failure_class is not None
    ]
    return tuple(sorted(found, key=lambda one: one.at_s))


def _stretches(rows: Sequence[TableRow], source: str) -> dict[str, list[tuple[float, float, int]]]:
    """Return the stretches of each unit as (start, end, line), in order and without repeats."""
    out: dict[str, dict[tuple[float, float], int]] = {}
    for row in rows:
        if row.watched is not None:
            out.setdefault(row.unit, {}).setdefault(row.watched, row.line)
    ordered = {
        unit: sorted((*watched, line) for watched, line in of_one.items())
        for unit, of_one in out.items()
    }
    for unit, of_one in ordered.items():
        for (_, end_s, line), (start_s, _, after) in pairwise(of_one):
            if start_s < end_s:
                raise UsageError(
                    f"{source}, lines {min(line, after)} and {max(line, after)}: the stretches of"
                    f" {unit} overlap",
                    hint="stretches of one unit may touch, but not overlap",
                )
    return ordered


def _installed(
    rows: Sequence[TableRow],
    stretches: Mapping[str, Sequence[tuple[float, float, int]]],
    source: str,
) -> dict[str, float]:
    said: dict[str, tuple[float, int]] = {}
    for row in rows:
        if row.installed_s is not None and row.installed_s > (first := stretches[row.unit][0])[0]:
            what = f"{row.unit} was watched before it was installed: see line {first[2]}"
            raise UsageError(
                f"{source}, line {row.line}: {what}", hint="installed is not after start"
            )
        if (
            row.installed_s is not None
            and said.setdefault(row.unit, (row.installed_s, row.line))[0] != row.installed_s
        ):
            raise UsageError(
                f"{source}, line {row.line}: line {said[row.unit][1]} gives another time at which"
                f" {row.unit} was installed",
                hint="a unit is installed once; one that is replaced gets a new name",
            )
    return {unit: moment_s for unit, (moment_s, _) in said.items()}


def _lives(
    rows: Sequence[TableRow],
    stretches: Mapping[str, Sequence[tuple[float, float, int]]],
    installed: Mapping[str, float],
    failure_class: FailureClass,
) -> Lifetimes:
    """Return the stretches as ages, cut at each failure of this class.

    A unit goes on after a failure with the age that it had.
    """
    failed: dict[tuple[str, float, float], list[float]] = {}
    for row in rows:
        if (
            row.failed_s is not None
            and row.watched is not None
            and row.failure_class is failure_class
        ):
            failed.setdefault((row.unit, *row.watched), []).append(row.failed_s)
    entry_s: list[float] = []
    exit_s: list[float] = []
    ended: list[bool] = []
    for unit, of_one in stretches.items():
        for start_s, end_s, _ in of_one:
            cuts = sorted(failed.get((unit, start_s, end_s), []))
            ages = [moment_s - installed[unit] for moment_s in (start_s, *cuts, end_s)]
            entry_s += ages[:-1]
            exit_s += ages[1:]
            ended += [*[True] * len(cuts), False]
    return Lifetimes.of(entry_s=np.array(entry_s), exit_s=np.array(exit_s), failed=np.array(ended))
