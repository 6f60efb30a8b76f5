"""What an interruption is put down to: its class and its nodes, by the ledger and the verdicts.

The ledger knows a class at once where the fault itself shows it. Otherwise the newest readable
verdict says it, if it is at least SURE.

This module is pure: no clock, no files, no torch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from outlast.model.records import Event, Interruption
from outlast.model.terms import FailureClass

SURE = 0.5  # of a verdict, for its class and its nodes to be taken
Verdicts = Mapping[int, Mapping[str, object]]

_CLASSES = {one.value: one for one in FailureClass}


def sure_verdicts(events: Iterable[Event]) -> dict[int, Mapping[str, object]]:
    """Return the newest verdict on each interruption, by its id, of those that are sure enough."""
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
        if said in _CLASSES and isinstance(confidence, int | float) and confidence >= SURE:
            out[interruption] = verdict
    return out


def class_of(one: Interruption, verdicts: Verdicts) -> FailureClass:
    """Return the class that the ledger knows; else the verdict's."""
    if one.failure_class is not FailureClass.UNKNOWN or one.id not in verdicts:
        return one.failure_class
    return _CLASSES[str(verdicts[one.id]["class"])]


def nodes_of(one: Interruption, verdicts: Verdicts) -> tuple[str, ...]:
    """Return the nodes that the verdict blames; else those on which it showed."""
    blamed = verdicts.get(one.id, {}).get("nodes")
    named = tuple(map(str, blamed)) if isinstance(blamed, list) else ()
    return tuple(dict.fromkeys(named or one.nodes))
