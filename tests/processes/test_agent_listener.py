"""The coordinator's listener, with real sockets on loopback.

At one end are real `AgentSession` and `Agent` machines, at the other real `CoordinatorSessions` and
`Coordinator`.
"""

from __future__ import annotations

import resource
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from outlast.engine.agent.agent import Agent
from outlast.engine.cluster.agent_session import AgentSession, NodeOffer
from outlast.engine.cluster.coordinator_sessions import CoordinatorSessions
from outlast.engine.coordinator.machine import Coordinator
from outlast.engine.coordinator.options import CoordinatorOptions
from outlast.engine.coordinator.restore_sources import Restart
from outlast.engine.protocol.outputs import (
    Deliver,
    HangUp,
    HostStore,
    Output,
    SendOverLink,
    SetTimer,
    Spawn,
    Tell,
    ToAgent,
)
from outlast.errors import UsageError
from outlast.model import limits
from outlast.model.messages import (
    Beat,
    Challenge,
    Enrol,
    EvidenceFiles,
    EvidencePiece,
    ForWorker,
    Grant,
    Hello,
    Leave,
    LogsAt,
    Message,
    Proof,
    Regroup,
    StoreUp,
    ToNode,
    ToWorkers,
    TurnedAway,
    Welcome,
    WorkerStarted,
)
from outlast.model.wire import encode
from outlast.runtime.clock import now_s
from outlast.runtime.coordinator.agent_listener import AgentListener
from outlast.runtime.loop import Loop, LoopTimer
from outlast.runtime.network import trust
from outlast.runtime.network.channel import Channel

BEAT_S = 0.02
LEASE_S = limits.BEAT_S * limits.LEASE_BEATS
TRIES_AGAIN_S = 0.05
WITHIN_S = 20.0


class CoordinatorHost:
    """A coordinator for `nodes` nodes of two ranks each.

    `told` holds what the listener or the coordinator told people.
    """

    def __init__(
        self, loop: Loop, *, nodes: int, token: bytes | None = None, lease_s: float = LEASE_S
    ) -> None:
        self.loop = loop
        self.coordinator = Coordinator(
            options=CoordinatorOptions(nodes * 2, Restart(), nodes=nodes)
        )
        self.sessions = CoordinatorSessions(self.coordinator, epoch=1, lease_s=lease_s)
        self.told: list[str] = []
        self.others: list[Output] = []
        self._timers: dict[str, LoopTimer] = {}
        self.heard: list[Message] = []
        self.agent_listener = AgentListener(
            loop,
            self.sessions,
            peers=nodes,
            owner=self._own,
            token=token,
            heard=lambda node, message: self.heard.append(message),
        )
        self.address = self.agent_listener.open()
        self.agent_listener.carry_out(self.sessions.start(now_s=now_s()))

    def _own(self, output: Output) -> None:
        self.others.append(output)
        if isinstance(output, Tell):
            self.told.append(output.text)
        if isinstance(output, SetTimer):
            if (old := self._timers.pop(output.name, None)) is not None:
                old.cancel()
            if output.at_s is not None:
                name = output.name
                self._timers[name] = self.loop.call_at(
                    output.at_s,
                    lambda: self.agent_listener.carry_out(
                        self.sessions.on_timer(now_s=now_s(), name=name)
                    ),
                )


