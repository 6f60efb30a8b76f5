"""`outlast report --predict CLUSTER`: compare what the planner expects with what happened.

The cluster file gives the rates of failures and the durations of recoveries, as for `outlast
calibrate` and `outlast plan`. The planner simulates a run with the ranks and the training time of
this run. It predicts neither start-up nor the end. It also does not predict losses without a
failure, such as waiting for batches, evaluation and user code.
"""

from __future__ import annotations

import typing
from collections.abc import Iterator

from rich.console import Console
from rich.padding import Padding
from rich.table import Table

from outlast.app import words
from outlast.app.reports import report_sums
from outlast.app.words import Facts
from outlast.errors import UsageError
from outlast.model.terms import Cause
from outlast.planner.cluster_file import Origin, parse
from outlast.planner.monte_carlo import Estimate, estimate
from outlast.planner.resolve import resolve
from outlast.runtime.folders.given import read_text

SEED = 1
REPLICAS = 400
PREDICTED = (
    Cause.PRODUCTIVE,
    Cause.STALL,
    Cause.REPEATED,
    Cause.DETECTION,
    Cause.REGROUP,
    Cause.RESTORE,
    Cause.DEGRADED,
    Cause.IDLE,
)


def predicted(facts: Facts, cluster_file: str) -> list[dict[str, typing.Any]]:
    """Return the rows: `key`, `predicted`, `low`, `high`, `happened`, and whether it is `inside`.

    Seconds are rank-seconds divided by the number of ranks. `low` and `high` are the 5th and the
    95th percentile of single runs. They are null if the planner has only a mean.

    Raises UsageError if the run has not trained yet.
    """
    training_s = report_sums.training_s(facts)
    if training_s <= 0:
        raise UsageError(
            "this run has not trained yet, so there is nothing to lay a prediction beside",
            hint="leave --predict out until some steps are committed",
        )
    expected = expected_of(
        cluster_file,
        gpus=max(1, round(facts["mean_ranks"])),
        training_s=training_s,
        source=facts["run"],
    )
    return [_row(*one) for one in _pairs(facts, expected)]


def expected_of(cluster_file: str, *, gpus: int, training_s: float, source: str) -> Estimate:
    """Return what the planner expects of a run with these ranks and this length.

    source   where these two numbers come from
    """
    cluster = parse(read_text(cluster_file), source=cluster_file)
    for path, value in (("job.gpus", gpus), ("job.duration", f"{training_s}s")):
        cluster = cluster.put(path, value, origin=Origin.LEDGER, source=source)
    return estimate(resolve(cluster).scenario, seed=SEED, replicas=REPLICAS)


Pair = tuple[str, float | None, float | None, float | None, float | None]


def _pairs(facts: Facts, expected: Estimate) -> Iterator[Pair]:
    ranks, every = facts["mean_ranks"], facts["reliability"]["all"]
    yield "ettr", expected.ettr_mean, expected.ettr_low, expected.ettr_high, facts["ettr_training"]
    low, high = expected.interruptions_low, expected.interruptions_high
    yield "interruptions", expected.interruptions, low, high, float(every["count"])
    yield "mttf_s", expected.mttf_s, None, None, every["mttf_s"]
    # The planner has the time for which a run waits for nodes in `regroup`, and beside it.
    mean_s = dict(expected.seconds) | {Cause.IDLE: expected.wait_s}
    mean_s[Cause.REGROUP] = max(0.0, mean_s[Cause.REGROUP] - expected.wait_s)
    for cause in PREDICTED:
        spent = facts["rank_seconds"][cause.value]
        happened = None if spent is None else spent / ranks
        yield f"seconds.{cause.value}", mean_s[cause], None, None, happened
    happened_by = facts["lost"]["by_class"]
    for name in sorted({one.value for one in expected.lost_s} | set(happened_by)):
        mean = next((value for one, value in expected.lost_s.items() if one.value == name), None)
        happened = happened_by.get(name, {"rank_s": 0.0})["rank_s"] / ranks
        yield f"lost.{name}", mean, None, None, happened


def _row(
    key: str,
    mean: float | None,
    low: float | None,
    high: float | None,
    happened: float | None,
) -> dict[str, typing.Any]:
    known = low is not None and high is not None and happened is not None
    return {
        "key": key,
        "predicted": mean,
        "low": low,
        "high": high,
        "happened": happened,
        "inside": low <= happened <= high if known else None,  # type: ignore[operator]
    }


def show_predicted(console: Console, facts: Facts) -> None:
    """Show each prediction next to what happened."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("", no_wrap=True)
    for name in ("predicted", "5 to 95 %", "happened"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("")
    for row in facts["predicted"]:
        key = row["key"]
        between = (
            "" if row["low"] is None else f"{_said(key, row['low'])} to {_said(key, row['high'])}"
        )
        remark = "" if row["inside"] in (None, True) else "outside"
        values = (_said(key, row["predicted"]), between, _said(key, row["happened"]), remark)
        table.add_row(key, *values)
    console.print("The planner's prediction, and what happened", style="bold")
    console.print(Padding(table, (0, 0, 0, 2)))
    console.print(
        "Seconds are those of all ranks divided by their number. The range is that of single"
        " simulated runs; the planner has none for what has no range here.",
        style="dim",
    )


def _said(key: str, value: float | None) -> str:
    if value is None:
        return "-"
    if key == "ettr":
        return words.percent(value)
    return f"{value:,.1f}" if key == "interruptions" else words.long_duration(value)
