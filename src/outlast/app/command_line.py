"""What all commands share: a parser whose errors say what to do, and how errors are shown."""

from __future__ import annotations

import argparse
import importlib
import math
import sys
import typing

from outlast.errors import OutlastError, UsageError
from outlast.model.option_words import meant_option
from outlast.model.texts import escaped


class Parser(argparse.ArgumentParser):
    """argparse with errors that say what to do, and without abbreviated flags.

    It raises UsageError where argparse would end the process.
    """

    def __init__(self, *args: typing.Any, **keywords: typing.Any) -> None:
        super().__init__(*args, **{"allow_abbrev": False, **keywords})

    def error(self, message: str) -> typing.NoReturn:
        hint = f"`{self.prog} --help` lists the options"
        _, _, unknown = message.partition("unrecognized arguments: ")
        if unknown.startswith("-"):
            # argparse names what follows, too, which may be the value, or right
            word = unknown.split()[0].partition("=")[0]
            message = f"unknown option {word}"
            hint = meant_option(word, self._option_string_actions) or hint
        raise UsageError(message, hint=hint)


def add_json(to: argparse._ActionsContainer) -> None:
    """Add `--json`, which means the same for every command."""
    to.add_argument(
        "--json", action="store_true", help="print one JSON object on stdout, for programs"
    )


def add_run(to: argparse._ActionsContainer, *, nargs: str = "?", help_end: str = "") -> None:
    """Add the argument RUN, which means the same for every command: a run's folder or its name."""
    to.add_argument(
        "run",
        nargs=nargs,
        metavar="RUN",
        help="folder of the run, or its name under runs/ (default: the newest run under runs/)"
        + help_end,
    )


def split_at_dashes(argv: typing.Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the words before and after the first `--`."""
    words = list(argv)
    at = words.index("--") if "--" in words else len(words)
    return words[:at], words[at + 1 :]


def finite(text: str) -> float:
    """Read an argument that is a number, for argparse. NaN and infinity are refused."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise argparse.ArgumentTypeError(f"{text!r} is not a finite number")
    return value


def whole(text: str) -> int:
    """Read an argument that is a whole number from 0, for argparse.

    Raises ArgumentTypeError, which argparse shows as a usage error.
    """
    if not text.isascii() or not text.isdigit():
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 0")
    return int(text)


def address(text: str) -> tuple[str, int]:
    """Read `[HOST:]PORT`, for argparse.

    The host is 127.0.0.1 if none is given. Raises ArgumentTypeError for any other text.
    """
    host, _, port = text.rpartition(":")
    if not port.isascii() or not port.isdigit() or int(port) > 65_535:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port, and not HOST:PORT")
    return host.strip("[]") or "127.0.0.1", int(port)


def need_package(name: str, *, what: str, extra: str) -> None:
    """Raise UsageError if a package of an extra is not installed."""
    try:
        importlib.import_module(name)
    except ImportError:
        raise UsageError(
            f"{what} need the package {name}", hint=f"pip install 'outlast[{extra}]'"
        ) from None


def fail(error: OutlastError) -> int:
    """Print the error on stderr and return its exit code."""
    print(f"error: {escaped(str(error), lines=True)}", file=sys.stderr)
    return error.exit_code