class Node:
    """An agent whose workers only report that they have started.

    `delivered` holds the messages that the workers were given.
    """

    def __init__(
        self,
        loop: Loop,
        address: tuple[str, int],
        name: str,
        *,
        token: bytes | None = None,
        family: socket.AddressFamily = socket.AF_INET,
    ) -> None:
        self._loop = loop
        self._address = address
        self._token = token
        self._family = family
        self.name = name
        self.agent_session = AgentSession(
            Agent(now_s=now_s()), offer=NodeOffer(name, 2), beat_s=BEAT_S
        )
        self.heard: list[Message] = []
        self.delivered: list[tuple[int, ForWorker]] = []
        self.spawned: list[int] = []
        self.closed: list[str] = []
        self.told: list[str] = []
        self._timers: dict[str, LoopTimer] = {}
        self.connect()

    def connect(self) -> None:
        sock = socket.socket(self._family, socket.SOCK_STREAM)
        sock.connect(self._address)
        self.channel = Channel(
            self._loop, sock, on_message=self._on_message, on_close=self._on_close
        )
        if self._token is None:
            self._enrol()

    def break_off(self) -> None:
        """Break the connection as a network does: only the kernel tells the other end."""
        self.channel.close()
        self._do(self.agent_session.on_disconnected())

    def end(self) -> None:
        """End the agent's process."""
        self.channel.close()
        for timer in self._timers.values():
            timer.cancel()

    def _enrol(self) -> None:
        session = trust.session()
        self._do(
            self.agent_session.on_connected(images=(), transfer=(), session=session, now_s=now_s())
        )

    def _on_message(self, message: Message) -> None:
        self.heard.append(message)
        if isinstance(message, Challenge):
            assert self._token is not None
            self.channel.send(trust.prove(message, node=self.name, token=self._token))
            self._enrol()
        else:
            assert isinstance(message, (Welcome, TurnedAway, Grant, ToNode)), message
            self._do(self.agent_session.on_link(message, now_s=now_s()))

    def _on_close(self, reason: str) -> None:
        self.closed.append(reason)
        self._do(self.agent_session.on_disconnected())

    def _do(self, outputs: list[Output]) -> None:
        for output in outputs:
            if isinstance(output, SendOverLink):
                self.channel.send(output.message)
            elif isinstance(output, SetTimer):
                self._set_timer(output)
            elif isinstance(output, Spawn):
                self.spawned.append(output.worker)
                self._do(
                    self.agent_session.on_event(
                        WorkerStarted(output.worker, 1, self.name, now_s()), now_s=now_s()
                    )
                )
                self._do(self.agent_session.on_worker(Hello(output.worker, 1), now_s=now_s()))
            elif isinstance(output, HostStore):
                self._do(self.agent_session.on_event(StoreUp("127.0.0.1", 1), now_s=now_s()))
            elif isinstance(output, Deliver):
                self.delivered.append((output.worker, output.message))
            elif isinstance(output, Tell):
                self.told.append(output.text)
            elif isinstance(output, HangUp):
                self.break_off()
                self._loop.call_at(now_s() + TRIES_AGAIN_S, self.connect)

    def _set_timer(self, output: SetTimer) -> None:
        if (old := self._timers.pop(output.name, None)) is not None:
            old.cancel()
        if output.at_s is not None:
            name = output.name
            self._timers[name] = self._loop.call_at(
                output.at_s, lambda: self._do(self.agent_session.on_timer(now_s=now_s(), name=name))
            )

    def plans(self) -> list[int]:
        return [message.rank for _, message in self.delivered if isinstance(message, Regroup)]

    def grants(self) -> int:
        return sum(isinstance(message, Grant) for message in self.heard)


class Stranger:
    """A connection that sends what the test gives it."""

    def __init__(self, loop: Loop, address: tuple[str, int]) -> None:
        self.sock = socket.create_connection(address)
        self.came: list[Message] = []
        self.closed: list[str] = []
        self.channel = Channel(
            loop, self.sock, on_message=self.came.append, on_close=self.closed.append
        )


@pytest.fixture
def loop() -> Iterator[Loop]:
    loop = Loop()
    yield loop
    loop.close()


@pytest.fixture
def until(loop: Loop) -> Callable[[Callable[[], bool]], None]:
    def wait(done: Callable[[], bool]) -> None:
        assert loop.run_until(done, within_s=WITHIN_S)

    return wait


Until = Callable[[Callable[[], bool]], None]


@pytest.fixture
def stranger(loop: Loop) -> Iterator[Callable[[tuple[str, int]], Stranger]]:
    made: list[Stranger] = []

    def make(address: tuple[str, int]) -> Stranger:
        made.append(Stranger(loop, address))
        return made[-1]

    yield make
    for one in made:
        one.channel.close()


