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

from outlast.app.command_line import Parser, add_json, add_run
from outlast.errors import CorruptError, UsageError

if typing.TYPE_CHECKING:
    from outlast.app.reports.report_sums import Given

DESCRIPTIONS = {
    "status": "Show how a run is doing: its state, its step, its processes, and its last failures.",
    "report": "Show where the time of a run went, and every interruption with its recovery.",
}


def status(argv: Sequence[str]) -> int:
    """Run `outlast status` and return its exit code."""
    args = parser("status").parse_args(list(argv))
    from outlast.app.reports.status import show_status, status_facts

    return _show(args, functools.partial(status_facts, workers=args.workers), show_status)


def report(argv: Sequence[str]) -> int:
    """Run `outlast report` and return its exit code."""
    args = parser("report").parse_intermixed_args(list(argv))
    if args.html is not None or args.md:
        return _pages(args)
    from outlast.app.reports.report import show_report
    from outlast.app.reports.report_facts import report_facts
    from outlast.app.reports.report_many import many_facts, show_many
    from outlast.app.reports.report_table import show_components
    from outlast.runtime.ledger.view import look

    if args.table and args.predict is not None and not args.json:
        raise UsageError("--table and --predict are two views", hint="give one of them, or --json")
    given = _given(args)
    some = []
    for run in args.run or [None]:
        view = look(run)
        with understood(view.path):
            some.append(report_facts(view, given))
    facts, show = (some[0], show_report) if len(some) == 1 else (many_facts(some, given), show_many)
    if args.table:
        show = show_components
    if args.predict is not None:
        if len(some) > 1:
            raise UsageError("a prediction is for one run", hint="name one run with --predict")
        from outlast.app.reports.report_predict import predicted, show_predicted

        facts = facts | {"predicted": predicted(facts, args.predict)}
        show = show_predicted
    print(_text(facts, show, as_json=args.json))
    sys.stdout.flush()
    return 0


def _given(args: argparse.Namespace) -> Given:
    """Return the facts that a ledger cannot know, and that the user gives."""
    from outlast.app.reports.report_sums import Given
    from outlast.model.quantities import QuantityKind, parse

    def value(name: str, kind: QuantityKind) -> float | None:
        text = getattr(args, name)
        return None if text is None else parse(text, kind, name=f"--{name.replace('_', '-')}")

    return Given(
        tokens_per_step=value("tokens_per_step", QuantityKind.COUNT),
        flops_per_step=value("flops_per_step", QuantityKind.COUNT),
        price=value("price", QuantityKind.PRICE),
    )


def parser(name: str) -> Parser:
    """Return the parser of one of the two commands."""
    out = Parser(prog=f"outlast {name}", description=DESCRIPTIONS[name])
    many = " The report adds several runs up" if name == "report" else ""
    add_run(out, nargs="*" if name == "report" else "?", help_end=f".{many}")
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
        _add_given(out)
    return out


def _add_given(out: Parser) -> None:
    out.add_argument(
        "--table",
        action="store_true",
        help="show interruptions by component, category, count and share, as Llama 3's paper does",
    )
    out.add_argument("--tokens-per-step", metavar="N", help="tokens of one step, of all ranks: 16M")
    out.add_argument("--flops-per-step", metavar="N", help="FLOPs of one step, of all ranks: 4e19")
    out.add_argument("--price", metavar="PRICE", help="price of a GPU-hour: 2.5/h")
    out.add_argument(
        "--predict",
        metavar="CLUSTER",
        help="compare what happened with what the planner expects by this cluster file",
    )


# what the report in the terminal and its JSON show, and a page does not
_NOT_ON_PAGES = ("--table", "--predict", "--tokens-per-step", "--flops-per-step", "--price")


def _pages(args: argparse.Namespace) -> int:
    """Write the page, print it as Markdown, or both."""
    from outlast.app.page.page_html import report_page
    from outlast.app.page.page_markdown import report_markdown
    from outlast.app.page.page_model import page_of
    from outlast.runtime import clock
    from outlast.runtime.folders.given import check_page, write_page
    from outlast.runtime.ledger.view import look

    if args.json:
        raise UsageError("--json goes with neither --html nor --md", hint="give one of them")
    for flag in _NOT_ON_PAGES:
        if getattr(args, flag.strip("-").replace("-", "_")) not in (None, False):
            raise UsageError(
                f"{flag} goes with neither --html nor --md: a page does not show what it adds",
                hint=f"leave out {flag}, or print the report without a page",
            )
    if args.html is not None:
        check_page(args.html)
    if len(args.run) > 1:
        raise UsageError("a page is of one run", hint="name one run with --html or --md")
    view = look(args.run[0] if args.run else None)
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
    """Raise CorruptError if a ledger holds values that are not possible."""
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
