"""`outlast export`: the ledger of a run as CSV, JSON lines or Parquet.

    outlast export RUN tables                        six files of CSV in the new folder `tables`
    outlast export RUN tables --format parquet
    outlast export RUN --table interruptions         one table, on stdout
    outlast export RUN --table events --format jsonl

Exit codes:

0   no error
1   the ledger is damaged
2   the run does not exist, the folder exists already, or pyarrow is not installed
"""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Mapping, Sequence

from outlast.app.command_line import Parser, need_package
from outlast.app.reports.export_tables import (
    TABLES,
    Table,
    columns_of,
    csv_of,
    json_lines_of,
    tables_of,
)
from outlast.errors import UsageError
from outlast.model.texts import escaped
from outlast.runtime.folders.given import write_folder
from outlast.runtime.ledger.view import look


def _csv(table: Table) -> bytes:
    # A text of the ledger may hold half of a surrogate pair, which UTF-8 cannot encode.
    return csv_of(table).encode("utf-8", "replace")


def _json_lines(table: Table) -> bytes:
    return json_lines_of(table).encode("utf-8", "replace")


def _parquet(table: Table) -> bytes:
    import pyarrow
    from pyarrow import parquet

    out = io.BytesIO()
    parquet.write_table(pyarrow.table(columns_of(table)), out)
    return out.getvalue()


FORMATS: Mapping[str, Callable[[Table], bytes]] = {
    "csv": _csv,
    "jsonl": _json_lines,
    "parquet": _parquet,
}


def main(argv: Sequence[str]) -> int:
    """Run `outlast export` and return its exit code."""
    args = parser().parse_args(list(argv))
    if (args.folder is None) == (args.table is None):
        raise UsageError(
            "say where the tables go: a new folder for all of them, or --table for one on stdout",
            hint="outlast export RUN FOLDER, or outlast export RUN --table interruptions",
        )
    if args.format == "parquet":
        need_package("pyarrow", what="files of Parquet", extra="parquet")
        if args.table is not None and sys.stdout.isatty():
            raise UsageError("Parquet is not text", hint="write it to a file: > steps.parquet")
    make = FORMATS[args.format]
    run = look(args.run)
    for note in filter(None, (run.note, run.records.damage)):
        print(f"note: {escaped(note)}", file=sys.stderr)
    tables = {one.name: one for one in tables_of(run.records)}
    if args.table is not None:
        _to_stdout(make(tables[args.table]))
        return 0
    write_folder(args.folder, {f"{name}.{args.format}": make(one) for name, one in tables.items()})
    for name, one in tables.items():
        print(f"{escaped(args.folder)}/{name}.{args.format}  {len(one.rows):,} rows")
    return 0


def _to_stdout(data: bytes) -> None:
    sys.stdout.flush()
    binary = getattr(sys.stdout, "buffer", None)
    if sys.stdout.isatty():  # a name in the ledger may have codes that control a terminal
        data = escaped(data.decode("utf-8", "replace"), lines=True).encode() + b"\n"
    if binary is None:  # stdout was replaced by a stream of text
        sys.stdout.write(data.decode("utf-8", "replace"))
    else:
        binary.write(data)
    sys.stdout.flush()


def parser() -> Parser:
    """Return the parser of the command."""
    out = Parser(
        prog="outlast export",
        description="Write the ledger of a run as flat tables, for programs and spreadsheets.",
    )
    out.add_argument("run", metavar="RUN", help="folder of the run, or its name under runs/")
    out.add_argument(
        "folder", nargs="?", metavar="FOLDER", help="a new folder, which gets a file for each table"
    )
    out.add_argument(
        "--table", choices=TABLES, help="print this table on stdout, and write no folder"
    )
    out.add_argument(
        "--format",
        choices=tuple(FORMATS),
        default="csv",
        help="csv, jsonl (an object a line) or parquet (default: csv)",
    )
    return out
