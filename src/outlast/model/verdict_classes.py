"""The class and the nodes of an interruption, from the ledger and the verdicts.

The ledger knows the class at once if the fault itself shows it. Otherwise the class is that of the
newest readable verdict, if its confidence is at least USED_FROM.

This module is pure: no clock, no files, no torch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from outlast.model.records import Event, Interruption
from outlast.model.terms import FailureClass

USED_FROM = 0.5  # the confidence from which a verdict's class and nodes are used
Verdicts = Mapping[int, Mapping[str, object]]

_CLASSES = {one.value: one for one in FailureClass}


def sure_verdicts(events: Iterable[Event]) -> dict[int, Mapping[str, object]]:
    """Return the newest verdict that is sure enough for each interruption, by its id."""
    out: dict[int, Mapping[str, object]] = {}
    for event in events:
        verdict, interruption = event.data.get("verdict"), event.data.get("interruption")
        if (
            event.kind != "verdict"
            or not isinstance(verdict, dict)
            or not isinstance(interruption, int)
        ):
            continue
        said, confidence = verdict.get("class"), verdict.get("confidence")
        if said in _CLASSES and isinstance(confidence, int | float) and confidence >= USED_FROM:
            out[interruption] = verdict
    return out


def class_of(one: Interruption, verdicts: Verdicts) -> FailureClass:
    """Return the class that the ledger knows; if it knows none, that of the verdict."""
    if one.failure_class is not FailureClass.UNKNOWN or one.id not in verdicts:
        return one.failure_class
    return _CLASSES[str(verdicts[one.id]["class"])]


def nodes_of(one: Interruption, verdicts: Verdicts) -> tuple[str, ...]:
    """Return the nodes that the verdict blames; if there are none, those where it was noticed."""
    blamed = verdicts.get(one.id, {}).get("nodes")
    named = tuple(map(str, blamed)) if isinstance(blamed, list) else ()
    return tuple(dict.fromkeys(named or one.nodes))
