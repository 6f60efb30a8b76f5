"""Parity on other nodes: real senders, real keepers, and a real vault at each end."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import pytest

from outlast.engine.coordinator.parity_rows import ParityRows, shares_of
from outlast.engine.placement import stripes
from outlast.errors import CapacityError, CorruptError
from outlast.model.messages import ParityKept, PutImage, Regroup, Share
from outlast.runtime.network import trust
from outlast.runtime.tiers.image import TensorPiece, TensorSpec
from outlast.runtime.tiers.vault import Vault
from outlast.runtime.worker.saving.copy_sender import CopySender
from outlast.runtime.worker.transfer import image_dialogue, parity_fetch
from outlast.runtime.worker.transfer.image_dialogue import Server
from tests.processes.test_copies_at_peers import KEY, PLAN, FakeSession, Peer

SIZE = 300_000


class House:
    """Nodes with one rank each, whose images go to each other as parts of parity.

    bodies   what each rank has sealed last, by step and rank
    """

    def __init__(self, folder: Path, ranks: int, *, data: int, rows: int) -> None:
        self.homes = {rank: f"n{rank}" for rank in range(ranks)}
        self.data, self.rows = data, rows
        self.domains: dict[str, str] = {}
        self.vaults = {node: Vault.create(folder / node, "run-1") for node in self.homes.values()}
        self.peers = {node: Peer(vault) for node, vault in self.vaults.items()}
        self.bodies: dict[tuple[int, int], bytes] = {}
        self.sessions = {rank: FakeSession(self.vaults[home]) for rank, home in self.homes.items()}
        self.senders = {
            rank: CopySender(session)  # type: ignore[arg-type]
            for rank, session in self.sessions.items()
        }
        for rank, home in self.homes.items():
            self.vaults[home].reserve(rank, 2 * SIZE, 1)

    def close(self) -> None:
        for peer in self.peers.values():
            peer.close()
        for vault in self.vaults.values():
            vault.remove()

    def follow(self, generation: int) -> None:
        """Let all ranks begin a generation, with the shares that its placement gives them."""
        for rank, sender in self.senders.items():
            plan = replace(PLAN, rank=rank, generation=generation, shares=self.shares(rank))
            sender.follow(plan)

    def shares(self, rank: int) -> tuple[Share, ...]:
        """Return where a rank sends the parts of its images."""
        placed = stripes(self.homes, data=self.data, rows=self.rows, domains=self.domains)
        return shares_of(placed, lambda node: self.peers[node].address)[rank]

    def seal(self, step: int, *, generation: int = 1) -> None:
        """Let all ranks seal a step. Their images differ in length."""
        for rank, home in self.homes.items():
            body = os.urandom(SIZE + 1_000 * rank)
            piece = TensorPiece(TensorSpec("weights", "U8", (len(body),)), memoryview(body))
            vault = self.vaults[home]
            vault.write(rank, generation=generation, step=step, pieces=[piece], metadata={})
            self.bodies[step, rank] = body

    def send(self, step: int) -> None:
        for sender in self.senders.values():
            sender.send(step)
        for sender in self.senders.values():
            sender.wait()

    def known(self, *without: str) -> ParityRows:
        """Return what the coordinator knows once these nodes are lost."""
        out = ParityRows()
        for node, peer in self.peers.items():
            newest = {one.stripe: one for one in peer.said if isinstance(one, ParityKept)}
            for one in newest.values():
                out.kept(one, node)
        for node in without:
            out.lose_node(node)
        return out

    def plan(self, rank: int, step: int, lost: set[int]) -> Regroup:
        """Return the plan by which a lost rank is rebuilt on another node."""
        known = self.known(*(self.homes[one] for one in lost))
        sources = known.sources(
            rank,
            step,
            lost,
            home=self.homes.__getitem__,
            serves=lambda node: self.peers[node].address,
        )
        return replace(PLAN, rank=rank, step=step, private="parity", sources=sources)

    def lose(self, *ranks: int) -> None:
        for rank in ranks:
            self.peers.pop(home := self.homes[rank]).close()
            self.vaults.pop(home).remove()

    def rebuilt(self, rank: int, step: int, lost: set[int], folder: Path) -> bytes:
        """Rebuild a rank's image on a new node, and return its tensor's bytes."""
        plan = self.plan(rank, step, lost)
        vault = Vault.create(folder, "run-1")
        try:
            parity_fetch.rebuild(vault, plan, KEY, lambda: False)
            return bytes(vault.read(rank, step).tensors["weights"][1])
        finally:
            vault.remove()

    def folder_of(self, node: str) -> Path:
        return self.vaults[node].folder


@contextmanager
def house(folder: Path, ranks: int, *, data: int, rows: int) -> Iterator[House]:
    with ExitStack() as stack:
        one = House(folder, ranks, data=data, rows=rows)
        stack.callback(one.close)
        one.follow(1)
        yield one


@pytest.mark.parametrize(("ranks", "data", "rows"), [(3, 2, 1), (5, 3, 2)])
def test_lost_images_are_rebuilt_bit_for_bit_once_the_wait_is_over(
    tmp_path: Path, ranks: int, data: int, rows: int
) -> None:
    """Method: seal three steps. Then rebuild the images of the newest two steps for each choice of
    lost ranks.
    """
    with house(tmp_path, ranks, data=data, rows=rows) as one:
        for step in (7, 8, 9):
            one.seal(step)
            one.send(step)
        for lost in combinations(range(ranks), rows):
            for step in (8, 9):
                found = one.rebuilt(lost[0], step, {*lost}, tmp_path / "new")
                assert found == one.bodies[step, lost[0]]
        assert one.plan(0, 7, {0}).sources == (), "its slots were used again"
        one.lose(*range(rows))
        assert one.rebuilt(0, 9, {*range(rows)}, tmp_path / "new") == one.bodies[9, 0]


def test_a_node_that_is_new_gets_its_rows_in_the_next_generation(tmp_path: Path) -> None:
    """Until then the rows of the other nodes still count. Afterwards the next loss is
    survived too.
    """
    with house(tmp_path, 3, data=2, rows=1) as one:
        one.seal(7)
        one.send(7)
        image = one.rebuilt(0, 7, {0}, tmp_path / "new")
        one.lose(0)
        one.homes[0] = "spare"
        vault = one.vaults["spare"] = Vault.create(tmp_path / "spare", "run-1")
        one.peers["spare"] = Peer(vault)
        plan = one.plan(0, 7, {0})
        parity_fetch.rebuild(vault, plan, KEY, lambda: False)
        session = one.sessions[0] = FakeSession(vault)
        one.senders[0] = CopySender(session)  # type: ignore[arg-type]
        one.follow(2)
        one.send(7)
        assert one.rebuilt(1, 7, {1}, tmp_path / "new") == one.bodies[7, 1]
        assert one.rebuilt(0, 7, {0}, tmp_path / "new") == one.bodies[7, 0] == image
        one.seal(8, generation=2)
        one.send(8)
        for rank in range(3):
            assert one.rebuilt(rank, 8, {rank}, tmp_path / "new") == one.bodies[8, rank]


def test_the_rows_before_stay_while_a_new_generation_makes_its_own(tmp_path: Path) -> None:
    """Method: the second generation is interrupted when only rank 0 has sent its parts again."""
    with house(tmp_path, 3, data=2, rows=1) as one:
        one.seal(7)
        one.send(7)
        one.follow(2)
        one.senders[0].send(7)
        one.senders[0].wait()
        for rank in range(3):
            assert one.rebuilt(rank, 7, {rank}, tmp_path / "new") == one.bodies[7, rank]
        one.follow(3)
        one.send(7)
        for rank in range(3):
            assert one.rebuilt(rank, 7, {rank}, tmp_path / "new") == one.bodies[7, rank]


def test_a_step_executed_again_replaces_the_one_that_was_rolled_back(tmp_path: Path) -> None:
    """Method: step 8 is sealed again with other bytes, after all ranks have gone back to step 7."""
    with house(tmp_path, 3, data=2, rows=1) as one:
        for step in (7, 8):
            one.seal(step)
            one.send(step)
        for rank, home in one.homes.items():
            one.vaults[home].forget_after(rank, 7)
        one.follow(2)
        one.send(7)
        assert one.plan(0, 8, {0}).sources == ()
        one.seal(8, generation=2)
        one.send(8)
        for rank in range(3):
            for step in (7, 8):
                assert one.rebuilt(rank, step, {rank}, tmp_path / "new") == one.bodies[step, rank]


def test_rows_that_belong_elsewhere_now_give_their_memory_back(tmp_path: Path) -> None:
    """Method: nodes name their domains from the second generation on, so two of four rows lie on
    other nodes. The old ones stay until a rank sends its second step: then all others are complete.
    """
    with house(tmp_path, 4, data=2, rows=1) as one:
        kept = {node: peer.server.keeper.parity for node, peer in one.peers.items()}
        one.seal(7)
        one.send(7)
        assert {node: held.stripes() for node, held in kept.items()} == {
            "n0": (2,),
            "n1": (3,),
            "n2": (0,),
            "n3": (1,),
        }
        one.domains = {"n0": "A", "n1": "A", "n2": "B", "n3": "B"}
        one.follow(2)
        one.send(7)
        assert (kept["n1"].stripes(), kept["n2"].stripes()) == ((0, 3), (0, 3))
        for rank in range(4):
            assert one.rebuilt(rank, 7, {rank}, tmp_path / "new") == one.bodies[7, rank]
        one.seal(8, generation=2)
        one.send(8)
        assert {node: held.stripes() for node, held in kept.items()} == {
            "n0": (2,),
            "n1": (0,),
            "n2": (3,),
            "n3": (1,),
        }
        assert not (one.folder_of("n2") / "parity-0").exists()
        assert ParityKept(0, ()) in one.peers["n2"].said
        for rank in range(4):
            for step in (7, 8):
                assert one.rebuilt(rank, step, {rank}, tmp_path / "new") == one.bodies[step, rank]


@pytest.mark.parametrize("what", ["row", "image"])
def test_damage_is_found_and_never_returned(tmp_path: Path, what: str) -> None:
    """Method: change a byte in each half of each row, or of an image that is left."""
    with house(tmp_path, 3, data=2, rows=1) as one:
        one.seal(7)
        one.send(7)
        if what == "row":
            slots = [path for path in tmp_path.rglob("parity-*/slot-*") if path.stat().st_size]
        else:
            slots = list(one.folder_of("n1").glob("rank-1/slot-*"))
        assert slots
        for slot in slots:
            for at in (5_000, 145_000) if what == "row" else (5_000, 200_000):
                data = bytearray(slot.read_bytes())
                data[at] ^= 1
                with slot.open("r+b") as file:
                    file.write(data)
        with pytest.raises(CorruptError):
            one.rebuilt(0, 7, {0}, tmp_path / "new")


def test_a_second_row_replaces_a_damaged_one(tmp_path: Path) -> None:
    with house(tmp_path, 4, data=2, rows=2) as one:
        one.seal(7)
        one.send(7)
        kept = one.plan(0, 7, {0}).sources
        damaged = {source.at: source.stripe for source in kept if source.row == 0}
        for node, peer in one.peers.items():
            if (stripe := damaged.get(peer.address)) is not None:
                for slot in one.folder_of(node).glob(f"parity-{stripe}/slot-*"):
                    with slot.open("r+b") as file:
                        file.seek(5_000)
                        file.write(b"damaged")
        assert one.rebuilt(0, 7, {0}, tmp_path / "new") == one.bodies[7, 0]


def test_a_source_with_another_image_of_the_step_is_refused(tmp_path: Path) -> None:
    """Method: rank 1 has sealed step 7 again, while the parity is of what it had sealed before."""
    with house(tmp_path, 3, data=2, rows=1) as one:
        one.seal(7)
        one.send(7)
        plan = one.plan(0, 7, {0})
        one.seal(7, generation=2)
        vault = Vault.create(tmp_path / "new", "run-1")
        try:
            with pytest.raises(CorruptError, match="is not what the parity was made of"):
                parity_fetch.rebuild(vault, plan, KEY, lambda: False)
            assert vault.steps(0) == ()
        finally:
            vault.remove()


def test_a_node_without_room_reports_it_and_no_rank_waits_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with house(tmp_path, 3, data=2, rows=1) as one:

        def no_room(missing: int, what: str) -> None:
            raise CapacityError(f"no room for {what}")

        monkeypatch.setattr(one.vaults["n2"], "need_room", no_room)
        one.seal(7)
        one.send(7)
        assert any("no room for parity" in text for text in one.sessions[0].warned)
        assert any(said.rows == () for said in one.peers["n2"].said if isinstance(said, ParityKept))


def test_a_part_that_arrives_in_pieces_over_two_connections_is_added_once(
    tmp_path: Path,
) -> None:
    """Method: send the first half of a part by hand, close the connection, and let the sender do
    the rest.
    """
    with house(tmp_path, 3, data=2, rows=1) as one:
        one.seal(7)
        (share, *_) = shares_of(
            stripes(one.homes, data=2, rows=1), lambda node: one.peers[node].address
        )[0]
        found = one.vaults["n0"].sealed_image(0, 7)
        assert found is not None
        path, seal = found
        put = PutImage(trust.nonce(), 0, 1, seal.pack().hex(), share)
        with image_dialogue.connect(Server(share.at, KEY)) as sock:
            receive = image_dialogue.receive_from(sock)
            image_dialogue.ask(sock, put, key=KEY, receive=receive)
            begin = share.place * -(-seal.length // 2)
            sock.sendall(path.read_bytes()[begin : begin + 60_000])
        one.send(7)
        for rank in range(3):
            assert one.rebuilt(rank, 7, {rank}, tmp_path / "new") == one.bodies[7, rank]
