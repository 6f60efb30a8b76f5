"""The dialler against the real listener: which nodes are admitted, turned away, or try again."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from outlast.engine.cluster.coordinator_sessions import CoordinatorSessions
from outlast.engine.coordinator.machine import Coordinator
from outlast.engine.coordinator.options import CoordinatorOptions
from outlast.engine.coordinator.restore_sources import Restart
from outlast.engine.protocol.outputs import Output, Tell
from outlast.model.messages import Admitted, Knock, Message
from outlast.model.wire import WIRE_VERSION
from outlast.runtime.agent.dialler import Caller, Dialler
from outlast.runtime.coordinator.agent_listener import AgentListener
from outlast.runtime.loop import Loop

WITHIN_S = 10.0
TOKEN = b"sixteen bytes, or more"
FACTS = Admitted("run-1", "/runs/1", "/runs/1/checkpoints", 0.5)
CALLER = Caller(WIRE_VERSION, "1.0", "none", "b", "digest")


class Ear:
    """A receiver that records what the dialler reports."""

    def __init__(self) -> None:
        self.admitted: list[Admitted] = []
        self.refused: list[str] = []
        self.heard: list[Message] = []
        self.broken = 0

    def on_admitted(self, facts: Admitted) -> None:
        self.admitted.append(facts)

    def on_refused(self, reason: str) -> None:
        self.refused.append(reason)

    def on_link(self, message: Message) -> None:
        self.heard.append(message)

    def on_broken(self) -> None:
        self.broken += 1


@pytest.fixture
def loop() -> Iterator[Loop]:
    loop = Loop()
    yield loop
    loop.close()


class Leader:
    """A listener that admits every node, unless `answer` says otherwise."""

    def __init__(self, loop: Loop, *, token: bytes | None, answer: Admitted | str = FACTS) -> None:
        self.knocks: list[Knock] = []
        self.told: list[str] = []
        self.answer = answer
        coordinator = Coordinator(options=CoordinatorOptions(2, Restart(), nodes=2))
        self.listener = AgentListener(
            loop,
            CoordinatorSessions(coordinator, epoch=1, lease_s=5.0),
            peers=2,
            owner=self._own,
            token=token,
            admit=self._receive,
        )

    def _receive(self, knock: Knock) -> Admitted | str:
        self.knocks.append(knock)
        return self.answer

    def _own(self, output: Output) -> None:
        if isinstance(output, Tell):
            self.told.append(output.text)


def dialled(
    loop: Loop, address: tuple[str, int], *, token: bytes | None, caller: Caller = CALLER
) -> tuple[Ear, Dialler]:
    ear = Ear()
    dialler = Dialler(loop, address, caller, ear, token=token)
    dialler.dial()
    return ear, dialler


@pytest.mark.parametrize("token", [TOKEN, None])
def test_who_knows_the_token_is_admitted(loop: Loop, token: bytes | None) -> None:
    leader = Leader(loop, token=token)
    ear, dialler = dialled(loop, leader.listener.open(), token=token)
    assert loop.run_until(lambda: bool(ear.admitted), within_s=WITHIN_S)
    assert ear.admitted == [FACTS]
    (knock,) = leader.knocks
    assert (knock.wire, knock.run, knock.node, knock.script) == (
        WIRE_VERSION,
        "none",
        "b",
        "digest",
    )
    dialler.close()
    leader.listener.close()


@pytest.mark.parametrize(
    ("ours", "theirs", "why"),
    [
        (b"another secret of theirs", TOKEN, "does not know this run's token"),
        (None, TOKEN, "the run there has a token"),
        (TOKEN, None, "the run there has no token"),
    ],
)
def test_nodes_without_the_same_token_do_not_meet(
    loop: Loop, ours: bytes | None, theirs: bytes | None, why: str
) -> None:
    """Neither end takes the other for a part of its run, and the dialler does not try again."""
    leader = Leader(loop, token=theirs)
    ear, _ = dialled(loop, leader.listener.open(), token=ours)
    assert loop.run_until(lambda: bool(ear.refused), within_s=WITHIN_S)
    assert why in ear.refused[0]
    assert not ear.admitted
    assert leader.listener.nodes == 0
    leader.listener.close()


def test_a_node_of_another_run_is_told_why_it_is_turned_away(loop: Loop) -> None:
    leader = Leader(loop, token=TOKEN, answer="node b looks for another run")
    ear, _ = dialled(loop, leader.listener.open(), token=TOKEN)
    assert loop.run_until(lambda: bool(ear.refused), within_s=WITHIN_S)
    assert ear.refused == ["node b looks for another run"]
    assert any("looks for another run" in text for text in leader.told)
    leader.listener.close()


def test_a_coordinator_that_comes_later_is_reached(loop: Loop) -> None:
    """Nothing listens at first. The dialler says why it fails, and tries again until there is a
    listener.
    """
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = taken.getsockname()
    ear, dialler = dialled(loop, address, token=None)
    assert loop.run_until(lambda: dialler.tries >= 3, within_s=WITHIN_S)
    assert "refused" in dialler.error
    leader = Leader(loop, token=None)
    leader.listener.open(host=address[0], port=address[1])
    assert loop.run_until(lambda: bool(ear.admitted), within_s=WITHIN_S)
    assert not ear.refused
    dialler.close()
    leader.listener.close()


def test_a_broken_connection_is_established_again(loop: Loop) -> None:
    leader = Leader(loop, token=TOKEN)
    address = leader.listener.open()
    ear, dialler = dialled(loop, address, token=TOKEN)
    assert loop.run_until(lambda: bool(ear.admitted), within_s=WITHIN_S)
    leader.listener.close()
    assert loop.run_until(lambda: ear.broken == 1, within_s=WITHIN_S)
    leader.listener.open(host=address[0], port=address[1])
    assert loop.run_until(lambda: len(ear.admitted) == 2, within_s=WITHIN_S)
    dialler.close()
    leader.listener.close()
