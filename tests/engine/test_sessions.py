"""A node name belongs to one session of one agent: two agents with the same name never hold a lease
at the same time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlast.engine.agent.agent import Agent
from outlast.engine.cluster.agent_session import AgentSession, NodeOffer
from outlast.engine.cluster.coordinator_sessions import CoordinatorSessions
from outlast.engine.cluster.lease import void_after_s
from outlast.engine.coordinator.machine import Coordinator
from outlast.engine.coordinator.options import CoordinatorOptions
from outlast.engine.coordinator.restore_sources import Restart
from outlast.engine.coordinator.takeover import RecoveredState
from outlast.engine.protocol.outputs import (
    HangUp,
    HostStore,
    Kill,
    Output,
    Record,
    SendOverLink,
    SetTimer,
    Spawn,
    Tell,
    TurnAway,
)
from outlast.model.messages import (
    Enrol,
    Hello,
    Housed,
    LinkMessage,
    StoreUp,
    TurnedAway,
    Welcome,
    WorkerExited,
    WorkerStarted,
)

LEASE_S = 6.0
VOID_S = void_after_s(LEASE_S)
TWO = (0, 1)


@dataclass
class Twin:
    """An agent that may share its name with another one. `running` holds the workers that it has
    started.
    """

    agent_session: AgentSession
    connected: bool = False
    running: set[int] = field(default_factory=set)
    ever_ran: set[int] = field(default_factory=set)
    heard: list[LinkMessage] = field(default_factory=list)
    told: list[str] = field(default_factory=list)
    timers: dict[str, float] = field(default_factory=dict)

    @property
    def lent_until_s(self) -> float:
        return self.agent_session.lent_until_s

    def turned_away(self) -> bool:
        return bool(self.heard) and isinstance(self.heard[-1], TurnedAway)


class Pair:
    """Two agents with the same name, "a", and the coordinator of a run of one rank that needs one
    node.

    Messages arrive at once. As at the coordinator's real listener, the newest connection of the
    admitted agent is the link of its node.
    """

    def __init__(self) -> None:
        self.now_s = 100.0
        self.session_numbers: Iterator[int] = count(1_000)
        self.twins = tuple(
            Twin(
                AgentSession(
                    Agent(now_s=100.0, only_node=False), offer=NodeOffer("a", 1), beat_s=1.0
                )
            )
            for _ in TWO
        )
        self.line: Twin | None = None
        self.records: list[Any] = []
        self.told: list[str] = []
        self.epoch = 0
        self.timers: dict[str, float] = {}
        self.starts_over()

    # --- what may happen ---

    def connects(self, which: int) -> Twin:
        twin = self.twins[which]
        if not twin.connected:
            twin.connected = True
            session = next(self.session_numbers)
            told = {"images": (), "transfer": (), "session": session}
            self._agent_does(twin, twin.agent_session.on_connected(**told, now_s=self.now_s))
        return twin

    def is_cut(self, which: int) -> None:
        twin = self.twins[which]
        if twin.connected:
            twin.connected = False
            if self.line is twin:
                self.line = None
                self._sessions_do(self.sessions.on_disconnected("a"), twin)
            self._agent_does(twin, twin.agent_session.on_disconnected())

    def ends(self, which: int) -> None:
        """Kill the agent's process, which kills its workers, and start a new one."""
        self.is_cut(which)
        twin = self.twins[which]
        twin.agent_session = AgentSession(
            Agent(now_s=self.now_s), offer=NodeOffer("a", 1), beat_s=1.0
        )
        twin.running.clear()
        twin.timers.clear()

    def starts_over(self) -> None:
        """Start the coordinator, for the first time or after it died. It knows what was
        recorded.
        """
        for which in TWO:
            self.is_cut(which)
        remembered = RecoveredState()
        for record in self.records:
            remembered.take(record)
        self.epoch += 1
        self.timers.clear()
        options = CoordinatorOptions(
            1, Restart(), nodes=1, generation=remembered.generation, first_worker=100 * self.epoch
        )
        self.sessions = CoordinatorSessions(
            Coordinator(options=options), epoch=self.epoch, lease_s=LEASE_S
        )
        self.sessions.coordinator.remember(remembered)
        began = (
            self.sessions.start(now_s=self.now_s)
            if self.epoch == 1
            else self.sessions.rebuild(now_s=self.now_s, nodes=remembered.nodes)
        )
        self._sessions_do(began, None)

    def waits(self, for_s: float) -> None:
        """Let time pass. Timers ring in order, a moment after they are due."""
        until_s = self.now_s + for_s
        while due := [
            (at_s, name, owner)
            for owner in (None, *TWO)
            for name, at_s in self._timers_of(owner).items()
            if at_s <= until_s
        ]:
            at_s, name, owner = min(due, key=lambda one: one[:2])
            self.now_s = max(self.now_s, at_s)
            del self._timers_of(owner)[name]
            if owner is None:
                self._sessions_do(self.sessions.on_timer(now_s=self.now_s, name=name), None)
            else:
                twin = self.twins[owner]
                self._agent_does(twin, twin.agent_session.on_timer(now_s=self.now_s, name=name))
            self.holds()
        self.now_s = until_s

    def holds(self) -> None:
        """Check the fence: at most one agent has a lease, and at most one runs a worker that may
        act.
        """
        lent = [twin for twin in self.twins if twin.lent_until_s > self.now_s]
        assert len(lent) <= 1, f"both hold a lease at {self.now_s}"
        assert sum(bool(twin.running) for twin in lent) <= 1
        for twin in self.twins:
            assert not twin.running or twin in lent, "processes outlive their lease"

    # --- how the events are carried out ---

    def _timers_of(self, owner: int | None) -> dict[str, float]:
        return self.timers if owner is None else self.twins[owner].timers

    def _agent_does(self, twin: Twin, outputs: list[Output]) -> None:
        for output in outputs:
            if isinstance(output, SendOverLink) and twin.connected:
                self._sessions_hear(twin, output.message)
            elif isinstance(output, SetTimer):
                _set(twin.timers, output)
            elif isinstance(output, Spawn):
                twin.running.add(output.worker)
                twin.ever_ran.add(output.worker)
                started = WorkerStarted(output.worker, 1, "a", self.now_s)
                self._agent_does(twin, twin.agent_session.on_event(started, now_s=self.now_s))
                hello = Hello(output.worker, 1)
                self._agent_does(twin, twin.agent_session.on_worker(hello, now_s=self.now_s))
            elif isinstance(output, Kill) and output.worker in twin.running:
                twin.running.discard(output.worker)
                at_s = self.now_s
                gone = WorkerExited(
                    output.worker, 1, None, 9, False, 0, (), (), "body", at_s, at_s, ""
                )
                self._agent_does(twin, twin.agent_session.on_event(gone, now_s=at_s))
            elif isinstance(output, HostStore):
                up = StoreUp("127.0.0.1", 1)
                self._agent_does(twin, twin.agent_session.on_event(up, now_s=self.now_s))
            elif isinstance(output, Tell):
                twin.told.append(output.text)
            elif isinstance(output, HangUp):
                self.is_cut(self.twins.index(twin))

    def _sessions_hear(self, twin: Twin, message: LinkMessage) -> None:
        outputs = self.sessions.on_link("a", message, now_s=self.now_s)
        if isinstance(message, Enrol) and not (outputs and isinstance(outputs[0], TurnAway)):
            other, self.line = self.line, twin
            if other is not None and other is not twin:
                other.connected = False
                self._agent_does(other, other.agent_session.on_disconnected())
        self._sessions_do(outputs, twin)

    def _sessions_do(self, outputs: list[Output], visitor: Twin | None) -> None:
        for output in outputs:
            if isinstance(output, TurnAway) and visitor is not None:
                self._agent_hears(visitor, output.message)
                self.is_cut(self.twins.index(visitor))
            elif isinstance(output, SendOverLink) and self.line is not None:
                self._agent_hears(self.line, output.message)
            elif isinstance(output, SetTimer):
                _set(self.timers, output)
            elif isinstance(output, Record):
                self.records.append(output.record)
            elif isinstance(output, Tell):
                self.told.append(output.text)

    def _agent_hears(self, twin: Twin, message: LinkMessage) -> None:
        twin.heard.append(message)
        self._agent_does(twin, twin.agent_session.on_link(message, now_s=self.now_s))


