"""`outlast calibrate`: estimate failure rates and recovery times, and how sure they are.

    outlast calibrate                                        from the newest run under runs/
    outlast calibrate runs/a runs/b --out cluster.toml       from several runs, and write a cluster
                                                             file for `outlast plan --cluster`
    outlast calibrate runs/a --drill ours.toml               write a plan with the same mix of
                                                             failures for `outlast drill`
    outlast calibrate --csv failures.csv                     from a table that says which units were
                                                             watched when
    outlast calibrate --csv failures.csv --units 512 --from 2025-01-01 --to 2025-06-01

Exit codes:

0   an answer was printed. If nothing has failed yet, it is an upper bound of the failure rate
2   the input cannot be read, or the ledger has no committed step
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from outlast.app import words
from outlast.app.command_line import Parser, add_json
from outlast.app.json_text import json_text
from outlast.app.planning.failure_options import add_table_flags, classes_of, fleet_of
from outlast.errors import OutlastError, UsageError
from outlast.planner.cluster_text import render
from outlast.planner.fit.calibration import Calibration, calibrate, facts, what_of
from outlast.planner.fit.cluster import cluster_of, never_seen
from outlast.planner.fit.drill_mix import drill_mix
from outlast.planner.fit.failures_table import read_failures
from outlast.planner.fit.ledgers import booked, observe
from outlast.planner.fit.phases import Phases, PhaseSamples, phases_of
from outlast.planner.fit.rates import LEVEL, ClassRate
from outlast.planner.foreign_records import is_imported
from outlast.planner.scenario import Unit
from outlast.runtime.folders.given import check_new, read_lines, write_new
from outlast.runtime.ledger.view import RunView, look

WIDE = 100


def main(argv: Sequence[str]) -> int:
    args = parser().parse_args(list(argv))
    try:
        for file in filter(None, (args.out, args.drill)):
            check_new(file)
        if args.out is not None and args.out == args.drill:
            raise UsageError(f"--out and --drill both name {args.out}", hint="name two files")
        one = _from_table(args) if args.csv is not None else _from_ledgers(args)
        mix = drill_mix(one.records) if args.drill is not None else ""
        if args.out is not None:
            cluster = cluster_of(
                one, name=args.csv or ", ".join(record.source for record in one.records)
            )
            write_new(args.out, "\n".join([render(cluster).rstrip("\n"), *never_seen(one), ""]))
        if args.drill is not None:
            write_new(args.drill, mix)
    except OutlastError as error:  # files and their names may hold anything
        raise type(error)(words.escaped(error.message), hint=words.escaped(error.hint)) from None
    if args.json:
        print(json_text(facts(one) | {"out": args.out, "drill": args.drill}))
    else:
        console = words.console_for(environment=os.environ)
        with console.capture() as page:
            _show(console, one, out=args.out, drill=args.drill)
        print("\n".join(line.rstrip() for line in page.get().splitlines()))
    sys.stdout.flush()
    return 0


def parser() -> Parser:
    out = Parser(
        prog="outlast calibrate",
        description=(
            "Estimate how often each class of failure strikes, how sure that is, and how long"
            " recoveries take (docs/how-to/calibrate.md)."
        ),
    )
    out.add_argument(
        "runs",
        nargs="*",
        metavar="RUN",
        help="folder of a run, or its name under runs/ (default: the newest run under runs/)",
    )
    out.add_argument(
        "--csv",
        metavar="FAILURES",
        help="read a table of failures in place of ledgers (columns: docs/how-to/calibrate.md)",
    )
    add_table_flags(out)
    out.add_argument(
        "--out",
        metavar="FILE",
        help="also write a cluster file (TOML) for `outlast plan --cluster`; FILE must be new",
    )
    out.add_argument(
        "--drill",
        metavar="FILE",
        help="also write a plan (TOML) with this mix of failures for `outlast drill`; FILE must be"
        " new",
    )
    add_json(out)
    return out


# --- reading --------------------------------------------------------------------------------------


def _from_ledgers(args: argparse.Namespace) -> Calibration:
    if args.units is not None or args.begin is not None or args.end is not None or args.classes:
        raise UsageError(
            "--units, --from, --to and --class are about a table of failures",
            hint="name it with --csv; a ledger knows its ranks and its times",
        )
    views = [look(run) for run in args.runs or [None]]
    paths = [view.path.resolve() for view in views]
    if len(set(paths)) < len(paths):
        twice = next(path for path in paths if paths.count(path) > 1)
        raise UsageError(
            f"{twice} is named twice", hint="each failure counts once: name each run once"
        )
    records = [observe(view.records, now_s=view.now_s, source=_name(view)) for view in views]
    led = [view for view in views if not is_imported(view.records)]
    phases = phases_of(view.records for view in led) if led else None
    return calibrate(
        records, phases=phases, booked=[booked(view.records, now_s=view.now_s) for view in led]
    )


def _name(view: RunView) -> str:
    return view.path.name


def _from_table(args: argparse.Namespace) -> Calibration:
    if args.runs:
        raise UsageError(
            "runs and --csv cannot be calibrated together",
            hint="calibrate them apart: their units may not be the same",
        )
    fleet, dates = fleet_of(args)
    return calibrate(
        [
            read_failures(
                read_lines(args.csv),
                source=args.csv,
                fleet=fleet,
                dates=dates,
                classes=classes_of(args.classes),
            )
        ]
    )


# --- showing --------------------------------------------------------------------------------------


def _show(console: Console, one: Calibration, *, out: str | None, drill: str | None) -> None:
    console.print(Text(_head(one), "bold"))
    if one.rates:
        console.print("\nHow often", style="bold")
        console.print(Padding(_rates(one, wide=console.width >= WIDE), (0, 0, 0, 2)))
    else:
        console.print(
            "\nNothing has failed yet. That is no rate of zero, but an upper bound (95 %):",
            style="bold",
        )
    for bound in one.bounds:
        most = (
            f"at most once in {words.long_duration(1 / bound.high_per_s)} of a"
            f" {bound.unit.name.lower()}"
        )
        console.print(
            Text(
                f"  {what_of(bound)}: never seen in {words.long_duration(bound.exposure_s)} of"
                f" {bound.unit.name.lower()}s; {most}"
            )
        )
    for text in _laws(one):
        console.print(Padding(Text(text), (0, 0, 0, 2)))
    if one.phases is not None and one.phases.detect.samples_s:
        console.print("\nHow long a recovery takes", style="bold")
        console.print(Padding(_phases(one.phases, wide=console.width >= WIDE), (0, 0, 0, 2)))
        for text in _books(one):
            console.print(Padding(Text(text, "dim"), (0, 0, 0, 2)))
    for title, texts in (
        ("What these data cannot tell", one.cannot_tell()),
        ("Taken for granted", one.assumptions()),
    ):
        if texts:
            console.print(f"\n{title}", style="bold")
            console.print(Padding(_listed(texts), (0, 0, 0, 2)))
    if out is not None:
        console.print(
            Text(
                f"\nwritten to {words.escaped(out)}: `outlast plan --cluster {words.escaped(out)}`"
            )
        )
    if drill is not None:
        name = words.escaped(drill)
        console.print(Text(f"\nwritten to {name}: `outlast drill {name} -- train.py`"))


def _head(one: Calibration) -> str:
    watched = []
    for unit in (Unit.GPU, Unit.NODE, Unit.RACK):
        exposure_s = sum(record.exposure_s.get(unit, 0.0) for record in one.records)
        if exposure_s > 0:
            watched.append(
                f"{words.long_duration(exposure_s)} of"
                f" {unit.name.lower() if unit is not Unit.GPU else 'GPU'}s"
            )
    return (
        f"{words.escaped(one.source)}: {words.count(one.failures, 'failure')} in"
        f" {' = '.join(watched)}"
    )


def _rates(one: Calibration, *, wide: bool) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for name in ("class", "takes"):
        table.add_column(name, no_wrap=True)
    for name in (
        "count",
        "one each",
        f"{LEVEL * 100:.0f} % interval",
        *(["per 1,000 a day"] if wide else []),
    ):
        table.add_column(name, justify="right", no_wrap=True)
    for rate in one.rates:
        table.add_row(*_rate_row(rate, wide=wide))
    return table


def _rate_row(rate: ClassRate, *, wide: bool) -> list[str]:
    unit = rate.unit.name.lower()
    each = "-" if rate.mttf_s is None else f"{words.long_duration(rate.mttf_s)} of a {unit}"
    interval = (
        f"{words.long_duration(1 / rate.high_per_s)} to {words.long_duration(1 / rate.low_per_s)}"
    )
    row = [
        rate.failure_class.value.replace("_", " "),
        rate.extent.name.lower(),
        f"{rate.count:,}",
        each,
        interval,
    ]
    return [*row, *([f"{(rate.rate_per_s or 0.0) * 86_400 * 1_000:.3g}"] if wide else [])]


def _laws(one: Calibration) -> Iterator[str]:
    """Yield the results about age, waves and size, if the data suffice for them."""
    for failure_class, verdict in one.shapes.items():
        yield f"age, {failure_class.value.replace('_', ' ')}: {verdict.reason}"
    yield from (f"waves: {clump.reason}" for clump in one.clumps if clump.ratio is not None)
    if one.scale is not None and one.scale.slope is not None:
        yield f"size: {one.scale.reason}"


def _listed(texts: Sequence[str]) -> Table:
    """Return a table with one item on each line. A long item is continued with an indent."""
    table = Table.grid(padding=(0, 1, 0, 0))
    for text in texts:
        table.add_row("-", Text(words.escaped(text)))
    return table


def _phases(phases: Phases, *, wide: bool) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("phase", no_wrap=True)
    for name in ("seen", "median", "95 %", "mean"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("taken as", no_wrap=True)
    if wide:
        table.add_column("of which", overflow="fold")
    for phase in phases.all():
        if phase.samples_s:
            row = [
                str(len(phase.samples_s)),
                words.duration(phase.median_s),
                words.duration(phase.p95_s),
                words.duration(phase.mean_s),
            ]
            table.add_row(phase.name, *row, phase.how, *([_kinds(phase)] if wide else []))
    return table


def _kinds(phase: PhaseSamples) -> str:
    """Return the count and the mean of each kind: `14 hang (530 ms), 15 signal (1 ms)`."""
    names = {kind: kind.replace("_", " ") for kind in phase.by}
    if len(names) == 1:
        return next(iter(names.values()))
    return ", ".join(
        f"{count} {names[kind]} ({words.duration(mean_s)})"
        for kind, (count, mean_s) in phase.by.items()
    )


def _books(one: Calibration) -> Iterator[str]:
    phases = one.phases
    if phases is not None and phases.step_s is not None:
        later = (
            f"; the first one after a recovery {words.duration(phases.slow_start_s)} longer, and"
            " productive"
            if phases.slow_start_s > 0
            else ""
        )
        yield f"A step takes {words.duration(phases.step_s)} (mean, undisturbed){later}."
    interruptions = sum(books.interruptions for books in one.booked)
    lost_s = sum(
        (books.lost_per_interruption_s or 0.0) * books.interruptions for books in one.booked
    )
    if interruptions:
        yield (
            f"The ledger booked {words.duration(lost_s / interruptions)} to each interruption, work"
            " done again included."
        )
    steady_s, training_s = (
        sum(sum(books.steady_s.values()) for books in one.booked),
        sum(books.training_s for books in one.booked),
    )
    if steady_s > 0:
        yield (
            "Waiting for data, stalls, evaluation and code between steps took"
            f" {words.percent(steady_s / training_s)} of training; a step has them in it."
        )
    if phases is not None and phases.unfinished:
        yield (
            f"{words.count(phases.unfinished, 'interruption')} ended in no new commit (yet), and"
            " gave no sample."
        )
