"""Read what outlast itself recorded of a run as evidence.

The interruption that the run ended in counts, or its newest one.

An interruption that was recovered from is history: only the newest is diagnosed, with those that
belong to it, and a note says how many came before. If the ledger has a class for it, that was known
at the time, from an exit code or a kernel counter. It is a root then. Otherwise only the mechanism
and the reason are known, and it is a messenger. Tracebacks and error texts go through the readers
of logs like any other line.

This module is pure: no clock, no files, no torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from outlast.diagnose.findings import Finding
from outlast.diagnose.interrupted import Interrupted, interrupted
from outlast.diagnose.rules import RULES
from outlast.model.records import Interruption, Records, SessionRecords
from outlast.model.verdict import Evidence

RECORDED_END = "ledger.ended"


@dataclass(frozen=True, slots=True)
class LedgerContents:
    """The contents of a ledger, or of a record of one moment.

    lines      error texts, to be read like a log
    is_quiet   the ledger is of a run in which nothing was interrupted
    """

    findings: tuple[Finding, ...] = ()
    lines: tuple[bytes, ...] = ()
    notes: tuple[str, ...] = ()
    is_quiet: bool = False


def read_records(records: Records, *, name: str) -> LedgerContents:
    """Return the newest interruption of a ledger as findings, and notes about what was left out."""
    session = next((part for part in reversed(records.sessions) if part.interruptions), None)
    if session is None:
        return _uninterrupted(records, name)
    newest = _newest(session.interruptions)
    before = len(records.unique_interruptions()) - len(newest)
    notes = (
        ()
        if not before
        else (
            (
                f"{before:,} earlier {'interruption was' if before == 1 else 'interruptions were'}"
                " recovered from and not looked at"
            ),
        )
    )
    findings = [
        finding
        for place, one in enumerate(newest)
        for finding in _findings(one, session, name=name, order=place)
    ]
    lines = [
        line
        for one in newest
        for line in (one.traceback or one.error).encode("utf-8", "replace").splitlines()
    ]
    return LedgerContents(tuple(findings), tuple(lines), notes)


def _uninterrupted(records: Records, name: str) -> LedgerContents:
    """Return how a run without interruptions ended, if its ledger says so."""
    about = records.sessions[-1].session
    if about.state == "ended":
        said = "The run ended well: its ledger says so, and has no interruption."
    elif about.state == "stopped":
        said = f"The run was stopped ({about.reason}), and its ledger has no interruption."
    else:  # it goes on, its launcher was killed, or it was refused, which its logs say
        return LedgerContents(notes=("the ledger has no interruption",), is_quiet=True)
    row = RULES[RECORDED_END]
    ended = Finding(Evidence(name, None, said, row.role), row.name)
    return LedgerContents((ended,), is_quiet=True)


def _newest(interruptions: Sequence[Interruption]) -> list[Interruption]:
    """Return the newest interruption that is not part of another one, and its own parts."""
    root = max(
        (one for one in interruptions if one.parent is None),
        key=lambda one: one.detected_s,
        default=interruptions[-1],
    )
    return [root, *(one for one in interruptions if one.parent == root.id)]


def _findings(
    one: Interruption, session: SessionRecords, *, name: str, order: int
) -> list[Interrupted]:
    about = session.session
    at_s = one.detected_s if one.fault_s is None else one.fault_s
    at_wall_s = at_s - about.started_s + about.started_wall_s
    found = interrupted(one.public(began_s=0.0), name=name, at_s=at_wall_s, order=order)
    if about.state == "failed":  # training went on after it, and the run failed anyway
        return [replace(finding, healed=False, unseen=False) for finding in found]
    return found
