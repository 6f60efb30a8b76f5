"""Copies of images at a peer: a real sender, a real keeper, and a real vault at each end."""

from __future__ import annotations

import os
import socket
import threading
import time
import types
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from outlast.engine.protocol.outputs import SendOut
from outlast.errors import CapacityError, CorruptError
from outlast.model import limits
from outlast.model.messages import CopyKept, Regroup
from outlast.model.terms import Cause, Phase, Tier
from outlast.runtime.agent.image_server import ImageServer
from outlast.runtime.loop import Loop
from outlast.runtime.network import trust
from outlast.runtime.tiers.held_copies import HeldCopies
from outlast.runtime.tiers.image import TensorPiece, TensorSpec
from outlast.runtime.tiers.vault import Vault
from outlast.runtime.worker.communication.shared_rows import Cut
from outlast.runtime.worker.member.session import GroupCalls
from outlast.runtime.worker.saving.copy_sender import CopySender
from outlast.runtime.worker.transfer import image_dialogue
from outlast.runtime.worker.transfer.image_dialogue import Server
from outlast.runtime.worker.transfer.image_fetch import Wanted, fetch

KEY = trust.image_key(b"sixteen bytes, or more", "run-1")
SIZE = 3 << 20
PLAN = Regroup(1, 2, 4, "", 0, "none", "start", 0, -1, False, "none", "none", "", 0, None, None)


class Peer:
    """A node that keeps copies, while its loop runs in a thread."""

    def __init__(self, vault: Vault) -> None:
        self.vault = vault
        self.said: list[CopyKept] = []
        self._loop = Loop()
        self.server = ImageServer(self._loop, vault, key=KEY)
        self.server.keeper.on_kept = self.said.append
        self.address = self.server.listen("127.0.0.1")
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._over.is_set():
            self._loop.turn(0.02)

    def until_told(self) -> None:
        """Wait until something was kept here."""
        end_s = time.monotonic() + 20
        while not self.said:
            assert time.monotonic() < end_s, "nothing was sent"
            time.sleep(0.01)

    def close(self) -> None:
        self._over.set()
        self._thread.join()
        self.server.close()
        self._loop.close()


@dataclass
class FakeMachine:
    """The parts of a worker's machine that a sender needs."""

    broken: bool = False
    generation: int = 1

    def stands_still_in(self, generation: int) -> bool:
        return self.broken and self.generation == generation


class FakeSession:
    """The parts of a worker's session that a sender needs."""

    def __init__(self, vault: Vault) -> None:
        self.vault = vault
        self.warned: list[str] = []
        self.phases: list[Phase] = []
        self.machine = FakeMachine()
        self.beacon = types.SimpleNamespace(phase=Phase.VOTE)
        self.book = types.SimpleNamespace(cause=Cause.PRODUCTIVE)
        self.image_key = KEY

    def enter(self, phase: Phase, *, cause: Cause | None = None, tier: Tier | None = None) -> None:
        self.phases.append(phase)

    def warn(self, text: str) -> None:
        self.warned.append(text)


@pytest.fixture
def vaults(tmp_path: Path) -> Iterator[tuple[Vault, Vault]]:
    """Yield the vault of rank 2's node, and that of the node that keeps its copies."""
    own, other = (Vault.create(tmp_path / name, "run-1") for name in ("own", "other"))
    own.reserve(2, SIZE + (1 << 16), 1)
    yield own, other
    own.remove()
    other.remove()


@contextmanager
def keeping(vault: Vault) -> Iterator[Peer]:
    peer = Peer(vault)
    try:
        yield peer
    finally:
        peer.close()


def sealed(vault: Vault, step: int, *, generation: int = 1) -> bytes:
    """Seal an image of rank 2, and return its tensor's bytes."""
    body = os.urandom(SIZE)
    piece = TensorPiece(TensorSpec("weights", "U8", (SIZE,)), memoryview(body))
    vault.write(2, generation=generation, step=step, pieces=[piece], metadata={})
    return body


def sender_of(vault: Vault, peer: Peer, **changes: Any) -> tuple[CopySender, FakeSession]:
    session = FakeSession(vault)
    sender = CopySender(session)  # type: ignore[arg-type]
    sender.follow(replace(PLAN, keepers=(peer.address,), **changes))
    return sender, session


