"""Read recorded incidents: from files with verdicts, from folders of such files, and from runs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from outlast.errors import UsageError
from outlast.model.recorded import Recorded, read_recorded, recorded
from outlast.model.records import SessionRecords
from outlast.runtime.folders.given import read_text
from outlast.runtime.ledger.pointer import LEDGER, find_ledger
from outlast.runtime.ledger.store import read_ledger

ENDINGS = (".json", ".jsonl")
FILES_MAX_COUNT = 10_000


def read_incidents(path: str) -> list[Recorded]:
    """Read the incidents of a run from its ledger, or those of another folder from its files.

    The files are all that end in .json or .jsonl, in the order of their names. Raises UsageError.
    """
    place = Path(path)
    if place.is_dir():
        ledger = find_ledger(place).path
        return (
            _of_run(ledger)
            if ledger.is_file()
            else [
                one
                for file in _files(place)
                for one in read_recorded(read_text(str(file)), source=str(file))
            ]
        )
    if place.name == LEDGER:
        return _of_run(place)
    return read_recorded(read_text(path), source=path)


def _files(folder: Path) -> list[Path]:
    files = sorted(
        file
        for file in folder.rglob("*")
        if file.suffix in ENDINGS and file.is_file() and not file.is_symlink()
    )
    if not files:
        raise UsageError(
            f"{folder} holds no incidents",
            hint=(
                "a verdict is what `outlast diagnose --json` prints; name its file, or a run's"
                " folder"
            ),
        )
    if len(files) > FILES_MAX_COUNT:
        raise UsageError(
            f"{folder} holds {len(files):,} files; {FILES_MAX_COUNT:,} are read at most"
        )
    return files


def _of_run(ledger: Path) -> list[Recorded]:
    if not ledger.is_file():
        raise UsageError(f"{ledger} cannot be read: there is no such file")
    out = [
        one
        for number, part in enumerate(read_ledger(ledger).sessions)
        for one in _of_session(part, number, str(ledger))
    ]
    if not out:
        raise UsageError(
            f"{ledger} holds no verdicts",
            hint=(
                "the run was not diagnosed while it ran: `outlast diagnose RUN --json >"
                " incident.json`"
            ),
        )
    return sorted(out, key=lambda one: one.at_s or 0.0)


def _of_session(part: SessionRecords, number: int, source: str) -> Iterator[Recorded]:
    """Yield the incidents of a session, in seconds since the run began.

    Interruptions of two sessions never count as one outage.
    """
    outages = {one.id: one.id if one.parent is None else one.parent for one in part.interruptions}
    for event in part.events:
        if event.kind == "verdict":
            interruption = event.data.get("interruption")
            one = recorded(event.data, source=f"{source}, interruption {interruption}")
            outage = outages.get(one.outage, one.outage) if one.outage is not None else None
            yield replace(
                one,
                at_s=event.at_s - part.began_s,
                outage=None if outage is None else number * 1_000_000_000 + outage,
            )
