"""Every place in which `--keep` keeps state, under one handle.

They are the vault of the own node, copies and parity on other nodes, a local disk, and object
storage.

Each handle is thin: the bytes take the way that they take in a run, through real vaults, senders,
keepers, sockets and files. The places for checkpoints have more promises (`test_tiers.py`).
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Protocol

import pytest

from outlast.errors import CorruptError
from outlast.model.manifest import Manifest
from outlast.model.messages import PutImage, Share
from outlast.runtime.network import trust
from outlast.runtime.objects.url_places import open_place
from outlast.runtime.tiers import area
from outlast.runtime.tiers.disk_tier import DiskTier
from outlast.runtime.tiers.image import TensorPiece, TensorSpec
from outlast.runtime.tiers.parity import part_of
from outlast.runtime.tiers.tier import CheckpointTier
from outlast.runtime.tiers.vault import Vault
from outlast.runtime.worker.saving.copy_sender import CopySender
from outlast.runtime.worker.transfer import image_dialogue
from outlast.runtime.worker.transfer.image_dialogue import Server
from outlast.runtime.worker.transfer.image_fetch import Wanted, fetch
from tests.objects import s3_server
from tests.processes.test_copies_at_peers import KEY, PLAN, FakeSession, Peer
from tests.processes.test_parity_at_nodes import House

SLOT_BYTES = 1 << 20
RANK = 0


class StateTier(Protocol):
    def save(self, step: int, data: bytes) -> None:
        """The state of `step` is kept when this returns."""

    def save_cut_short(self, step: int, data: bytes) -> None:
        """The process that saves dies in the middle, and another one takes its place."""

    def steps(self) -> tuple[int, ...]:
        """What can be restored, the newest first."""

    def read(self, step: int) -> bytes:
        """As a process reads it that restores. Raises CorruptError."""

    def damage(self, step: int) -> None:
        """A bit flips where the bytes lie."""

    def go_back(self, step: int) -> None:
        """All ranks go on from `step`: what was saved later is void."""

    def close(self) -> None: ...


def piece_of(data: bytes) -> TensorPiece:
    return TensorPiece(TensorSpec("weights", "U8", (len(data),)), memoryview(data))


def flip(path: Path, at: int) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)
        file.seek(at)
        file.write(bytes([byte[0] ^ 1]))


def seal(vault: Vault, rank: int, step: int, data: bytes, *, generation: int) -> None:
    vault.write(rank, generation=generation, step=step, pieces=[piece_of(data)], metadata={})


def tensor(vault: Vault, step: int) -> bytes:
    return bytes(vault.read(RANK, step).tensors["weights"][1])


class InVault:
    """Shared memory of the own node."""

    def __init__(self, folder: Path) -> None:
        self._vault = Vault.create(folder / "vault", "run-1")
        self._vault.reserve(RANK, SLOT_BYTES, 1)

    def save(self, step: int, data: bytes) -> None:
        seal(self._vault, RANK, step, data, generation=1)

    def save_cut_short(self, step: int, data: bytes) -> None:
        pid = os.fork()
        if pid == 0:
            area.write_image = lambda target, **_: os.kill(os.getpid(), signal.SIGKILL)  # type: ignore[assignment,return-value]
            self.save(step, data)
            os._exit(9)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL

    def steps(self) -> tuple[int, ...]:
        return self._vault.steps(RANK)

    def read(self, step: int) -> bytes:
        return tensor(self._vault, step)

    def damage(self, step: int) -> None:
        found = self._vault.sealed_image(RANK, step)
        assert found is not None
        flip(found[0], found[1].length - 1)

    def go_back(self, step: int) -> None:
        self._vault.forget_after(RANK, step)

    def close(self) -> None:
        self._vault.remove()


class AtPeers:
    """Copies on other nodes, which are fetched by a new process on a third one."""

    def __init__(self, folder: Path, count: int) -> None:
        self._folder = folder
        self._own = Vault.create(folder / "own", "run-1")
        self._own.reserve(RANK, SLOT_BYTES, 1)
        self._vaults = [Vault.create(folder / f"peer-{number}", "run-1") for number in range(count)]
        self._peers = [Peer(vault) for vault in self._vaults]
        self._generation = 0
        self._new_process()

    def _new_process(self) -> None:
        """Begin a generation with another process, which sends the newest image again."""
        self._generation += 1
        self._sender = CopySender(FakeSession(self._own))  # type: ignore[arg-type]
        keepers = tuple(peer.address for peer in self._peers)
        self._sender.follow(replace(PLAN, rank=RANK, generation=self._generation, keepers=keepers))
        for step in self._own.steps(RANK)[:1]:
            self._send(step)

    def _send(self, step: int) -> None:
        self._sender.send(step)
        self._sender.wait()

    def save(self, step: int, data: bytes) -> None:
        seal(self._own, RANK, step, data, generation=self._generation)
        self._send(step)

    def save_cut_short(self, step: int, data: bytes) -> None:
        seal(self._own, RANK, step, data, generation=self._generation)
        for peer in self._peers:
            send_half(self._own, step, peer.address, self._generation)
        self._own.forget_step(RANK, step)
        self._new_process()

    def steps(self) -> tuple[int, ...]:
        (each,) = {peer.server.keeper.held.steps(RANK) for peer in self._peers}
        return each

    def read(self, step: int) -> bytes:
        (found,) = {self._fetched(peer, step) for peer in self._peers}
        return found

    def _fetched(self, peer: Peer, step: int) -> bytes:
        vault = Vault.create(self._folder / "new", "run-1")
        try:
            wanted = Wanted(None, step, RANK, RANK, copy=True)
            fetch(vault, wanted, Server(peer.address, KEY), lambda: False)
            return tensor(vault, step)
        finally:
            vault.remove()

    def damage(self, step: int) -> None:
        for peer in self._peers:
            path, found = peer.server.keeper.held.find(RANK, step) or pytest.fail("no copy")
            flip(path, found.length - 1)

    def go_back(self, step: int) -> None:
        self._own.forget_after(RANK, step)
        self._new_process()

    def close(self) -> None:
        for peer in self._peers:
            peer.close()
        for vault in (self._own, *self._vaults):
            vault.remove()


class InParity:
    """Parity on other nodes. The node with the image is lost before each read."""

    def __init__(self, folder: Path, *, ranks: int, data: int, rows: int) -> None:
        self._folder = folder
        self._house = House(folder, ranks, data=data, rows=rows)
        self._generation = 0
        self._new_processes()

    def _new_processes(self) -> None:
        """Begin a generation, in which all ranks send what they sealed last."""
        self._generation += 1
        house = self._house
        house.follow(self._generation)
        for step in house.vaults[house.homes[RANK]].steps(RANK)[:1]:
            house.send(step)

    def _seal(self, step: int, data: bytes) -> None:
        house = self._house
        for rank, home in house.homes.items():
            body = data if rank == RANK else os.urandom(100_000 + rank)
            seal(house.vaults[home], rank, step, body, generation=self._generation)

    def save(self, step: int, data: bytes) -> None:
        self._seal(step, data)
        self._house.send(step)

    def save_cut_short(self, step: int, data: bytes) -> None:
        house = self._house
        own = house.vaults[house.homes[RANK]]
        self._seal(step, data)
        for rank, sender in house.senders.items():
            if rank != RANK:
                sender.send(step)
                sender.wait()
        for share in house.shares(RANK):
            send_half(own, step, share.at, self._generation, share)
        for rank, home in house.homes.items():
            house.vaults[home].forget_step(rank, step)
        self._new_processes()

    def steps(self) -> tuple[int, ...]:
        return self._house.known().steps_of({RANK}).get(RANK, ())

    def read(self, step: int) -> bytes:
        return self._house.rebuilt(RANK, step, {RANK}, self._folder / "new")

    def damage(self, step: int) -> None:
        for peer in self._house.peers.values():
            held = peer.server.keeper.parity
            for kept in held.all_rows():
                for row in kept.rows:
                    if row.step == step and RANK in row.ranks:
                        path, found = held.find(kept.stripe, row.row, step) or pytest.fail("none")
                        flip(path, found.length - 1)

    def go_back(self, step: int) -> None:
        for rank, home in self._house.homes.items():
            self._house.vaults[home].forget_after(rank, step)
        self._new_processes()

    def close(self) -> None:
        self._house.close()


def send_half(
    vault: Vault, step: int, address: str, generation: int, share: Share | None = None
) -> None:
    """Send the first half of an image, or of a part of it, and die."""
    path, found = vault.sealed_image(RANK, step) or pytest.fail("no image")
    begin, end = 0, found.length
    if share is not None:
        begin, end = part_of(found.length, data=len(share.ranks), place=share.place)
    put = PutImage(trust.nonce(), RANK, generation, found.pack().hex(), share)
    with image_dialogue.connect(Server(address, KEY)) as sock:
        receive = image_dialogue.receive_from(sock)
        answer = image_dialogue.ask(sock, put, key=KEY, receive=receive)
        assert getattr(answer, "offset", -1) == 0, answer
        sock.sendall(path.read_bytes()[begin : (begin + end) // 2])


class InCheckpoints:
    """A place for checkpoints: files and a manifest."""

    def __init__(self, tier: CheckpointTier) -> None:
        self._tier = tier

    def _put(self, step: int, data: bytes) -> Manifest:
        entry = self._tier.put(step, "f0", [memoryview(data)] if data else [])
        return Manifest("run", 0, step, 1, "sharded", (entry,))

    def save(self, step: int, data: bytes) -> None:
        self._tier.commit(self._put(step, data))

    def save_cut_short(self, step: int, data: bytes) -> None:
        self._put(step, data)

    def steps(self) -> tuple[int, ...]:
        return tuple(one.step for one in self._tier.step_folders() if one.has_manifest)

    def read(self, step: int) -> bytes:
        (entry,) = self._tier.manifest(step).files
        if why_not := self._tier.why_not(step):
            raise CorruptError(why_not)
        return b"".join(map(bytes, self._tier.chunks(step, entry)))

    def damage(self, step: int) -> None:
        manifest = self._tier.manifest(step)
        data = bytearray(b"".join(map(bytes, self._tier.chunks(step, manifest.files[0]))))
        data[-1] ^= 1
        self._tier.remove(step)
        self._put(step, bytes(data))
        self._tier.commit(manifest)

    def go_back(self, step: int) -> None:
        for later in self.steps():
            if later > step:
                self._tier.remove(later)

    def close(self) -> None:
        return None


def in_bucket(folder: Path, monkeypatch: pytest.MonkeyPatch) -> StateTier:
    """Return a place in a real S3 server, over HTTP."""
    return InCheckpoints(open_place(s3_server.shared(monkeypatch).new_url()))


Made = Callable[[Path, pytest.MonkeyPatch], StateTier]
# Each makes an empty place.
STATE_TIERS: dict[str, Made] = {
    "vault": lambda folder, monkeypatch: InVault(folder),
    "peers=1": lambda folder, monkeypatch: AtPeers(folder, 1),
    "peers=2": lambda folder, monkeypatch: AtPeers(folder, 2),
    "parity=2+1": lambda folder, monkeypatch: InParity(folder, ranks=3, data=2, rows=1),
    "parity=2+2": lambda folder, monkeypatch: InParity(folder, ranks=4, data=2, rows=2),
    "disk": lambda folder, monkeypatch: InCheckpoints(DiskTier(folder / "root")),
    "file": lambda folder, monkeypatch: InCheckpoints(open_place((folder / "root").as_uri())),
    "s3": in_bucket,
}
