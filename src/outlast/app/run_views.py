"""`outlast status` and `outlast report`: both show what is in the folder of one run.

    outlast status               how the newest run under runs/ is doing now
    outlast report runs/NAME     where the time of that run went, and every interruption

Exit codes: 0, 1 for a damaged ledger, 2 for a run that does not exist.
"""

from __future__ import annotations

import argparse
import os
import sys
import typing
from collections.abc import Callable, Mapping, Sequence

from outlast.app.command_line import Parser, add_json
from outlast.errors import CorruptError

DESCRIPTIONS = {
    "status": "Show how a run is doing: its state, its step, its processes, and its last failures.",
    "report": "Show where the time of a run went, and every interruption with its recovery.",
}


def status(argv: Sequence[str]) -> int:
    """Run `outlast status` and return its exit code."""
    args = parser("status").parse_args(list(argv))
    from outlast.app.status import show_status, status_facts

    return _show(args, status_facts, show_status)


def report(argv: Sequence[str]) -> int:
    """Run `outlast report` and return its exit code."""
    args = parser("report").parse_args(list(argv))
    from outlast.app.report import report_facts, show_report

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
    add_json(out)
    return out


def _show(
    args: argparse.Namespace,
    facts_of: Callable[..., Mapping[str, typing.Any]],
    show: Callable[..., None],
) -> int:
    from outlast.runtime.ledger.view import look

    view = look(args.run)
    try:
        text = _text(facts_of(view), show, as_json=args.json)
    except _NOT_UNDERSTOOD as error:  # boundary: the folder's bytes may say anything
        raise CorruptError(
            f"the ledger of {view.path} says what cannot be: {type(error).__name__}: {error}",
            hint="the file was damaged or changed; restore it, or start a new run",
        ) from None
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


def _text(facts: Mapping[str, typing.Any], show: Callable[..., None], *, as_json: bool) -> str:
    from outlast.app.json_text import json_text
    from outlast.app.words import console_for, escaped_all

    if as_json:
        return json_text(facts)
    console = console_for(environment=os.environ)
    with console.capture() as page:
        show(console, escaped_all(facts))
    return "\n".join(line.rstrip() for line in page.get().splitlines())