def _set(timers: dict[str, float], order: SetTimer) -> None:
    timers.pop(order.name, None)
    if order.at_s is not None:
        timers[order.name] = order.at_s


@pytest.fixture
def pair() -> Pair:
    """Return a pair whose first agent is admitted and runs the rank."""
    one = Pair()
    assert one.connects(0).running == {100}
    return one


# --- both agents live
# ------------------------------------------------------------------------------


def test_a_second_agent_of_a_name_is_turned_away_and_told_why(pair: Pair) -> None:
    second = pair.connects(1)
    assert second.turned_away()
    assert not second.connected
    assert pair.told == second.told
    (said,) = second.told
    for words in ("node a: another agent has enrolled under this name", "within 7 s", "of its own"):
        assert words in said


def test_a_refused_agent_tries_again_and_people_are_told_once(pair: Pair) -> None:
    for _ in range(3):
        assert pair.connects(1).turned_away()
        pair.waits(0.5)
    assert len(pair.told) == len(pair.twins[1].told) == 1


def test_the_first_agent_does_not_notice_the_second(pair: Pair) -> None:
    """Method: the first agent's connection breaks, and the second tries to enrol before the first
    is back.
    """
    pair.is_cut(0)
    assert pair.connects(1).turned_away()
    first = pair.connects(0)
    assert [one.afresh for one in first.heard if isinstance(one, Welcome)] == [False, False]
    pair.waits(3 * VOID_S)
    assert first.ever_ran == first.running == {100}
    assert not pair.twins[1].ever_ran
    pair.holds()


