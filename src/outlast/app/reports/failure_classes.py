"""The class of each interruption: the ledger's, or that of its newest verdict."""

from __future__ import annotations

from outlast.model.records import SessionRecords
from outlast.model.terms import FailureClass
from outlast.model.verdict_classes import class_of, sure_verdicts


def classes_of(part: SessionRecords) -> dict[int, FailureClass]:
    """Return the class of each interruption of a session; `unknown` if no source is sure."""
    verdicts = sure_verdicts(part.events)
    return {one.id: class_of(one, verdicts) for one in part.interruptions}
