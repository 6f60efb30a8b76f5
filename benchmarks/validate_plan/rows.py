"""A published figure beside what is computed here: the row, its verdict, and the table."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

RECOMPUTED_WITHIN = 0.005  # of what a reference computed from the same inputs
WIDTH = 150


class Verdict(str, Enum):
    EQUAL = "equal at the printed digits"
    WITHIN = "within"
    BRACKETED = "bracketed"
    UNVERIFIED = "equal; figure unverified"  # remembered, not read again: agreement proves little
    UNFIT = "does not fit"  # known, and why is said
    IMPLIED = "implied, not predicted"
    STATED = "error stated"
    NO_FIGURE = "nothing published"
    WRONG = "WRONG"


@dataclass(frozen=True)
class Row:
    what: str
    published: str
    computed: str
    difference: str
    verdict: Verdict
    why: str
    limit: str = ""  # of WITHIN: how far

    @property
    def reproduced(self) -> bool:
        """Or honestly labelled."""
        return self.verdict is not Verdict.WRONG


def printed(value: float, like: str) -> str:
    """Write the value with as many decimals as the published one has."""
    return f"{value:.{len(like.partition('.')[2])}f}"


def off(value: float, published: float) -> str:
    return f"{value / published - 1:+.1%}"


def equal(
    what: str,
    published: str,
    unit: str,
    value: float,
    why: str,
    *,
    recomputed: float | None = None,
    remembered: bool = False,
) -> Row:
    """Must come out equal after rounding to the digits published; and near what was recomputed from
    the same inputs, where that is known.
    """
    same = printed(value, published) == published and (
        recomputed is None or math.isclose(value, recomputed, rel_tol=RECOMPUTED_WITHIN)
    )
    beside = "" if recomputed is None else f" Recomputed elsewhere: {recomputed:g}."
    verdict = Verdict.WRONG if not same else Verdict.UNVERIFIED if remembered else Verdict.EQUAL
    return Row(
        what,
        f"{published} {unit}".strip(),
        f"{value:.4g} {unit}".strip(),
        off(value, float(published)),
        verdict,
        why + beside,
    )


def within(what: str, published: float, unit: str, value: float, share: float, why: str) -> Row:
    verdict = Verdict.WITHIN if abs(value / published - 1) <= share else Verdict.WRONG
    return Row(
        what,
        f"{published:g} {unit}".strip(),
        f"{value:.3g} {unit}".strip(),
        off(value, published),
        verdict,
        why,
        limit=f"{share:.0%}",
    )


def unfit(what: str, published: str, unit: str, value: float, why: str) -> Row:
    """Known not to fit.

    Should it come to fit, that is wrong too: the reason that is given is not true then.
    """
    verdict = Verdict.UNFIT if printed(value, published) != published else Verdict.WRONG
    return Row(
        what,
        f"{published} {unit}".strip(),
        f"{value:.4g} {unit}".strip(),
        off(value, float(published)),
        verdict,
        why,
    )


def nothing_published(what: str, unit: str, value: float, recomputed: float, why: str) -> Row:
    verdict = (
        Verdict.NO_FIGURE
        if math.isclose(value, recomputed, rel_tol=RECOMPUTED_WITHIN)
        else Verdict.WRONG
    )
    return Row(
        what,
        "-",
        f"{value:.4g} {unit}".strip(),
        off(value, recomputed),
        verdict,
        f"{why} The difference is to what was recomputed elsewhere: {recomputed:g}.",
    )


def table(rows: Sequence[Row]) -> str:
    """Return a line for each row, and below it the reason."""
    widths = [
        max(len(getattr(row, name)) for row in rows)
        for name in ("what", "published", "computed", "difference")
    ]
    heads = ("figure", "published", "computed", "difference")
    widths = [max(width, len(head)) for width, head in zip(widths, heads, strict=True)]
    lines = [
        "  ".join(
            [*(head.ljust(width) for head, width in zip(heads, widths, strict=True)), "verdict"]
        )
    ]
    for row in rows:
        cells = (row.what, row.published, row.computed, row.difference)
        verdict = f"{row.verdict.value} {row.limit}".strip()
        lines.append(
            "  ".join(
                [*(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)), verdict]
            )
        )
        lines += textwrap.wrap(row.why, WIDTH, initial_indent="    ", subsequent_indent="    ")
    return "\n".join(lines)
