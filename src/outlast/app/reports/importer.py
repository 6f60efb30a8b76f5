"""`outlast import`: make a ledger from other logs, so that report and planner can read them.

    outlast import --torchrun logs/                      the folder given to torchrun --log-dir
    sacct -P -D --format=JobID,State,ExitCode,Start,End,Elapsed,NNodes,NodeList,AllocTRES > jobs
    outlast import --sacct jobs
    outlast import --csv failures.csv                    as `outlast calibrate --csv` reads it
    outlast import --csv failures.csv --units 512 --from 2025-01-01 --to 2025-06-01

The run's folder is made under runs/, or at --run-dir. Nothing of the source is changed. See
docs/how-to/import-failures.md.

Exit codes: 0: no error. 1: the ledger cannot be written. 2: the input cannot be read, or the folder
exists already.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import platform
import sys
from collections import Counter
from collections.abc import Sequence
from importlib.metadata import version

from outlast.app import words
from outlast.app.command_line import Parser, add_json
from outlast.app.json_text import json_text
from outlast.app.planning.failure_options import add_table_flags, classes_of, fleet_of
from outlast.errors import OutlastError, UsageError
from outlast.model.records import Records
from outlast.model.texts import cut_at_word
from outlast.planner.fit.failures_table import read_table
from outlast.planner.foreign_records import records_of
from outlast.planner.imports.foreign_table import session_of
from outlast.planner.imports.sacct import read_sacct
from outlast.planner.imports.torchrun_attempts import RankFiles, sessions_of
from outlast.runtime.evidence.api import diagnose
from outlast.runtime.evidence.torchrun_logs import FoundRank, find_ranks
from outlast.runtime.folders.given import folder_of, read_lines
from outlast.runtime.ledger.foreign import write_records

DIAGNOSIS_S = 60.0  # for the logs of each attempt
# characters of an error file that are taken over
_MESSAGE_COUNT, _TRACEBACK_COUNT = 2_000, 20_000


def main(argv: Sequence[str]) -> int:
    """Run `outlast import` and return its exit code."""
    args = parser().parse_args(list(argv))
    try:
        records = _read(args)
        path = write_records(folder_of(args.run_dir), records, options={"imported": _source(args)})
    except OutlastError as error:
        # Names of files, and what they hold, may have control characters.
        raise type(error)(words.escaped(error.message), hint=words.escaped(error.hint)) from None
    facts = _facts(records, str(path))
    if args.json:
        print(json_text(facts))
        return 0
    print(_told(facts))
    shown = words.escaped(str(path))
    print(f"{shown}: `outlast report {shown}`, `outlast calibrate {shown}`")
    sys.stdout.flush()
    return 0


def parser() -> Parser:
    """Return the parser of the command."""
    out = Parser(
        prog="outlast import",
        description=(
            "Make a ledger from records of other programs: torchrun's logs, Slurm's accounting,"
            " or a table of failures."
        ),
    )
    kind = out.add_mutually_exclusive_group(required=True)
    kind.add_argument(
        "--torchrun", metavar="FOLDER", help="logs of a torchrun job: what --log-dir named"
    )
    kind.add_argument(
        "--sacct", metavar="FILE", help="what `sacct --parsable2 --duplicates` has printed"
    )
    kind.add_argument(
        "--csv", metavar="FAILURES", help="a table of failures, as for `outlast calibrate --csv`"
    )
    out.add_argument(
        "--job-name", metavar="NAME", help="with --sacct: only jobs of this name, one training"
    )
    out.add_argument(
        "--no-diagnosis",
        action="store_true",
        help="with --torchrun: do not look into the logs for the reason of each failure",
    )
    add_table_flags(out)
    out.add_argument(
        "--run-dir", metavar="PATH", help="a new folder for it (default: one under runs/)"
    )
    add_json(out)
    return out


def _source(args: argparse.Namespace) -> str:
    return str(args.torchrun or args.sacct or args.csv)


def _read(args: argparse.Namespace) -> Records:
    """Read what is given into records. Raises UsageError."""
    source = _source(args)
    about_tables = (args.units, args.begin, args.end)
    if args.csv is None and (args.classes or any(one is not None for one in about_tables)):
        raise UsageError(
            "--units, --from, --to and --class are about a table of failures",
            hint="name it with --csv",
        )
    if args.sacct is None and args.job_name is not None:
        raise UsageError("--job-name is about jobs of Slurm", hint="name their file with --sacct")
    if args.torchrun is None and args.no_diagnosis:
        raise UsageError("--no-diagnosis is about logs", hint="name their folder with --torchrun")
    name = args.job_name or os.path.basename(source.rstrip("/")).partition(".")[0] or "imported"
    if args.csv is not None:
        fleet, dates = fleet_of(args)
        table = read_table(
            read_lines(source),
            source=source,
            fleet=fleet,
            dates=dates,
            classes=classes_of(args.classes),
        )
        sessions, kind, unit = [session_of(table)], "csv", table.unit.name.lower()
    elif args.sacct is not None:
        sessions = read_sacct(read_lines(source), source=source, job_name=args.job_name)
        kind, unit = "sacct", "gpu"
    else:
        found = find_ranks(source)
        verdicts = {} if args.no_diagnosis else _verdicts(found)
        sessions = sessions_of(
            [_files(one) for one in found], node=platform.node(), source=source, verdicts=verdicts
        )
        kind, unit = "torchrun", "gpu"
    return records_of(
        sessions, name=name, kind=kind, source=source, unit=unit, version=version("outlast")
    )


def _files(one: FoundRank) -> RankFiles:
    """Return the contents of the files of one rank in one attempt, as the importer needs them."""
    message = cut_at_word(one.error.message, _MESSAGE_COUNT) if one.error else ""
    traceback = one.error.traceback[-_TRACEBACK_COUNT:] if one.error else ""
    return RankFiles(
        one.run, one.attempt, one.rank, one.made_s, one.written_s, one.error_s, message, traceback
    )


def _verdicts(found: Sequence[FoundRank]) -> dict[tuple[str, int], dict[str, object]]:
    """Return what a diagnosis finds in the logs of each attempt that may have failed."""
    last = {
        run: max(one.attempt for one in found if one.run == run) for run in {o.run for o in found}
    }
    out = {}
    for one in found:
        key = one.run, one.attempt
        failed = one.error is not None or one.attempt < last[one.run]
        if not failed or key in out:
            continue
        # Logs in which there is no evidence have no verdict.
        with contextlib.suppress(OutlastError):
            out[key] = diagnose(one.folder.parent, time_limit_s=DIAGNOSIS_S).public()
    return out


def _facts(records: Records, path: str) -> dict[str, object]:
    parts = records.sessions
    found = [one for part in parts for one in part.interruptions]
    classes = Counter(str(one.failure_class.value) for one in found)
    return {
        "path": path,
        "name": records.meta.name,
        "sessions": len(parts),
        "ranks": records.world_size,
        "failures": len(found),
        "by_class": dict(classes),
        "wall_s": round(sum(part.session.over_s - part.session.started_s for part in parts), 6),
    }


def _told(facts: dict[str, object]) -> str:
    """Return a sentence about what was found."""
    sessions, ranks, failures = facts["sessions"], facts["ranks"], facts["failures"]
    assert isinstance(sessions, int)
    assert isinstance(ranks, int)
    assert isinstance(failures, int)
    return (
        f"{words.escaped(str(facts['name']))}: {words.count(failures, 'failure')} in"
        f" {words.long_duration(float(str(facts['wall_s'])))},"
        f" {words.count(sessions, 'session')}, {words.count(ranks, 'rank')}"
    )