MakeStranger = Callable[[tuple[str, int]], Stranger]


def enrol(name: str, *, session: int = 1, epoch: int = 0) -> Enrol:
    return Enrol(name, session, 2, epoch, 0, 0, None, (), (), (), "", now_s())


def test_agents_enrol_are_given_ranks_and_have_their_leases_renewed(
    loop: Loop, until: Until
) -> None:
    leader = CoordinatorHost(loop, nodes=3)
    nodes = [Node(loop, leader.address, name) for name in "abc"]
    until(lambda: all(len(node.plans()) == 2 and node.grants() >= 3 for node in nodes))
    assert sorted(rank for node in nodes for rank in node.plans()) == list(range(6))
    assert leader.agent_listener.nodes == 3
    assert leader.agent_listener.unsent_bytes == 0
    assert not leader.told
    leader.agent_listener.close()


def test_over_ipv6_it_is_the_same(loop: Loop, until: Until) -> None:
    leader = CoordinatorHost(loop, nodes=1)
    leader.agent_listener.close()
    try:
        leader.address = leader.agent_listener.open(host="::1")
    except UsageError as error:
        pytest.skip(f"no IPv6 here: {error}")
    node = Node(loop, leader.address, "a", family=socket.AF_INET6)
    until(lambda: len(node.plans()) == 2)
    leader.agent_listener.close()


def test_an_order_reaches_its_agent_once_despite_a_broken_connection(
    loop: Loop, until: Until
) -> None:
    """Method: one order is lost on the way, one is given while no agent is connected, and one is
    given after that. A fourth one has arrived without being acknowledged.
    """
    leader = CoordinatorHost(loop, nodes=1)
    node = Node(loop, leader.address, "a")
    until(lambda: len(node.plans()) == 2)
    worker = node.spawned[0]

    def order(number: int) -> None:
        leave = ToWorkers((worker,), (), Leave(1_000 + number, "a test"))
        leader.agent_listener.carry_out(
            leader.sessions.pass_on([ToAgent(leave, "a")], now_s=now_s())
        )

    def leaves() -> list[int]:
        return [
            message.generation - 1_000
            for _, message in node.delivered
            if isinstance(message, Leave)
        ]

    order(1)
    until(lambda: leaves() == [1])  # it arrived, and no beat has acknowledged it yet
    order(2)
    node.break_off()  # the second order is in the kernel's buffer, unread
    until(lambda: leader.agent_listener.nodes == 0)
    order(3)
    node.connect()
    order(4)
    until(lambda: len(leaves()) >= 4)
    grants = node.grants()
    until(lambda: node.grants() >= grants + 3)  # any repeated order has arrived by then
    assert leaves() == [1, 2, 3, 4]
    assert node.spawned == sorted(set(node.spawned)), "no worker was started twice"
    leader.agent_listener.close()


@pytest.mark.parametrize(
    ("message", "why"),
    [
        (Beat(1, 0, 0.0), "says Beat"),
        (Hello(1, 1), "says Hello"),
        (enrol(""), "enrols as ''"),
        (Challenge("00"), "says Challenge"),
    ],
)
def test_a_connection_that_does_not_enrol_first_is_closed(
    loop: Loop, until: Until, stranger: MakeStranger, message: Message, why: str
) -> None:
    leader = CoordinatorHost(loop, nodes=1)
    one = stranger(leader.address)
    one.channel.send(message)
    until(lambda: bool(one.closed))
    assert not one.came
    assert [why in text for text in leader.told] == [True], leader.told
    node = Node(loop, leader.address, "a")  # no other node is affected
    until(lambda: node.grants() >= 1)
    leader.agent_listener.close()