def test_a_second_agent_that_houses_processes_is_told_to_kill_them(pair: Pair) -> None:
    """That agent cannot have been admitted, so its processes are no part of the run."""
    housed = Housed(7, 0, "rank", 77, None, (), False, None)
    enrol = Enrol("a", 9, 1, 1, 0, 0, None, (housed,), (), (), "", pair.now_s)
    away, *_ = pair.sessions.on_link("a", enrol, now_s=pair.now_s)
    assert away == TurnAway("a", Welcome(1, 0, LEASE_S, True, None))


# --- an agent follows one that is gone -----------------------------------------------------------


def test_an_agent_that_was_started_again_waits_for_the_old_lease(pair: Pair) -> None:
    pair.ends(0)
    assert pair.connects(0).turned_away()
    pair.waits(VOID_S - 0.5)
    assert pair.connects(0).turned_away()
    pair.waits(1.0)
    again = pair.connects(0)
    assert again.agent_session.is_in
    pair.waits(1.0)
    assert len(again.running) == 1


def test_an_agent_that_has_killed_all_need_not_wait(pair: Pair) -> None:
    """The lease ends by the agent's own clock before it ends by the coordinator's."""
    pair.is_cut(0)
    pair.waits(LEASE_S + 0.1)
    first = pair.twins[0]
    assert first.ever_ran == {100}
    assert not first.running
    assert pair.connects(0).agent_session.is_in
    came = "node a has joined the run, and stands ready"
    assert pair.told == ["node a has started over", came]
    pair.waits(1.0)
    assert len(first.running) == 1


def test_the_first_agent_is_turned_away_once_the_second_has_its_name(pair: Pair) -> None:
    pair.is_cut(0)
    pair.waits(VOID_S + 0.1)
    assert pair.connects(1).running
    assert pair.connects(0).turned_away()
    pair.holds()


def test_a_new_coordinator_knows_which_session_was_in(pair: Pair) -> None:
    """Method: the second agent enrols before the first. The first one has the rank, and goes on
    with it.
    """
    pair.starts_over()
    assert pair.connects(1).turned_away()
    first = pair.connects(0)
    assert first.running == first.ever_ran == {100}
    assert not pair.twins[1].ever_ran
    pair.holds()


def test_a_new_coordinator_lets_another_in_once_the_lease_is_over(pair: Pair) -> None:
    pair.starts_over()
    pair.waits(VOID_S - 0.1)
    assert pair.connects(1).turned_away()
    pair.waits(0.2)
    assert len(pair.connects(1).running) == 1
    assert not pair.twins[0].running


# --- any order of events
# ---------------------------------------------------------------------------

ACTS = st.one_of(
    st.tuples(st.sampled_from(["connects", "is_cut", "ends"]), st.sampled_from(TWO)),
    st.tuples(st.just("waits"), st.sampled_from([0.1, 1.0, LEASE_S - 0.1, LEASE_S + 0.1, VOID_S])),
    st.tuples(st.just("starts_over")),
)


@given(st.lists(ACTS, max_size=25))
def test_two_agents_of_a_name_never_hold_a_lease_at_once(course: list[tuple[Any, ...]]) -> None:
    """Method: connections break, and agents and the coordinator end and return, in a drawn
    order.
    """
    pair = Pair()
    for name, *arguments in course:
        getattr(pair, name)(*arguments)
        pair.holds()


def test_one_of_two_agents_of_a_name_gets_in_eventually() -> None:
    """Method: both agents try again and again, as their drivers do. The admitted one ends
    for good.
    """
    pair = Pair()
    for which in (0, 1):
        for _ in range(20):
            for other in range(which, 2):
                pair.connects(other)
            pair.waits(0.5)
        assert pair.twins[which].running, "it is in"
        assert sum("another agent has enrolled" in text for text in pair.told) == 1
        pair.ends(which)
