"""The class of each interruption: the ledger's, or that of its newest verdict."""

from __future__ import annotations

from collections.abc import Mapping

from outlast.model.records import SessionRecords
from outlast.model.terms import FailureClass


def classes_of(part: SessionRecords) -> dict[int, FailureClass]:
    """Return the class of each interruption of a session; `unknown` where nobody named one."""
    known = {each.value: each for each in FailureClass}
    told: dict[object, FailureClass] = {}
    for event in part.events:
        if event.kind == "verdict":
            verdict = event.data.get("verdict")
            found = verdict.get("class") if isinstance(verdict, Mapping) else None
            told[event.data.get("interruption")] = known.get(str(found), FailureClass.UNKNOWN)
    said = {one.id: FailureClass(one.failure_class) for one in part.interruptions}
    return {
        number: told.get(number, one) if one is FailureClass.UNKNOWN else one
        for number, one in said.items()
    }