def test_an_enrolled_node_may_only_send_messages_of_agents(
    loop: Loop, until: Until, stranger: MakeStranger
) -> None:
    leader = CoordinatorHost(loop, nodes=1)
    one = stranger(leader.address)
    one.channel.send(enrol("a"))
    one.channel.send(Welcome(9, 0, 1.0, False, None))
    until(lambda: bool(one.closed))
    assert "has enrolled, and says Welcome" in leader.told[0]
    assert leader.agent_listener.nodes == 0
    leader.agent_listener.close()


@pytest.mark.parametrize(
    "message",
    [
        EvidenceFiles(1, ("stacks-rank1.txt",), (9,)),
        EvidencePiece(1, "stacks-rank1.txt", 0, "QUJD"),
        LogsAt((7,), ("/runs/x/logs/none_k/attempt_0/0",)),
    ],
    ids=lambda message: type(message).__name__,
)
def test_an_enrolled_node_may_send_messages_without_a_number(
    loop: Loop, until: Until, stranger: MakeStranger, message: Message
) -> None:
    """The owner of the listener gets them. A node that has not enrolled may not send them."""
    leader = CoordinatorHost(loop, nodes=1)
    other = stranger(leader.address)
    other.channel.send(message)
    until(lambda: bool(other.closed))
    assert message not in leader.heard
    one = stranger(leader.address)
    one.channel.send(enrol("a"))
    one.channel.send(message)
    until(lambda: message in leader.heard)
    assert leader.agent_listener.nodes == 1
    leader.agent_listener.close()


def test_a_corrupt_frame_costs_the_connection_and_no_more(loop: Loop, until: Until) -> None:
    leader = CoordinatorHost(loop, nodes=2)
    nodes = [Node(loop, leader.address, name) for name in "ab"]
    until(lambda: all(len(node.plans()) == 2 for node in nodes))
    nodes[0].channel.send_frames(b"\0\0\0\4oops")
    until(lambda: bool(nodes[0].closed))
    assert "of node a" in leader.told[0]
    assert "not JSON" in leader.told[0]
    nodes[0].connect()
    grants = [node.grants() for node in nodes]
    until(lambda: all(node.grants() > before for node, before in zip(nodes, grants, strict=True)))
    assert leader.agent_listener.nodes == 2
    assert leader.coordinator.nodes.silent == set()
    leader.agent_listener.close()


def test_the_newer_of_two_connections_of_a_node_is_its_link(loop: Loop, until: Until) -> None:
    """The older connection is not reported as lost, because that would count the node as silent."""
    leader = CoordinatorHost(loop, nodes=1)
    node = Node(loop, leader.address, "a")
    until(lambda: len(node.plans()) == 2)
    older = node.channel
    came_over_older: list[str] = []
    older._on_close = came_over_older.append
    node.agent_session.on_disconnected()
    node.connect()
    until(lambda: bool(came_over_older))
    grants = node.grants()
    until(lambda: node.grants() >= grants + 3)
    assert leader.agent_listener.nodes == 1
    assert leader.coordinator.nodes.silent == set()
    assert len(node.plans()) == 2
    assert not leader.told
    leader.agent_listener.close()


def test_a_lost_connection_is_reported_to_the_sessions(loop: Loop, until: Until) -> None:
    leader = CoordinatorHost(loop, nodes=1)
    node = Node(loop, leader.address, "a")
    until(lambda: node.grants() >= 1)
    node.break_off()
    until(lambda: leader.coordinator.nodes.silent == {"a"})
    assert leader.agent_listener.nodes == 0
    leader.agent_listener.close()


def test_the_sessions_may_close_a_connection(
    loop: Loop, until: Until, stranger: MakeStranger
) -> None:
    leader = CoordinatorHost(loop, nodes=2)
    one = stranger(leader.address)
    one.channel.send(enrol("a"))
    until(lambda: leader.agent_listener.nodes == 1)
    leader.agent_listener.carry_out(
        [
            SendOverLink(Grant(7, 0, 0.0), "a"),
            HangUp("a"),
            SendOverLink(Grant(8, 0, 0.0), "a"),
            SendOverLink(Grant(9, 0, 0.0), "nobody"),
        ]
    )
    until(lambda: bool(one.closed))
    assert [message.number for message in one.came if isinstance(message, Grant)] == [7]
    assert leader.coordinator.nodes.silent == {"a"}
    leader.agent_listener.close()


