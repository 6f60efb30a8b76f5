"""Find the verdicts that a drill's run has not found by its end.

A run looks for the cause of each interruption at low priority, one after the other, and nothing
waits for that. Under faults that come every few seconds the search falls behind. What is left when
the run ends, or when another node takes over, has no verdict in the ledger. The evidence is there,
so it is read now, when nothing else wants the processor.

Some faults leave a line of the kernel's in a real failure. The kernel cannot be made to write it.
So it is put beside the evidence, marked as the drill's, before that is read.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from outlast.errors import OutlastError
from outlast.model.limits import DIAGNOSIS_S
from outlast.runtime.evidence.api import diagnose
from outlast.runtime.folders.leader_file import folders

VERDICT, UNFINISHED = "verdict.json", "verdict.part"
KERNEL_LOG = "dmesg-of-drill.txt"  # so the host that such a line is about is called "drill"


def add_lines(run: Path, report: dict[str, Any], lines: Mapping[int, str]) -> None:
    """Put a line of the kernel's beside the evidence of interruptions, by their number.

    What the run has said of them so far is taken out of the report, because it has not read that.
    """
    placed = set()
    for number, line in lines.items():
        place = _evidence_of(run, number)
        if place is not None:
            (place / KERNEL_LOG).write_text(
                f"# outlast drill has written this line in the kernel's place\n{line}\n"
            )
            (place / VERDICT).unlink(missing_ok=True)
            placed.add(number)
    report["verdicts"] = [one for one in report["verdicts"] if one["interruption"] not in placed]


def find_missing(
    run: Path, report: Mapping[str, Any], tell: Callable[[int], object] = lambda count: None
) -> list[dict[str, Any]]:
    """Return the verdicts that are not in a report of the run, as the report has the others.

    An interruption that came during another one shares the evidence of that one.

    tell   gets how many interruptions are looked at, if there are any
    """
    known = {one["interruption"] for one in report["verdicts"]}
    ids = [one["id"] for one in report["interruptions"] if one["parent"] is None]
    places = {
        number: place
        for number in ids
        if number not in known and (place := _evidence_of(run, number)) is not None
    }
    if places:
        tell(len(places))
    found = []
    for number, place in places.items():
        verdict = _verdict_of(place)
        if verdict is not None:
            found.append({**verdict, "interruption": number})
    return found


def _evidence_of(run: Path, number: int) -> Path | None:
    """Return the folder with the evidence of an interruption, or None if there is none.

    It is below the folder of the launcher that led then.
    """
    found = (folder / "evidence" / f"interruption-{number}" for folder in folders(run))
    return next((one for one in found if (one / "standing.json").exists()), None)


def _verdict_of(place: Path) -> dict[str, Any] | None:
    """Return the verdict on a folder of evidence, and keep it there as the run would have done.

    A run may have found it, and had no ledger any more to write it into.
    """
    with contextlib.suppress(OSError, ValueError):
        verdict = json.loads((place / VERDICT).read_bytes())
        if isinstance(verdict, dict):
            return verdict
    with contextlib.suppress(OSError, OutlastError):  # evidence without a word has no verdict
        (place / UNFINISHED).unlink(missing_ok=True)
        found = dict(diagnose(place, time_limit_s=DIAGNOSIS_S).public())
        (place / VERDICT).write_text(json.dumps(found))
        return found
    return None
