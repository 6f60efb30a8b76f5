"""`outlast report RUN RUN ...`: several runs added up.

Seconds, interruptions, steps and money add up. A share is that of the sums: the ETTR of two runs is
their productive seconds over all of their rank-seconds.
"""

from __future__ import annotations

import math
import typing
from collections.abc import Sequence

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from outlast.app import words
from outlast.app.reports import report_sums
from outlast.app.reports.report import causes_table
from outlast.app.reports.report_facts import SCHEMA
from outlast.app.reports.report_sums import Given
from outlast.app.reports.report_table import component_rows
from outlast.app.reports.status import OVER
from outlast.app.words import Facts
from outlast.diagnose.redact import clean
from outlast.model.terms import CAUSES, Cause

EACH = ("run", "path", "state", "world_size", "steps", "wall_s", "ettr", "mttr", "lacks", "damage")


def many_facts(some: Sequence[Facts], given: Given) -> dict[str, typing.Any]:
    """Return the JSON of several runs: their sums, and `runs`, a summary of each."""
    seconds = {
        cause.value: _sum([facts["rank_seconds"][cause.value] for facts in some])
        for cause in CAUSES
    }
    held_s = math.fsum(value for value in seconds.values() if value is not None)
    untrained_s = sum(seconds[name] or 0.0 for name in report_sums.UNTRAINED)
    measured = all(facts["ettr"] is not None for facts in some)
    productive_s = seconds[Cause.PRODUCTIVE.value] or 0.0
    return {
        "schema": SCHEMA,
        "runs": [_summary(facts) for facts in some],
        "wall_s": math.fsum(facts["wall_s"] for facts in some),
        "rank_seconds": seconds,
        "spare_seconds": math.fsum(facts["spare_seconds"] for facts in some),
        "ettr": productive_s / held_s if measured and held_s > 0 else None,
        "ettr_training": productive_s / (held_s - untrained_s)
        if measured and held_s > untrained_s
        else None,
        "balance": {
            "expected_s": math.fsum(facts["balance"]["expected_s"] for facts in some),
            "booked_s": held_s,
            "sums": all(facts["balance"]["sums"] for facts in some),
            "wrong": [
                f"{facts['run']}: {wrong}" for facts in some for wrong in facts["balance"]["wrong"]
            ],
        },
        "components": component_rows(some),
        **report_sums.sums(some, given),
    }


def _summary(facts: Facts) -> dict[str, typing.Any]:
    """Return the summary of one run. A number that a damaged ledger lacks is null."""
    summary = {name: facts[name] for name in EACH}
    if "steps" in facts["lacks"] and facts["state"] in OVER:
        summary["steps"] = None
    return summary


def _sum(some: Sequence[float | None]) -> float | None:
    known = [value for value in some if value is not None]
    return math.fsum(known) if known else None


def show_many(console: Console, facts: Facts) -> None:
    """Show the sums of several runs, and a line for each."""
    runs, all_of = facts["runs"], facts["reliability"]["all"]
    console.print(Text(words.count(len(runs), "run"), "bold"), "added up\n")
    pairs = Table.grid(padding=(0, 3, 0, 0))
    pairs.add_row("ETTR", *_ettr(facts))
    pairs.add_row("MTTF", *mean_words(all_of, "mttf"))
    pairs.add_row("MTTR", *mean_words(all_of, "mttr"))
    pairs.add_row("GPU-hours", f"{facts['cost']['gpu_hours']:,.1f}", cost_words(facts["cost"]))
    console.print(Padding(pairs, (0, 0, 0, 2)))
    console.print("\nWhere the time of all ranks went", style="bold")
    total_s = sum(value or 0.0 for value in facts["rank_seconds"].values())
    console.print(Padding(causes_table(console, facts, total_s), (0, 0, 0, 2)))
    for wrong in facts["balance"]["wrong"]:
        console.print(Text(f"  This account does not sum up: {wrong}.", style="bold red"))
    for one in runs:
        if one["damage"]:
            said = f"{one['run']}: {one['damage']} The sums leave out what it lacks."
            console.print(Text(f"  {clean(said)}", style="bold red"))
    console.print("\nRuns", style="bold")
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for name in ("run", "state"):
        table.add_column(name, overflow="fold")
    for name in ("ranks", "steps", "time", "ETTR", "interruptions"):
        table.add_column(name, justify="right", no_wrap=True)
    for one in runs:
        table.add_row(
            *map(Text, (one["run"], one["state"], f"{one['world_size']:,}")),
            "-" if one["steps"] is None else f"{one['steps']:,}",
            words.duration(one["wall_s"]),
            "-" if one["ettr"] is None else words.percent(one["ettr"]),
            "-" if "interruptions" in one["lacks"] else f"{one['mttr']['count']:,}",
        )
    console.print(Padding(table, (0, 0, 0, 2)))


def _ettr(facts: Facts) -> tuple[Text, str]:
    if facts["ettr"] is not None:
        return Text(words.percent(facts["ettr"]), "bold"), "of all time was productive"
    if any(one["damage"] for one in facts["runs"]):
        return Text("-", "bold"), "not known, because a ledger is damaged"
    return Text("-", "bold"), "not known, because that of a run is not known"


def mean_words(rates: Facts, name: str) -> tuple[Text, str]:
    """Return a mean time with its credible interval, in words."""
    mean_s, (low_s, high_s) = rates[f"{name}_s"], rates[f"{name}_range_s"]
    value = Text("-" if mean_s is None else words.long_duration(mean_s), "bold")
    if low_s is None:
        return value, "nothing was seen"
    most = "no bound" if high_s is None else words.long_duration(high_s)
    sure = f"{report_sums.LEVEL * 100:.0f} %"
    return value, f"mean; {words.long_duration(low_s)} to {most} with a chance of {sure}"


def cost_words(cost: Facts) -> str:
    """Return the GPU-hours that interruptions cost, and the money if a price is given."""
    lost = f"{cost['lost_gpu_hours']:,.2f} of them lost to interruptions"
    if cost["money"] is None:
        return lost
    return f"{lost}; {cost['money']:,.2f} in money, {cost['lost_money']:,.2f} of it lost"