# --- two of one name ----------------------------------------------------------------------------


def test_a_second_agent_of_a_name_does_not_touch_the_link_of_the_first(
    loop: Loop, until: Until
) -> None:
    """Method: the second agent tries again and again. The first one keeps its connection and its
    ranks.
    """
    leader = CoordinatorHost(loop, nodes=1)
    first = Node(loop, leader.address, "a")
    until(lambda: len(first.plans()) == 2)
    line = first.channel
    second = Node(loop, leader.address, "a")
    until(lambda: len(second.heard) >= 3)
    assert {type(message) for message in second.heard} == {TurnedAway}
    grants = first.grants()
    until(lambda: first.grants() >= grants + 3)
    assert first.channel is line
    assert not first.closed
    assert not second.spawned
    assert leader.told == second.told
    assert ["another agent has enrolled under this name" in text for text in leader.told] == [True]
    leader.agent_listener.close()


def test_a_second_agent_is_let_in_once_the_lease_of_the_first_is_over(
    loop: Loop, until: Until
) -> None:
    leader = CoordinatorHost(loop, nodes=1, lease_s=5 * BEAT_S)
    first = Node(loop, leader.address, "a")
    until(lambda: len(first.plans()) == 2)
    second = Node(loop, leader.address, "a")
    until(lambda: bool(second.heard))
    first.end()
    until(lambda: len(second.spawned) == 2)
    assert not set(second.spawned) & set(first.spawned)
    leader.agent_listener.close()


# --- trust ----------------------------------------------------------------------------------------


def test_with_a_token_only_a_node_that_knows_it_is_admitted(loop: Loop, until: Until) -> None:
    leader = CoordinatorHost(loop, nodes=2, token=b"of this run")
    good = [Node(loop, leader.address, name, token=b"of this run") for name in "ab"]
    bad = Node(loop, leader.address, "c", token=b"of another run")
    until(lambda: all(len(node.plans()) == 2 for node in good) and bool(bad.closed))
    assert [type(message) for message in bad.heard] == [Challenge]
    assert ["does not know the run's token" in text for text in leader.told] == [True]
    leader.agent_listener.close()


def test_a_proof_serves_for_one_connection_and_one_node(
    loop: Loop, until: Until, stranger: MakeStranger
) -> None:
    """Method: a valid proof is sent again over another connection, a proof for node a is followed
    by an Enrol of node b, and one connection gives no proof.
    """
    leader = CoordinatorHost(loop, nodes=1, token=b"t")
    first, again, other, none = (stranger(leader.address) for _ in range(4))
    until(lambda: all(one.came for one in (first, again, other, none)))
    questions = [one.came[0] for one in (first, again, other)]
    assert len(set(questions)) == 3, "a nonce is never said twice"
    proofs = [
        trust.prove(question, node="a", token=b"t")
        for question in questions
        if isinstance(question, Challenge)
    ]
    first.channel.send(proofs[0])
    first.channel.send(enrol("a"))
    again.channel.send(proofs[0])
    other.channel.send(proofs[2])
    other.channel.send(enrol("b"))
    none.channel.send(enrol("a"))
    until(
        lambda: (
            all(one.closed for one in (again, other, none))
            and any(isinstance(message, Welcome) for message in first.came)
        )
    )
    assert not first.closed
    assert len(leader.told) == 3
    leader.agent_listener.close()


def test_a_proof_that_is_no_digest_is_refused_and_nothing_else() -> None:
    question = trust.challenge()
    for digest in ("", "\ud800", "ü", trust.prove(question, node="a", token=b"t").digest.upper()):
        assert not trust.proves(Proof("a", digest), question, token=b"t")
    assert not trust.proves(
        trust.prove(question, node="b", token=b"t"), Challenge(question.nonce + "00"), token=b"t"
    )


