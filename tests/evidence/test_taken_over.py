"""A node that takes a run over goes on with the searches for causes of the one before."""

from __future__ import annotations

from outlast.app.launch.run_takeover import unjudged
from outlast.model.records import Event, Interruption, Meta, Records, Session, SessionRecords
from outlast.model.terms import Mechanism


def interruption(number: int, *, parent: int | None = None, over: bool = True) -> Interruption:
    return Interruption(
        number, Mechanism.SIGNAL, 5.0, parent=parent, resumed_s=6.0 if over else None
    )


def test_what_is_over_and_has_no_verdict_is_looked_for_again() -> None:
    """Of five interruptions one is judged, one came during another one, and one is not over."""
    some = (
        interruption(1),
        interruption(2),
        interruption(3, parent=2),
        interruption(4),
        interruption(5, over=False),
    )
    judged = Event(7.0, 7.0, "verdict", {"interruption": 1, "verdict": {}})
    session = Session(1, 7, 0.0, 0.0, 9.0)
    part = SessionRecords(session, 0.0, interruptions=some, events=(judged,))
    missing = unjudged(Records(Meta("run", "name", 4, "1", 0.0, 0.0), (part,)))
    assert [one.id for one in missing] == [2, 4]
