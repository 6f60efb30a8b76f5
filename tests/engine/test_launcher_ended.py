"""A node whose launcher has ended is counted out at once, not only when its lease has run out."""

from __future__ import annotations

from outlast.engine.coordinator.stages import Stage
from outlast.engine.coordinator.takeover import RecoveredState
from outlast.engine.protocol.outputs import LookForLauncher, Record, SendOverLink, Tell
from outlast.model.messages import Welcome
from outlast.model.records import Event
from tests.engine.test_nodes import beats, coordinator_sessions, enrols
from tests.engine.test_takeover import the_next, trains_in

ENDED = "the launcher of node b has ended, and its processes with it"


def lost(outputs: list[object]) -> list[str]:
    """Return the nodes that are recorded as lost."""
    return [
        str(one.record.data["node"])
        for one in outputs
        if isinstance(one, Record)
        and isinstance(one.record, Event)
        and one.record.kind == "node_lost"
    ]


def test_a_node_that_has_disconnected_is_looked_for_and_counted_out() -> None:
    sessions = coordinator_sessions()
    sessions.start(now_s=0.0)
    for node in "ab":
        enrols(sessions, node)
        beats(sessions, node)
    assert sessions.on_disconnected("b") == [LookForLauncher("b")]
    out = sessions.on_launcher_ended("b", now_s=0.5)
    assert lost(out) == ["b"]
    assert Tell(ENDED) in out
    assert list(sessions.coordinator.nodes) == ["a"]
    assert sessions.on_launcher_ended("b", now_s=0.6) == [], "it is counted out already"


def test_a_node_that_has_connected_again_stays() -> None:
    """What was found out belongs to the connection before."""
    sessions = coordinator_sessions()
    sessions.start(now_s=0.0)
    for node in "ab":
        enrols(sessions, node)
        beats(sessions, node)
    sessions.on_disconnected("b")
    enrols(sessions, "b", now_s=0.1, epoch=1)
    assert sessions.on_launcher_ended("b", now_s=0.5) == []
    assert list(sessions.coordinator.nodes) == ["a", "b"]


def test_a_new_launcher_takes_the_name_of_one_that_has_ended_at_once() -> None:
    sessions = coordinator_sessions()
    sessions.start(now_s=0.0)
    for node in "ab":
        enrols(sessions, node)
        beats(sessions, node)
    sessions.on_disconnected("b")
    sessions.on_launcher_ended("b", now_s=0.5)
    enrols(sessions, "b", now_s=0.6, session=2)
    beats(sessions, "b", now_s=0.7)
    assert list(sessions.coordinator.nodes) == ["a", "b"]


def test_a_new_coordinator_does_not_wait_for_a_launcher_that_has_ended() -> None:
    sessions = the_next(RecoveredState(generation=1))
    enrols(sessions, "a", now_s=10.1, epoch=1, housed=(trains_in(1, 0),))
    assert sessions.coordinator.stage is Stage.REBUILDING
    out = sessions.on_launcher_ended("b", now_s=10.2)
    assert lost(out) == ["b"]
    assert sessions.coordinator.stage is not Stage.REBUILDING
    (interruption,) = sessions.coordinator.interruptions.open
    assert interruption.mechanism == "lost_node"
    assert interruption.ranks == (1,)
    assert ENDED in interruption.reason


def test_a_new_coordinator_still_waits_for_the_other_nodes() -> None:
    """If a process of the lost node comes up nevertheless, its agent kills it."""
    sessions = the_next(RecoveredState(generation=1))
    assert lost(sessions.on_launcher_ended("b", now_s=10.1)) == ["b"]
    assert sessions.coordinator.stage is Stage.REBUILDING
    out = enrols(sessions, "b", now_s=10.2, epoch=1, housed=(trains_in(1, 1),))
    (welcome,) = (one.message for one in out if isinstance(one, SendOverLink))
    assert isinstance(welcome, Welcome)
    assert welcome.afresh
    enrols(sessions, "a", now_s=10.3, epoch=1, housed=(trains_in(1, 0),))
    assert sessions.coordinator.stage is not Stage.REBUILDING