def test_each_image_is_at_its_keeper_once_the_wait_is_over(vaults: tuple[Vault, Vault]) -> None:
    """The newest two images stay there. The fetched image is the one that the rank had sealed."""
    own, other = vaults
    with keeping(other) as peer:
        sender, session = sender_of(own, peer)
        bodies = {}
        for step in (7, 8, 9):
            bodies[step] = sealed(own, step)
            sender.send(step)
            sender.wait()
            assert peer.said[-1].steps[0] == step
        assert peer.said[-1] == CopyKept(2, 1, (9, 8))
        assert session.phases[-1] is Phase.VOTE
        assert (other.ranks(), other.steps(2)) == ((), ()), "it is none of that node's own"
        for step in (8, 9):
            image = peer.server.keeper.held.read(2, step)
            assert bytes(image.tensors["weights"][1]) == bodies[step]
        own.forget_after(2, -1)
        wanted = Wanted(None, 8, 2, 2, copy=True)
        fetch(own, wanted, Server(peer.address, KEY), lambda: False)
        assert bytes(own.read(2, 8).tensors["weights"][1]) == bodies[8]
        assert own.steps(2) == (8,)


def test_a_copy_is_sent_after_the_packets_of_other_connections(
    vaults: tuple[Vault, Vault], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Method: the priority of the connection is read while it is open."""
    own, other = vaults
    bands = []

    def look(sock: socket.socket, *given: Any, **named: Any) -> Any:
        bands.append(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PRIORITY))
        return ask(sock, *given, **named)

    ask = image_dialogue.ask
    monkeypatch.setattr(image_dialogue, "ask", look)
    with keeping(other) as peer:
        sender, _ = sender_of(own, peer)
        sealed(own, 7)
        sender.send(7)
        sender.wait()
        assert peer.said[-1].steps == (7,)
    assert bands == [limits.COPY_PRIORITY]
    assert 0 != limits.COPY_PRIORITY < 7, "above 6 it would need a right"


def test_a_copy_that_does_not_exist_is_reported_missing(vaults: tuple[Vault, Vault]) -> None:
    own, other = vaults
    with keeping(other) as peer, pytest.raises(CorruptError, match="image of rank 2 of step 8"):
        fetch(own, Wanted(None, 8, 2, 2, copy=True), Server(peer.address, KEY), lambda: False)


def test_a_rank_that_goes_back_takes_back_its_later_copies(vaults: tuple[Vault, Vault]) -> None:
    """The rank sends step 7 again, which is there already, and then another step 8."""
    own, other = vaults
    with keeping(other) as peer:
        sender, _ = sender_of(own, peer)
        for step in (7, 8):
            sealed(own, step)
            sender.send(step)
            sender.wait()
        own.forget_after(2, 7)
        sender.follow(replace(PLAN, keepers=(peer.address,), generation=2))
        sender.send(7)
        sender.wait()
        assert peer.said[-1] == CopyKept(2, 2, (7,))
        body = sealed(own, 8, generation=2)
        sender.send(8)
        sender.wait()
        assert peer.said[-1] == CopyKept(2, 2, (8, 7))
        assert bytes(peer.server.keeper.held.read(2, 8).tensors["weights"][1]) == body


def test_a_process_that_was_given_up_stores_no_copy(vaults: tuple[Vault, Vault]) -> None:
    """Its successor has sent step 7. The late copy of step 9 is refused."""
    own, other = vaults
    with keeping(other) as peer:
        successor, _ = sender_of(own, peer, generation=2)
        sealed(own, 7)
        successor.send(7)
        successor.wait()
        late, session = sender_of(own, peer, generation=1)
        sealed(own, 9)
        late.send(9)
        late.wait()
        assert peer.server.keeper.held.steps(2) == (7,)
        assert "has gone on without the process" in session.warned[0]


def test_without_room_the_run_goes_on_and_reports_what_that_costs(
    vaults: tuple[Vault, Vault], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Earlier copies are forgotten, so that no rank goes on from them by mistake."""
    own, other = vaults
    with keeping(other) as peer:
        sender, session = sender_of(own, peer)
        sealed(own, 7)
        sender.send(7)
        sender.wait()

        def lacks(missing: int, what: str) -> None:
            raise CapacityError(f"no room for {what}")

        monkeypatch.setattr(other, "need_room", lacks)
        own.reserve(2, 4 * SIZE, 1)
        body = memoryview(os.urandom(3 * SIZE))
        piece = TensorPiece(TensorSpec("weights", "U8", (len(body),)), body)
        own.write(2, generation=1, step=8, pieces=[piece], metadata={})
        sender.send(8)
        sender.wait()
        assert peer.said[-1] == CopyKept(2, 1, ())
        (warning,) = session.warned
        assert "no room for copies of the images of rank 2" in warning
        assert "goes back to the newest checkpoint" in warning
        sender.send(8)
        sender.wait()  # the sender does not try again in this generation


def test_a_rank_that_stands_still_sends_its_image_to_its_new_node(
    vaults: tuple[Vault, Vault],
) -> None:
    """The run keeps no copies, so nothing else was ever sent."""
    own, other = vaults
    with keeping(other) as peer:
        sender, session = sender_of(own, peer)
        sender.follow(PLAN)
        body = sealed(own, 7)
        sender.send(7)
        assert peer.said == []
        session.machine.broken = True
        sender.send_out(SendOut(1, 7, peer.address))
        peer.until_told()
        assert peer.said == [CopyKept(2, 1, (7,))]
        assert bytes(peer.server.keeper.held.read(2, 7).tensors["weights"][1]) == body


def test_a_process_without_state_is_asked_for_an_image_in_vain() -> None:
    """The coordinator calls the drain off after a while."""
    GroupCalls().send_out(SendOut(1, 7, "127.0.0.1:1"))


def test_an_image_for_a_drain_that_was_called_off_is_not_sent(
    vaults: tuple[Vault, Vault],
) -> None:
    """Method: nothing listens where the image is to go. Then the next plan comes, and the rank
    sends the copies of that generation to its keeper.
    """
    own, other = vaults
    with keeping(other) as peer:
        sender, session = sender_of(own, peer)
        sealed(own, 7)
        session.machine.broken = True
        sender.send_out(SendOut(1, 7, "127.0.0.1:1"))
        session.machine.broken, session.machine.generation = False, 2
        sender.follow(replace(PLAN, keepers=(peer.address,), generation=2))
        sender.send(7)
        sender.wait()
        assert peer.said == [CopyKept(2, 2, (7,))]


def test_a_wait_ends_with_its_generation(vaults: tuple[Vault, Vault]) -> None:
    """The keeper's node is lost, and nothing listens at its address."""
    own, _ = vaults
    session = FakeSession(own)
    sender = CopySender(session)  # type: ignore[arg-type]
    sender.follow(replace(PLAN, keepers=("127.0.0.1:1",)))
    sealed(own, 7)
    sender.send(7)
    threading.Timer(0.05, lambda: setattr(session.machine, "broken", True)).start()
    with pytest.raises(Cut):
        sender.wait()


def test_without_a_keeper_nothing_is_sent_or_awaited(vaults: tuple[Vault, Vault]) -> None:
    own, _ = vaults
    session = FakeSession(own)
    sender = CopySender(session)  # type: ignore[arg-type]
    sender.follow(PLAN)
    sealed(own, 7)
    sender.send(7)
    sender.wait()
    assert session.phases == []


def test_a_copy_with_a_flipped_bit_is_refused(vaults: tuple[Vault, Vault]) -> None:
    own, other = vaults
    with keeping(other) as peer:
        sender, _ = sender_of(own, peer)
        sealed(own, 7)
        sender.send(7)
        sender.wait()
        held = HeldCopies(other)
        path, seal = held.find(2, 7) or pytest.fail("there is no copy")
        with path.open("r+b") as file:
            file.seek(seal.length - 1)
            byte = file.read(1)
            file.seek(seal.length - 1)
            file.write(bytes([byte[0] ^ 1]))
        with pytest.raises(CorruptError):
            held.read(2, 7)


@pytest.fixture
def two_peers(tmp_path: Path) -> Iterator[tuple[Peer, Peer]]:
    """Yield two nodes that keep copies."""
    vaults = [Vault.create(tmp_path / name, "run-1") for name in ("one", "two")]
    with keeping(vaults[0]) as one, keeping(vaults[1]) as two:
        yield one, two
    for vault in vaults:
        vault.remove()


def test_each_keeper_has_a_copy_once_the_wait_is_over(
    vaults: tuple[Vault, Vault], two_peers: tuple[Peer, Peer]
) -> None:
    own, _ = vaults
    session = FakeSession(own)
    sender = CopySender(session)  # type: ignore[arg-type]
    sender.follow(replace(PLAN, keepers=tuple(peer.address for peer in two_peers)))
    for step in (7, 8):
        body = sealed(own, step)
        sender.send(step)
        sender.wait()
        for peer in two_peers:
            assert peer.said[-1].steps[0] == step
            image = peer.server.keeper.held.read(2, step)
            assert bytes(image.tensors["weights"][1]) == body


def test_a_keeper_without_room_does_not_cost_the_copies_of_others(
    vaults: tuple[Vault, Vault], two_peers: tuple[Peer, Peer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The warning says that fewer losses are survived, once. The other keeper gets all copies."""
    own, _ = vaults
    full, other = two_peers

    def lacks(missing: int, what: str) -> None:
        raise CapacityError(f"no room for {what}")

    monkeypatch.setattr(full.vault, "need_room", lacks)
    session = FakeSession(own)
    sender = CopySender(session)  # type: ignore[arg-type]
    sender.follow(replace(PLAN, keepers=(full.address, other.address)))
    for step in (7, 8):
        sealed(own, step)
        sender.send(step)
        sender.wait()
    assert other.said[-1] == CopyKept(2, 1, (8, 7))
    assert {*full.said} == {CopyKept(2, 1, ())}
    (warning,) = session.warned
    assert full.address in warning
    assert warning.endswith("the run survives fewer losses of nodes")


def test_a_keeper_that_is_down_does_not_hold_up_the_other_one(
    vaults: tuple[Vault, Vault], two_peers: tuple[Peer, Peer]
) -> None:
    """No vote passes, because the lost keeper has no copy, and its generation ends soon. But the
    other keeper has its copy by then.
    """
    own, _ = vaults
    session = FakeSession(own)
    sender = CopySender(session)  # type: ignore[arg-type]
    sender.follow(replace(PLAN, keepers=("127.0.0.1:1", two_peers[0].address)))
    sealed(own, 7)
    arrived = threading.Event()

    def on_kept(message: CopyKept) -> None:
        session.machine.broken = True
        arrived.set()

    two_peers[0].server.keeper.on_kept = on_kept  # type: ignore[assignment]
    sender.send(7)
    with pytest.raises(Cut):
        sender.wait()
    assert arrived.is_set()


def test_copies_that_belong_elsewhere_now_give_their_memory_back(
    vaults: tuple[Vault, Vault],
) -> None:
    """Rank 3 has sent its images here, and sends them to another node in the second generation. Its
    copies stay until rank 2 sends its second step: rank 3 has voted by then, so they are there too.
    """
    own, other = vaults
    own.reserve(3, SIZE, 1)
    with keeping(other) as peer:
        held = peer.server.keeper.held
        for rank in (2, 3):
            body = memoryview(os.urandom(SIZE - 300_000 * (rank == 3)))
            piece = TensorPiece(TensorSpec("weights", "U8", (len(body),)), body)
            own.write(rank, generation=1, step=7, pieces=[piece], metadata={})
            sender, _ = sender_of(own, peer, rank=rank)
            sender.send(7)
            sender.wait()
        sender, _ = sender_of(own, peer, generation=2)
        sender.send(7)
        sender.wait()
        assert held.ranks() == (2, 3), "the other node may not have them yet"
        body = sealed(own, 8, generation=2)
        sender.send(8)
        sender.wait()
        assert held.ranks() == (2,)
        assert not (other.folder / "copy-3").exists()
        assert CopyKept(3, 1, ()) in peer.said
        assert bytes(held.read(2, 8).tensors["weights"][1]) == body
