"""An election between nodes in this process, over real connections, after the coordinator
is gone.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import pytest

from outlast.engine.cluster.voting import Position
from outlast.errors import CapacityError
from outlast.model.messages import Admitted, Ask, Grant, Kept, Message, Voters
from outlast.model.records import LEADS, Event, Meta
from outlast.model.wire import WIRE_VERSION
from outlast.runtime import clock
from outlast.runtime.agent.dialler import Caller
from outlast.runtime.agent.standby import Election, Standby, StandbyPlace
from outlast.runtime.coordinator.voter_copies import VoterCopies
from outlast.runtime.ledger.store import Ledger
from outlast.runtime.loop import Loop

LEASE_S = 0.2
FACTS = Admitted("run-1", "/runs/1", "/runs/1/checkpoints", LEASE_S)
TOKEN = b"a secret of this test, 32 bytes!"

_led: dict[tuple[str, int], int] = {}  # where an elected node listened, and its epoch


class Node:
    """A standby, with an agent beside it that only records what it is asked."""

    def __init__(self, loop: Loop, name: str, folder: Path) -> None:
        self.loop = loop
        self.epoch = 1
        self.said: list[Message] = []
        self.went_on: list[float] = []
        self.follows: list[tuple[str, int]] = []
        self.elections: list[Election] = []
        self.lines: list[str] = []
        self.cannot = False
        self.copies: VoterCopies | None = None  # the copies with which node a leads
        caller = Caller(WIRE_VERSION, "1.0", "run", name, "")
        copy = folder / name / "copy.db"
        place = StandbyPlace(loop, caller, TOKEN, FACTS, "127.0.0.1", copy)
        self.standby = Standby(place, lead=self._lead, tell=self.lines.append)
        self.address = self.standby.listen()
        self.standby.set_agent(self)

    def _lead(self, election: Election) -> None:
        election.ledger.close()
        if self.cannot:
            raise CapacityError("the disk is full")
        _led[election.listening.getsockname()[:2]] = election.epoch
        election.listening.close()
        self.elections.append(election)

    def say(self, message: Message) -> None:
        self.said.append(message)

    def prolong_lease(self, asked_s: float) -> None:
        self.went_on.append(asked_s)

    def follow(self, address: tuple[str, int]) -> None:
        self.follows.append(address)

    def be_led(self) -> None:
        """Let the elected coordinator that this node follows prolong its lease from now on."""
        epoch = _led.get(self.follows[-1]) if self.follows else None
        if epoch is not None:
            self.epoch = epoch
            self.standby.on_link(Grant(1, 1, clock.now_s()))

    def look(self) -> None:
        self.be_led()
        if not self.elections:
            self.standby.ask_if_missing()
        self.loop.call_at(clock.now_s() + LEASE_S / 5, self.look)


@contextmanager
def voters(folder: Path, names: str, lags: str = "") -> Iterator[dict[str, Node]]:
    """Yield nodes that vote. Node a also voted, led the run, and is gone. The nodes in `lags` lack
    its last record.
    """
    meta = Meta("run-1", "train", 2, "1.0", clock.now_s(), 1.7e9)
    with ExitStack() as stack:
        loop = stack.enter_context(closing(Loop()))
        ledger = stack.enter_context(closing(Ledger.create(folder / "a.db", meta, pid=1)))
        there = {name: Node(loop, name, folder) for name in names}
        for node in there.values():
            stack.callback(node.standby.close)
        addresses = ("127.0.0.1:1", *(node.address for node in there.values()))
        named = Voters(1, ("a", *there), addresses)
        away: set[str] = set()
        copies = VoterCopies(
            epoch=1,
            own="a",
            lease_s=LEASE_S,
            wrote=lambda position: None,
            send=lambda name, message: (
                None if name in away else there[name].standby.on_link(message)
            ),
        )
        for node in there.values():
            node.copies = copies
            node.standby.on_link(named)
        copies.begin(named, ledger.read(), loyal=named.nodes, heard_s=clock.now_s())
        for node in there.values():
            assert node.said == [Kept(1, copies.newest, node.said[0].seen_s)]  # type: ignore[union-attr]
            assert node.standby.voter.position == Position(1, copies.newest)
        away |= set(lags)
        copies.add(Event(clock.now_s(), 1.7e9, "told", {"text": "the last that a has told"}))
        yield there


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[dict[str, Node]]:
    """Yield nodes b and c, which vote. Node a also voted, led the run, and is gone. Both hold the
    same copy.
    """
    with voters(tmp_path, "bc") as there:
        yield there


def test_a_silent_voter_acknowledges_the_end_of_the_voting_later(nodes: dict[str, Node]) -> None:
    """Method: node b has just told an agent that a is missing. Then a is heard again, another voter
    is lost, and a majority has to hold the record that there are no voters any more. Without b
    there is no majority.
    """
    b = nodes["b"]
    assert b.copies is not None
    assert b.standby.voter.on_ask(Ask(1), now_s=clock.now_s() + LEASE_S).missing
    said = len(b.said)
    b.copies.add(Event(clock.now_s(), 1.7e9, LEADS, {"node": "a", "epoch": 1, "voters": []}))
    assert (b.said[said:], b.standby.votes) == ([], True)

    def is_prolonged() -> None:
        b.standby.on_link(Grant(1, 1, clock.now_s()))
        b.loop.call_at(clock.now_s() + LEASE_S / 5, is_prolonged)

    is_prolonged()
    assert b.loop.run_until(lambda: not b.standby.votes, within_s=20.0)
    kept = b.said[-1]
    assert isinstance(kept, Kept)
    assert kept.number == b.copies.newest


def test_one_of_two_voters_that_miss_the_coordinator_is_elected(nodes: dict[str, Node]) -> None:
    """Both let their workers go on before the election. The other node follows the elected one."""
    b, c = nodes["b"], nodes["c"]
    b.look()
    c.look()
    assert b.loop.run_until(lambda: bool(b.elections or c.elections), within_s=20.0)
    winner, other = (b, c) if b.elections else (c, b)
    (election,) = winner.elections
    assert election.epoch >= 2
    assert sorted(election.loyal) == ["b", "c"]
    assert election.named.nodes[0] == ("b" if winner is b else "c")
    assert b.went_on
    assert c.went_on
    assert other.follows[-1] == winner.follows[-1]
    assert not other.elections


def test_a_lone_voter_is_never_elected_and_its_workers_do_not_go_on(nodes: dict[str, Node]) -> None:
    b, c = nodes["b"], nodes["c"]
    c.standby.close()
    b.look()
    assert not b.loop.run_until(lambda: bool(b.elections or b.went_on), within_s=6 * LEASE_S)


def test_an_elected_node_that_cannot_lead_leaves_it_to_another(nodes: dict[str, Node]) -> None:
    b, c = nodes["b"], nodes["c"]
    b.cannot = True
    b.look()
    c.look()
    assert b.loop.run_until(lambda: bool(c.elections), within_s=20.0)
    assert not b.elections
    assert ["cannot: the disk is full" in line for line in b.lines] == [True], b.lines


def test_a_leader_that_comes_back_is_told_who_leads_though_nobody_votes(
    nodes: dict[str, Node], tmp_path: Path
) -> None:
    """Two nodes are left, so the new coordinator names no voters. Nodes b and c still answer a."""
    b, c = nodes["b"], nodes["c"]
    b.look()
    c.look()
    assert b.loop.run_until(lambda: bool(b.elections or c.elections), within_s=20.0)
    winner = b if b.elections else c
    for node in (b, c):
        node.standby.on_link(Voters(winner.elections[0].epoch, (), ()))
        assert not node.standby.votes
    a = Node(b.loop, "a", tmp_path)
    with closing(a.standby):
        a.standby.on_link(Voters(1, ("a", "b", "c"), (a.address, b.address, c.address)))
        a.look()
        assert a.loop.run_until(lambda: bool(a.follows), within_s=20.0)
    assert a.follows[-1] == winner.follows[-1]
    assert not a.went_on, "those that name the leader count as if they missed it"


@pytest.mark.parametrize(
    ("names", "lags"), [("bc", "b"), ("bc", "c"), ("bcde", "b"), ("bcde", "bc"), ("bcde", "bcd")]
)
def test_voters_that_lack_a_record_follow_the_elected_node(
    tmp_path: Path, names: str, lags: str
) -> None:
    """The first node that asks for votes may get none, while another one leads in its epoch."""
    with voters(tmp_path, names, lags) as there:
        for node in there.values():
            node.look()
        loop = there["b"].loop
        assert loop.run_until(lambda: any(node.elections for node in there.values()), within_s=20.0)
        (winner,) = (name for name, node in there.items() if node.elections)
        assert winner not in lags
        (election,) = there[winner].elections
        led = [node for name, node in there.items() if name != winner]
        assert loop.run_until(
            lambda: all(node.epoch == election.epoch for node in led), within_s=20.0
        )
        assert loop.run_until(
            lambda: not any(node.standby.voter.misses(now_s=clock.now_s()) for node in led),
            within_s=20.0,
        ), "a voter goes on asking for the coordinator that it is led by"


def test_a_node_that_asked_for_votes_in_vain_follows_the_elected_one(tmp_path: Path) -> None:
    """Method: node b gave up in the epoch in which another node is elected without its vote."""
    with voters(tmp_path, "bcde") as there:
        b, others = there["b"], [there[name] for name in "cde"]
        assert b.standby.voter.stand("127.0.0.1:1", above=1, now_s=clock.now_s() + LEASE_S)
        for node in others:
            node.look()
        assert b.loop.run_until(lambda: any(node.elections for node in others), within_s=20.0)
        b.standby.voter.withdraw(now_s=clock.now_s())
        b.look()
        assert b.loop.run_until(lambda: b.epoch > 1, within_s=20.0)
        assert not b.standby.voter.misses(now_s=clock.now_s())
