"""Requests of people over the network: only a command that knows the run's token is heard, and what
it asks for cannot be changed on its way.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from outlast.engine.cluster.coordinator_sessions import CoordinatorSessions
from outlast.engine.coordinator.machine import Coordinator
from outlast.engine.coordinator.options import CoordinatorOptions
from outlast.engine.coordinator.requests import RunRequest
from outlast.engine.coordinator.restore_sources import Restart
from outlast.engine.protocol.outputs import Output, Tell
from outlast.errors import OutlastError, UsageError
from outlast.model import limits
from outlast.model.messages import (
    Admitted,
    Challenge,
    Hello,
    Knock,
    Message,
    RemoteRequest,
    Request,
    RequestAnswer,
    TurnedAway,
)
from outlast.model.wire import WIRE_VERSION, FrameReader, encode
from outlast.runtime.control_call import ControlCall, RemoteLauncher
from outlast.runtime.coordinator.agent_listener import AgentListener
from outlast.runtime.coordinator.control_socket import ControlSocket
from outlast.runtime.loop import Loop
from outlast.runtime.network import trust

TOKEN = b"a token of this run alone"
DRAIN = Request(WIRE_VERSION, "drain", "node-b", "a fan", "alice@laptop")
KNOCK = Knock(WIRE_VERSION, "1.0", "llama", "alice@laptop", "", trust.nonce())


class Leader:
    """The listener for agents and the control socket of a node that leads, on one loop."""

    def __init__(self, folder: Path, *, token: bytes | None = TOKEN) -> None:
        self.asked: list[RunRequest] = []
        self.told: list[str] = []
        self.loop = Loop()
        self.control = ControlSocket(self.loop, folder, tell=self.told.append)
        self.control.open(self.asked.append)
        coordinator = Coordinator(options=CoordinatorOptions(2, Restart(), nodes=2))
        self.listener = AgentListener(
            self.loop,
            CoordinatorSessions(coordinator, epoch=1, lease_s=10.0),
            peers=2,
            owner=self._own,
            token=token,
            admit=self._admit,
            asked=self.control.take_over,
        )
        self.address = self.listener.open()

    def _own(self, output: Output) -> None:
        if isinstance(output, Tell):
            self.told.append(output.text)

    def _admit(self, knock: Knock) -> Admitted | str:
        if knock.run != "llama":
            return f"{knock.node} looks for the run {knock.run!r}"
        return Admitted("run-1", "/runs/1", "/runs/1/checkpoints", 1.0)

    def way(self, *, run: str = "llama", token: bytes = TOKEN) -> RemoteLauncher:
        return RemoteLauncher(*self.address, run, token)

    def until(self, condition: Callable[[], object]) -> None:
        assert self.loop.run_until(lambda: bool(condition()), within_s=5.0)

    def close(self) -> None:
        self.listener.close()
        self.control.close()
        self.loop.close()


@pytest.fixture
def leader(tmp_path: Path) -> Iterator[Leader]:
    made = Leader(tmp_path)
    yield made
    made.close()


class Command(threading.Thread):
    """A command that asks for something, in a thread of its own."""

    def __init__(self, way: RemoteLauncher, request: Request = DRAIN) -> None:
        super().__init__()
        self.answers: list[RequestAnswer] = []
        self.error: OutlastError | None = None
        self._call = ControlCall(way, request)
        self.start()

    def run(self) -> None:
        try:
            with self._call as call:
                self.answers.extend(call.answers(within_s=5.0))
        except OutlastError as error:
            self.error = error


class RawCaller:
    """A connection on which a test sends what it likes."""

    def __init__(self, leader: Leader) -> None:
        self._leader = leader
        self._sock = socket.create_connection(leader.address, 5.0)
        self._reader = FrameReader()
        self.heard: list[Message] = []

    def says(self, *messages: Message) -> None:
        self._sock.sendall(b"".join(map(encode, messages)))

    def hears(self) -> list[Message]:
        """Let the launcher's loop run for a moment, and return all messages that have come."""
        self._leader.loop.run_until(lambda: False, within_s=0.05)
        self._sock.setblocking(False)
        try:
            while data := self._sock.recv(1 << 16):
                self.heard += self._reader.feed(data)
        except (BlockingIOError, ConnectionError):
            pass
        self._sock.setblocking(True)
        return self.heard

    def question(self) -> Challenge:
        self.says(KNOCK)
        (question,) = self.hears()
        assert isinstance(question, Challenge)
        return question

    def close(self) -> None:
        self._sock.close()


def test_a_command_with_the_token_is_heard_and_gets_each_answer(leader: Leader) -> None:
    command = Command(leader.way())
    leader.until(lambda: leader.asked)
    (asked,) = leader.asked
    assert (asked.what, asked.node, asked.reason) == ("drain", "node-b", "a fan")
    assert asked.by.startswith("alice@laptop at 127.0.0.1 port ")
    leader.control.answer(asked.number, "waits", "a node with room")
    leader.control.answer(asked.number, "done", "node node-b is drained")
    leader.until(lambda: not command.is_alive())
    assert [one.state for one in command.answers] == ["waits", "done"]
    assert command.error is None
    assert leader.told == []


