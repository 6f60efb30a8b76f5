"""Copies of a ledger at voters, over real connections, and what waits for a majority of the
voters.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from outlast.engine.cluster.voting import Position
from outlast.model import limits
from outlast.model.messages import Admitted, Answer, Ask, Enrol, Keep, Kept, Message, Voters
from outlast.model.records import LEADS, Event, Life, Meta, Records
from outlast.model.terms import Cause
from outlast.model.wire import WIRE_VERSION
from outlast.runtime import clock
from outlast.runtime.agent.dialler import Caller
from outlast.runtime.agent.voter_calls import VoterCalls
from outlast.runtime.agent.voter_port import VoterPort
from outlast.runtime.coordinator.quorum import Quorum, QuorumPlace
from outlast.runtime.coordinator.voter_copies import VoterCopies
from outlast.runtime.ledger import record_text
from outlast.runtime.ledger.kept_copy import KeptCopy
from outlast.runtime.ledger.store import Ledger, read_ledger
from outlast.runtime.loop import Loop

META = Meta("run-1", "train", 2, "1.0", 100.0, 1_700_000_000.0)
NAMED = Voters(1, ("a", "b", "c"), ("h:1", "h:2", "h:3"))
FACTS = Admitted("run-1", "/runs/1", "/runs/1/checkpoints", 0.5)


def event(number: int, at_s: float = 101.0) -> Event:
    return Event(at_s, 1_700_000_001.0, "told", {"text": f"line {number}"})


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    with closing(Ledger.create(tmp_path / "ledger.db", META, pid=7)) as one:
        one.add(event(1))
        one.add(Life(5, 70, "a", 0, "rank", 101.0, 101.5, None, {Cause.PRODUCTIVE: 2.0}))
        one.flush()
        yield one


class Voters2:
    """Two voters that keep copies, and the coordinator's side that sends them."""

    def __init__(self, folder: Path) -> None:
        self.kept = {node: KeptCopy(folder / node / "copy.db") for node in "bc"}
        self.away: set[str] = set()
        self.wrote: list[Position] = []
        self.copies = VoterCopies(
            epoch=1, own="a", lease_s=0.5, send=self._send, wrote=self.wrote.append
        )

    def _send(self, node: str, message: Message) -> None:
        if node not in self.away and isinstance(message, Keep):
            self.kept[node].take(message, now_s=message.sent_s + 1_000.0)

    def acknowledge(self, node: str) -> None:
        number = self.kept[node].position.number
        self.copies.hear(node, Kept(1, number, clock.now_s()))

    def read(self, node: str) -> Records:
        kept = self.kept[node]
        kept.flush()
        return read_ledger(kept.path)


def test_a_voter_keeps_what_the_ledger_holds_on_its_own_clock(
    tmp_path: Path, ledger: Ledger
) -> None:
    """The copy has the records from before the voters were named, and those after it."""
    run = Voters2(tmp_path)
    run.copies.begin(NAMED, ledger.read(), loyal=NAMED.nodes, heard_s=clock.now_s())
    run.copies.add(event(2, at_s=102.0))
    (part,) = run.read("b").sessions
    assert [one.at_s for one in part.events] == pytest.approx([1_101.0, 1_102.0])
    assert [one.data for one in part.events] == [event(1).data, event(2).data]
    (life,) = part.lives
    assert (life.assigned_s, life.opened_s) == pytest.approx((1_101.0, 1_101.5))
    assert life.ended_s is None
    assert part.session.started_s == pytest.approx(1_100.0)
    assert run.wrote[-1] == Position(1, run.copies.newest)


