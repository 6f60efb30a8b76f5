"""A node that takes a run over goes on with the searches for causes of the one before."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

from outlast.app.run_takeover import unjudged
from outlast.model.records import Event, Interruption, Meta, Records, Session, SessionRecords
from outlast.model.terms import Mechanism
from outlast.runtime.agent.evidence import EvidenceCollector
from outlast.runtime.loop import Loop

FINDS = (sys.executable, "-S", "-c", "import sys; print('{\"folder\": \"' + sys.argv[1] + '\"}')")


def interruption(number: int, *, parent: int | None = None, over: bool = True) -> Interruption:
    return Interruption(
        number, Mechanism.SIGNAL, 5.0, parent=parent, resumed_s=6.0 if over else None
    )


def test_what_is_over_and_has_no_verdict_is_looked_for_again(tmp_path: Path) -> None:
    """Of five interruptions one is judged, one came during another one, and one is not over.

    Of the two others one left evidence in the folder that this node sees.
    """
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
    assert missing == [2, 4]
    folder = tmp_path / "interruption-4"
    folder.mkdir()
    (folder / "standing.json").touch()
    found: dict[int, Mapping[str, object]] = {}
    loop = Loop()
    evidence = EvidenceCollector(
        loop=loop,
        folder=tmp_path,
        vault=tmp_path,
        live_beacons=lambda: (),
        logs=lambda worker: {},
        command=FINDS,
        on_verdict=found.__setitem__,
    )
    evidence.go_on(missing)
    assert loop.run_until(lambda: bool(found), within_s=30)
    assert found == {4: {"folder": str(folder)}}
    evidence.stop()
    loop.close()
