"""`outlast status` and `outlast report`: both show what is in the folder of one run.

    outlast status               how the newest run under runs/ is doing now
    outlast report runs/NAME     where the time of that run went, and every interruption
    outlast report --html FILE   the same as one page to mail; --md prints it as Markdown

Exit codes: 0, 1 for a damaged ledger, 2 for a run that does not exist.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import os
import sys
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from outlast.app.command_line import Parser, add_json
from outlast.errors import CorruptError, UsageError

DESCRIPTIONS = {
    "status": "Show how a run is doing: its state, its step, its processes, and its last failures.",
    "report": "Show where the time of a run went, and every interruption with its recovery.",
}


def status(argv: Sequence[str]) -> int:
    """Run `outlast status` and return its exit code."""
    args = parser("status").parse_args(list(argv))
    from outlast.app.status import show_status, status_facts

    return _show(args, functools.partial(status_facts, workers=args.workers), show_status)


def report(argv: Sequence[str]) -> int:
    """Run `outlast report` and return its exit code."""
    args = parser("report").parse_args(list(argv))
    if args.html is not None or args.md:
        return _pages(args)
    from outlast.app.report import show_report
    from outlast.app.report_facts import report_facts

    return _show(args, report_facts, show_report)


def parser(name: str) -> Parser:
    """Return the parser of one of the two commands."""
    out = Parser(prog=f"outlast {name}", description=DESCRIPTIONS[name])
    out.add_argument(
        "run",
        nargs="?",
        metavar="RUN",
        help="folder of the run, or its name under runs/ (default: the newest run under runs/)",
    )
    if name == "status":
        out.add_argument(
            "--workers",
            action="store_true",
            help="list every worker, also those of a run of more than 64 ranks",
        )
    add_json(out)
    if name == "report":
        out.add_argument("--html", metavar="FILE", help="write the report as one page to mail")
        out.add_argument("--md", action="store_true", help="print the report as Markdown")
    return out


def _pages(args: argparse.Namespace) -> int:
    """Write the page, print it as Markdown, or both."""
    from outlast.app.page.page_html import report_page
    from outlast.app.page.page_markdown import report_markdown
    from outlast.app.page.page_model import page_of
    from outlast.runtime import clock
    from outlast.runtime.given import check_page, write_page
    from outlast.runtime.ledger.view import look

    if args.json:
        raise UsageError("--json goes with neither --html nor --md", hint="give one of them")
    if args.html is not None:
        check_page(args.html)
    view = look(args.run)
    with understood(view.path):
        page = page_of(view, wall_s=clock.wall_s())
        html, text = report_page(page), report_markdown(page)
    if args.html is not None:
        write_page(args.html, html)
    if args.md:
        print(text)
        sys.stdout.flush()
    return 0


def _show(
    args: argparse.Namespace,
    facts_of: Callable[..., Mapping[str, typing.Any]],
    show: Callable[..., None],
) -> int:
    from outlast.runtime.ledger.view import look

    view = look(args.run)
    with understood(view.path):
        text = _text(facts_of(view), show, as_json=args.json)
    print(text)
    sys.stdout.flush()
    return 0


# what the code that shows a run raises where a ledger holds values of another kind
_NOT_UNDERSTOOD = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)


@contextlib.contextmanager
def understood(path: Path) -> Iterator[None]:
    """Raise CorruptError where a ledger says what cannot be."""
    try:
        yield
    except _NOT_UNDERSTOOD as error:  # boundary: the folder's bytes may say anything
        raise CorruptError(
            f"the ledger of {path} says what cannot be: {type(error).__name__}: {error}",
            hint="the file was damaged or changed; restore it, or start a new run",
        ) from None


def _text(facts: Mapping[str, typing.Any], show: Callable[..., None], *, as_json: bool) -> str:
    from outlast.app.json_text import json_text
    from outlast.app.words import console_for, escaped_all

    if as_json:
        return json_text(facts)
    console = console_for(environment=os.environ)
    with console.capture() as page:
        show(console, escaped_all(facts))
    return "\n".join(line.rstrip() for line in page.get().splitlines())