def test_a_record_counts_once_one_of_two_other_voters_has_it(
    tmp_path: Path, ledger: Ledger
) -> None:
    """A voter that was away gets the records it lacks when it comes back, in order and once."""
    run = Voters2(tmp_path)
    run.copies.begin(NAMED, ledger.read(), loyal=NAMED.nodes, heard_s=clock.now_s())
    run.away = {"b", "c"}
    run.copies.add(event(2))
    newest = run.copies.newest
    assert not run.copies.counts(newest)
    run.acknowledge("b")
    assert not run.copies.counts(newest)
    run.away.clear()
    run.copies.introduce("b")
    run.copies.introduce("b")
    run.acknowledge("b")
    assert run.copies.counts(newest)
    assert len(run.read("b").sessions[0].events) == 2


def test_a_new_copy_that_is_cut_short_leaves_the_old_one(tmp_path: Path, ledger: Ledger) -> None:
    """Method: another coordinator sends its ledger, and is gone before all of it has arrived."""
    run = Voters2(tmp_path)
    run.copies.begin(NAMED, ledger.read(), loyal=NAMED.nodes, heard_s=clock.now_s())
    kept, before = run.kept["b"], run.kept["b"].position
    texts = list(record_text.write_all(ledger.read()))
    for number, text in enumerate(texts, start=1):
        assert kept.position == before
        part = "first" if number == 1 else "last" if number == len(texts) else "more"
        if part == "last":
            break
        kept.take(Keep(2, number, part, 500.0, text), now_s=500.0)
    assert len(run.read("b").sessions[0].events) == 1
    kept.take(Keep(2, len(texts), "last", 500.0, texts[-1]), now_s=500.0)
    assert kept.position == Position(2, len(texts))
    kept.remove()
    assert not kept.path.parent.exists()


def test_a_ledger_moves_to_another_file_and_is_written_on_there(
    tmp_path: Path, ledger: Ledger
) -> None:
    """The copy of a resumed run has its earlier sessions too."""
    with closing(Ledger.resume(ledger.path, pid=8, started_s=5.0, started_wall_s=1.8e9)) as second:
        second.add(event(9, at_s=6.0))
        second.flush()
        copy = Ledger.copy_of(tmp_path / "copy.db", second.read())
        assert copy.read() == second.read()
    with closing(copy.moved_to(tmp_path / "there.db", pid=9)) as there:
        there.add(event(10, at_s=7.0))
        there.flush()
        sessions = there.read().sessions
    assert [len(part.events) for part in sessions] == [1, 2]
    assert sessions[-1].session.pid == 9


class Office:
    """A coordinator of node a that has a quorum. It records what it sends to whom."""

    def __init__(self, ledger: Ledger, loop: Loop) -> None:
        self.nodes = ["a", "b", "c"]
        self.told: list[str] = []
        self.noted: list[Event] = []
        self.sent: list[tuple[str, Message]] = []
        self.held = self.resigned = False
        place = QuorumPlace(
            loop,
            "a",
            1,
            0.5,
            ledger.read,
            lambda: self.nodes,
            lambda position: None,
            self._resign,
            self.told.append,
            self._note,
        )
        self.quorum = Quorum(place)
        self.quorum.stand_before(self)  # type: ignore[arg-type]  # it has the parts that are needed
        for node in self.nodes:
            self.enrol(node)

    def enrol(self, node: str) -> None:
        self.quorum.let_in(Enrol(node, 1, 1, 0, 0, 0, None, (), (), (), "", 0.0, votes=f"{node}:1"))

    def tell(self, node: str, message: Message) -> None:
        self.sent.append((node, message))

    def tell_all(self, message: Message) -> None:
        self.sent += [(node, message) for node in self.nodes]

    def hold(self) -> None:
        self.held = True

    def release(self) -> None:
        self.held = False

    def _resign(self) -> None:
        self.resigned = True

    def _note(self, event: Event) -> None:
        self.noted.append(event)
        self.quorum.copies.add(event)

    def acknowledge(self, node: str) -> None:
        number = self.quorum.copies.newest
        self.quorum.hear(node, Kept(1, number, clock.now_s()))

    def named(self, node: str) -> tuple[str, ...]:
        return [said.nodes for to, said in self.sent if to == node and isinstance(said, Voters)][-1]