@pytest.mark.parametrize(
    ("way", "says"),
    [
        ({"token": b"another token altogether"}, "does not know this token"),
        ({"run": "gpt"}, "refuses to listen: alice@laptop looks for the run 'gpt'"),
    ],
)
def test_a_command_with_another_token_or_run_is_refused(
    leader: Leader, way: dict[str, bytes | str], says: str
) -> None:
    command = Command(leader.way(**way))  # type: ignore[arg-type]  # one of both
    leader.until(lambda: not command.is_alive())
    assert isinstance(command.error, UsageError)
    assert says in str(command.error)
    assert leader.asked == []


def test_a_run_without_a_token_takes_no_request_over_the_network(tmp_path: Path) -> None:
    """A command that does not ask for the proof of the launcher is refused, too."""
    leader = Leader(tmp_path, token=None)
    command = Command(leader.way())
    leader.until(lambda: not command.is_alive())
    assert isinstance(command.error, UsageError)
    assert "has no token" in str(command.error)
    raw = RawCaller(leader)
    raw.says(KNOCK, RemoteRequest(DRAIN, "0" * 64))
    assert [type(one) for one in raw.hears()] == [Admitted, TurnedAway]
    assert leader.asked == []
    raw.close()
    leader.close()


@pytest.mark.parametrize("changed", ["digest", "node", "reason", "by", "question", "purpose"])
def test_a_request_that_is_not_as_its_author_sent_it_is_refused(
    leader: Leader, changed: str
) -> None:
    """Somebody between both ends changes a request, or sends one again that was heard before. An
    agent's proof is no request either.
    """
    raw = RawCaller(leader)
    question = raw.question()
    proven = trust.prove_request(question, DRAIN, token=TOKEN)
    match changed:
        case "digest":
            proven = replace(proven, digest="f" * 64)
        case "question":
            proven = trust.prove_request(RawCaller(leader).question(), DRAIN, token=TOKEN)
        case "purpose":
            digest = trust.prove(question, node="alice@laptop", token=TOKEN).digest
            proven = replace(proven, digest=digest)
        case _:
            other = replace(DRAIN, **{changed: "node-a"})
            proven = replace(proven, request=other)
    raw.says(proven)
    assert [type(one) for one in raw.hears()] == [Challenge, TurnedAway]
    assert leader.asked == []
    raw.close()


def test_a_caller_says_one_thing_and_may_go_at_any_time(leader: Leader) -> None:
    """Whatever it sends after its request ends the connection, and the request stays."""
    for after in ([Hello(1, 1)], [DRAIN], []):
        raw = RawCaller(leader)
        raw.says(trust.prove_request(raw.question(), DRAIN, token=TOKEN), *after)
        raw.hears()
        raw.close()
        leader.loop.run_until(lambda: False, within_s=0.05)
    assert [one.what for one in leader.asked] == ["drain"] * 3
    for one in leader.asked:
        leader.control.answer(one.number, "done", "")


def test_remote_callers_are_limited_as_those_of_this_machine_are(leader: Leader) -> None:
    callers = [RawCaller(leader) for _ in range(limits.CONTROL_CALLERS_COUNT + 1)]
    for one in callers:
        one.says(trust.prove_request(one.question(), DRAIN, token=TOKEN))
        one.hears()
    assert len(leader.asked) == limits.CONTROL_CALLERS_COUNT
    for one in callers:
        one.close()


def test_a_run_that_ends_refuses_requests_over_the_network(leader: Leader) -> None:
    leader.control.stop_listening()
    command = Command(leader.way())
    leader.until(lambda: not command.is_alive())
    assert [one.state for one in command.answers] == ["refused"]


def test_an_address_without_a_launcher_is_wrong_usage(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing listens there, or another program, or one that never says anything."""
    monkeypatch.setattr(limits, "CONTROL_WAIT_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = server.getsockname()
        with (
            pytest.raises(OutlastError, match="did not answer within"),
            ControlCall(RemoteLauncher(*address, "llama", TOKEN), DRAIN),
        ):
            pass

        def hang_up() -> None:
            for _ in range(2):
                sock, _ = server.accept()
                sock.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
                sock.close()

        thread = threading.Thread(target=hang_up)
        thread.start()
        with (
            pytest.raises(UsageError, match="is no launcher of outlast"),
            ControlCall(RemoteLauncher(*address, "llama", TOKEN), DRAIN),
        ):
            pass
        socket.create_connection(address).close()
        thread.join()
    with (
        pytest.raises(UsageError, match="nothing answers at"),
        ControlCall(RemoteLauncher(*address, "llama", TOKEN), DRAIN),
    ):
        pass
