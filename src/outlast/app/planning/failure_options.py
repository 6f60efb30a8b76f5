"""The options that go with a table of failures, for `outlast calibrate` and `outlast import`."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence

from outlast.errors import UsageError
from outlast.model.strict import meant
from outlast.model.terms import FailureClass
from outlast.planner.fit.failures_table import Fleet, read_moment


def add_table_flags(out: argparse.ArgumentParser) -> None:
    """Add the options that say what a table itself does not say."""
    out.add_argument(
        "--units",
        type=int,
        metavar="N",
        help="how many units were watched, where the table does not say",
    )
    out.add_argument(
        "--from",
        dest="begin",
        metavar="TIME",
        help="start of the watch (2025-01-01, 2025-01-01T12:00:00Z, or seconds)",
    )
    out.add_argument("--to", dest="end", metavar="TIME", help="end of the watch")
    out.add_argument(
        "--class",
        dest="classes",
        action="append",
        default=[],
        metavar="NAME=CLASS",
        help="take NAME in the table for this class of failures; may be repeated",
    )


def fleet_of(args: argparse.Namespace) -> tuple[Fleet | None, bool | None]:
    """Return the fleet that the options describe, and whether its times are dates; or two Nones.

    Raises UsageError if only some of the options are given.
    """
    given = {"--units": args.units, "--from": args.begin, "--to": args.end}
    missing = [name for name, value in given.items() if value is None]
    if len(missing) == len(given):
        return None, None
    if missing:
        raise UsageError(
            f"{', '.join(missing)} missing",
            hint="--units, --from and --to go together: so many units, watched from then to then",
        )
    (from_s, dated), (to_s, to_dated) = (
        read_moment(args.begin, "--from"),
        read_moment(args.end, "--to"),
    )
    if dated is not to_dated:
        raise UsageError(
            "--from and --to are not alike", hint="both are dates, or both are seconds"
        )
    return Fleet(args.units, from_s, to_s), dated


def classes_of(given: Sequence[str]) -> Mapping[str, FailureClass]:
    """Return the class of failures for each NAME of --class. Raises UsageError."""
    known = tuple(one.value for one in FailureClass)
    out: dict[str, FailureClass] = {}
    for text in given:
        name, _, stands_for = text.rpartition("=")
        if not name or stands_for not in known:
            raise UsageError(
                f"--class {text}: {stands_for!r} is not a class",
                hint=f"as in --class DBE=hbm; {meant(stands_for, known)}",
            )
        if name in out:
            raise UsageError(f"--class says {name} twice", hint="each name stands for one class")
        out[name] = FailureClass(stands_for)
    return out