def test_decisions_wait_for_a_majority_without_which_the_leader_resigns(
    ledger: Ledger,
) -> None:
    with closing(Loop()) as loop:
        office = Office(ledger, loop)
        assert office.quorum.begin() == ("a", "b", "c")
        assert office.named("b") == ("a", "b", "c")
        office.quorum.copies.add(event(3))
        office.quorum.wrote_at_once()
        assert office.held
        office.acknowledge("c")
        assert not office.held
        assert not office.resigned
        office.quorum.close()
        office.quorum.copies.add(event(4))
        office.quorum.wrote_at_once()
        assert not office.held, "the run is over, and voters leave"
    with closing(Loop()) as loop:
        office = Office(ledger, loop)
        office.quorum.begin()
        assert loop.run_until(lambda: office.resigned, within_s=10.0)


def test_a_lost_voter_ends_the_vote_until_there_are_three_again(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No node votes once a majority of the old voters holds that record. Without voters, the
    coordinator leads alone.
    """
    monkeypatch.setattr(limits, "VOTERS_RENEW_S", 0.01)
    with closing(Loop()) as loop:
        office = Office(ledger, loop)
        office.quorum.begin()
        office.acknowledge("b")
        office.nodes.remove("b")
        office.quorum.lose("b")
        assert office.noted[-1].data["voters"] == []
        assert office.quorum.copies.voters == ("a", "b", "c"), "c does not know it yet"
        office.acknowledge("c")
        assert office.quorum.copies.voters == ()
        assert office.named("c") == ()
        assert "fewer than three nodes are left" in office.told[-1]
        office.quorum.wrote_at_once()
        assert not office.held
        office.nodes.append("d")
        office.enrol("d")
        assert loop.run_until(lambda: bool(office.quorum.copies.voters), within_s=10.0)
        assert office.named("d") == ("a", "c", "d")
        assert not office.resigned
        office.quorum.close()


def test_a_voter_obeys_the_record_that_there_are_no_voters(ledger: Ledger) -> None:
    ended = Event(1.0, 0.0, LEADS, {"node": "a", "epoch": 1, "voters": []})
    goes_on = Event(1.0, 0.0, LEADS, {"node": "a", "epoch": 1, "voters": ["a", "b", "c"]})
    assert record_text.ends_voting(record_text.write(ended))
    assert not record_text.ends_voting(record_text.write(goes_on))
    assert not record_text.ends_voting(record_text.write(event(1)))


@pytest.mark.parametrize("token", [None, b"a secret of this test, 32 bytes!"])
def test_voters_are_asked_over_the_network(token: bytes | None) -> None:
    """A node with another token gets no answer."""
    loop, heard = Loop(), []
    port = VoterPort(
        loop,
        "run",
        FACTS,
        token=token,
        answer=lambda message: (
            Answer(message.number, True, 1, "", 1, 5) if isinstance(message, Ask) else None
        ),
    )
    caller = Caller(WIRE_VERSION, "1.0", "run", "b", "")
    named = Voters(1, ("a", "b"), (port.listen("127.0.0.1"), "127.0.0.1:1"))
    calls = VoterCalls(
        loop, caller, token=token, hear=lambda node, message: heard.append((node, message))
    )
    stranger = VoterCalls(
        loop, caller, token=b"a secret of somebody else", hear=lambda *said: heard.append(said)
    )
    with closing(loop), closing(port), closing(calls), closing(stranger):
        stranger.ask(named, Ask(9))
        calls.ask(named, Ask(1))
        calls.ask(named, Ask(2))
        assert loop.run_until(lambda: len(heard) > 0, within_s=10.0)
        calls.ask(named, Ask(3))
        assert loop.run_until(lambda: len(heard) > 1, within_s=10.0)
    assert heard == [("a", Answer(2, True, 1, "", 1, 5)), ("a", Answer(3, True, 1, "", 1, 5))]