# --- many, and too many ---------------------------------------------------------------------------


def test_silent_connections_are_closed_and_others_wait_for_their_turn(
    loop: Loop, until: Until, stranger: MakeStranger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "LISTENER_STRANGERS_COUNT", 2)
    monkeypatch.setattr(limits, "LISTENER_WAIT_S", 0.1)
    leader = CoordinatorHost(loop, nodes=1)
    idle = [stranger(leader.address) for _ in range(5)]
    node = Node(loop, leader.address, "a")
    until(lambda: node.grants() >= 1 and all(one.closed for one in idle))
    assert ["did not enrol within 0.1 s" in text for text in leader.told] == [True] * 5
    leader.agent_listener.close()


CHILD = """
import resource, sys
from outlast.errors import UsageError
from outlast.runtime.coordinator.agent_listener import make_room_for
soft, hard, peers = map(int, sys.argv[1:])
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
try:
    make_room_for(peers)
except UsageError as error:
    print(error)
print(*resource.getrlimit(resource.RLIMIT_NOFILE))
"""


def _in_a_child(soft: int, hard: int, peers: int) -> str:
    done = subprocess.run(
        [sys.executable, "-c", CHILD, str(soft), str(hard), str(peers)],
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    return done.stdout


def test_the_soft_limit_of_open_files_is_raised_as_far_as_needed() -> None:
    needed = 300 + limits.LISTENER_STRANGERS_COUNT + limits.LISTENER_FILES_COUNT
    hard = min(resource.getrlimit(resource.RLIMIT_NOFILE)[1], needed + 500)
    assert _in_a_child(64, hard, 300).split() == [str(needed), str(hard)]
    assert _in_a_child(hard, hard, 300).split() == [str(hard), str(hard)]


def test_a_hard_limit_that_is_too_low_is_named_with_what_to_do() -> None:
    said = _in_a_child(64, 400, 300)
    needed = 300 + limits.LISTENER_STRANGERS_COUNT + limits.LISTENER_FILES_COUNT
    for words in (
        "RLIMIT_NOFILE",
        "400",
        f"{needed} open files",
        f"ulimit -n {needed}",
        f"LimitNOFILE={needed}",
    ):
        assert words in said
    assert said.endswith("64 400\n")


@pytest.mark.parametrize(
    ("host", "port"), [("localhost", 0), ("203.0.113.7", 0), ("127.0.0.1", 70_000)]
)
def test_an_address_that_cannot_be_bound_is_named(loop: Loop, host: str, port: int) -> None:
    listener = AgentListener(
        loop,
        CoordinatorSessions(
            Coordinator(options=CoordinatorOptions(1, Restart(), nodes=1)), epoch=1, lease_s=1.0
        ),
        peers=1,
        owner=lambda _: None,
    )
    with pytest.raises(UsageError, match=host):
        listener.open(host=host, port=port)
    listener.close()


def test_frames_for_one_node_go_in_one_write(
    loop: Loop, until: Until, stranger: MakeStranger, monkeypatch: pytest.MonkeyPatch
) -> None:
    leader = CoordinatorHost(loop, nodes=2)
    one, other = stranger(leader.address), stranger(leader.address)
    one.channel.send(enrol("a"))
    other.channel.send(enrol("b"))
    until(lambda: leader.agent_listener.nodes == 2)
    writes: list[bytes] = []
    monkeypatch.setattr(Channel, "send_frames", lambda self, frames: writes.append(frames))
    grants = [Grant(number, 0, 0.0) for number in range(3)]
    leader.agent_listener.carry_out(
        [
            SendOverLink(grants[0], "a"),
            SendOverLink(grants[1], "a"),
            SendOverLink(grants[2], "b"),
            SendOverLink(grants[0], "a"),
        ]
    )
    assert writes == [encode(grants[0]) + encode(grants[1]), encode(grants[2]), encode(grants[0])]
    leader.agent_listener.close()
