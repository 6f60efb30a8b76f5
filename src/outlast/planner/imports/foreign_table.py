"""Make the records of one run from a table of failures (planner/fit/failures_table.py).

Each unit of the table becomes a rank. It lives as long as it was watched, and goes on after a
failure. So `outlast calibrate` finds the same unit-seconds and failures in the ledger as in the
table. A ledger has no place for ages (`installed`). To fit laws of age, calibrate from the table.

This module is pure: rows in, records out.
"""

from __future__ import annotations

from outlast.model.terms import FailureClass, Mechanism
from outlast.planner.fit.failures_table import ImportedFailures
from outlast.planner.foreign_records import ForeignFailure, ForeignLife, ForeignSession


def session_of(table: ImportedFailures) -> ForeignSession:
    """Return one session that holds the whole table."""
    stretches = table.stretches()
    ranks = {name: rank for rank, name in enumerate(sorted(stretches))}
    lives = tuple(
        ForeignLife(ranks[name], name, from_s, to_s, "watched until then")
        for name, of_one in stretches.items()
        for from_s, to_s in of_one
    )
    failures = tuple(
        ForeignFailure(
            row.failed_s,
            _mechanism(row.failure_class),
            row.failure_class,
            (ranks[row.unit],),
            (row.unit,),
            resumed_s=row.failed_s,
            reason=f"line {row.line} of {table.source}",
        )
        for row in table.rows
        if row.failed_s is not None and row.failure_class is not None
    )
    from_s, to_s = min(life.from_s for life in lives), max(life.to_s for life in lives)
    return ForeignSession(from_s, to_s, "ended", lives, failures, reason="a table of failures")


def _mechanism(failure_class: FailureClass | None) -> Mechanism:
    slow = failure_class in (FailureClass.STRAGGLER, FailureClass.THERMAL)
    return Mechanism.SLOW if slow else Mechanism.EXIT
