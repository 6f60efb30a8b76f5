"""`outlast diagnose`: find out from any evidence which rank failed, where and why.

    outlast diagnose DIR                 print the verdict, what to do, the evidence, and how sure
                                         it is
    outlast diagnose DIR logs.tar.gz     read several places, archives too, as one incident
    outlast diagnose DIR --explain       also draw which rank waits for which, from the flight
                                         recorder dumps
    outlast diagnose DIR --html FILE     also write one page that can be mailed; it refers to
                                         nothing outside
    outlast diagnose --watch LOGS        follow a running job, and print the verdict once it hangs
                                         or has failed
    outlast diagnose --collect OUT       gather what is wanted from a hung job, into OUT

Secrets are removed from all output, and control characters are made visible, with `--json` too.

Exit codes:

0   there is a verdict
2   nothing could be read, or the command line is wrong
3   the class of the verdict is unknown
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from outlast.app.command_line import Parser, add_json
from outlast.app.json_text import json_text
from outlast.errors import OutlastError, UsageError

UNKNOWN_EXIT = 3


def main(argv: Sequence[str]) -> int:
    args = parser().parse_args(list(argv))
    if args.explain and args.json:
        raise UsageError(
            "--explain and --json cannot be used together",
            hint="leave one of them out; `--html FILE` has both",
        )
    if (args.pid or args.job) and args.collect is None and not args.watch:
        raise UsageError(
            "--pid and --job say which job to collect from",
            hint="add `--collect OUT` or `--watch`, or leave them out",
        )
    if args.collect is not None:
        if args.paths:
            raise UsageError(
                f"--collect gathers into {args.collect}, and reads no path",
                hint=f"collect first, then `outlast diagnose {args.collect}`",
            )
        from outlast.app.diagnosis.diagnose_collect import collect_into

        return collect_into(args.collect, pids=args.pid, job=args.job or "")
    if not args.paths:
        raise UsageError(
            "no path was named", hint="`outlast diagnose DIR`, or `outlast diagnose --collect OUT`"
        )
    paths, hangs = args.paths, ""
    if args.watch:
        from outlast.app.diagnosis.diagnose_watch import watched

        seen = watched(paths, pids=args.pid, job=args.job or "", quiet_s=args.quiet_after)
        paths, hangs = seen.paths, seen.reason if seen.how == "hangs" else ""
    try:
        return _run(
            paths,
            as_json=args.json,
            html=args.html,
            explain=args.explain,
            limit_s=args.time_limit,
            hangs=hangs,
        )
    except OutlastError as error:  # a file's name may hold anything
        from outlast.diagnose.redact import clean

        raise type(error)(clean(error.message, lines=True), hint=clean(error.hint)) from None


def parser() -> Parser:
    out = Parser(
        prog="outlast diagnose",
        description=(
            "Find out which rank failed, where and why, from logs, flight recorder dumps, stacks"
            " and kernel messages of any torchrun job."
        ),
    )
    out.add_argument(
        "paths",
        nargs="*",
        metavar="PATH",
        help=(
            "a folder, a file or an archive (tar, zip, gz, bz2, xz); several paths are read as one"
            " incident"
        ),
    )
    add_json(out)
    out.add_argument(
        "--html", metavar="FILE", help="also write the diagnosis as one HTML page, without secrets"
    )
    out.add_argument(
        "--collect",
        metavar="OUT",
        help="gather the dumps, stacks and logs of the job on this node into OUT",
    )
    out.add_argument(
        "--watch",
        action="store_true",
        help="follow the logs of a running job; print the verdict once it hangs or has failed",
    )
    out.add_argument(
        "--quiet-after",
        type=_seconds,
        default=60.0,
        metavar="S",
        help="with --watch: take stacks after S seconds without a new line (default: 60), or later"
        " where lines are usually rarer",
    )
    out.add_argument(
        "--pid",
        type=int,
        action="append",
        default=[],
        metavar="PID",
        help="with --collect or --watch: only this process and those that it started; may be"
        " repeated",
    )
    out.add_argument(
        "--job", metavar="ID", help="with --collect or --watch: only this torchrun or Slurm job"
    )
    out.add_argument(
        "--time-limit",
        type=_seconds,
        default=120.0,
        metavar="S",
        help="report what was found after S seconds (default: 120)",
    )
    out.add_argument("--explain", action="store_true", help="also draw which rank waits for which")
    return out


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 1.0 <= value <= 86_400.0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds from 1 to 86400")
    return value


def _run(
    paths: Sequence[str],
    *,
    as_json: bool,
    html: str | None,
    explain: bool,
    limit_s: float,
    hangs: str,
) -> int:
    from outlast.app.diagnosis.diagnose_text import facts_of, show
    from outlast.app.progress import progress_bar
    from outlast.diagnose.redact import clean, cleaned
    from outlast.model.terms import FailureClass
    from outlast.runtime.evidence.reading import diagnose
    from outlast.runtime.folders.given import check_page, write_page

    if html is not None:
        check_page(html)
    with progress_bar() as told:
        diagnosis = diagnose(paths, on_progress=told, limit_s=limit_s, hangs=hangs)
    verdict = cleaned(diagnosis.verdict.public())
    if as_json:
        for note in diagnosis.notes:
            print(f"note: {clean(note)}", file=sys.stderr)
        print(json_text(verdict))
    facts = facts_of(diagnosis, verdict)
    if html is not None:
        from outlast.app.diagnosis.diagnose_html import page

        write_page(html, page(facts))
    if not as_json:
        show(facts, explain=explain)
    sys.stdout.flush()
    return UNKNOWN_EXIT if diagnosis.verdict.failure_class is FailureClass.UNKNOWN else 0
