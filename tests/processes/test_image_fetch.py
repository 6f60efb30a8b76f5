"""An image that is fetched from another node: a real server, and a real vault at each end."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from outlast.model import limits
from outlast.model.messages import AskImage, ImageHead, Message
from outlast.model.wire import FrameReader, encode
from outlast.runtime.agent.image_server import ImageServer
from outlast.runtime.loop import Loop
from outlast.runtime.network import trust
from outlast.runtime.tiers.image import TensorPiece, TensorSpec
from outlast.runtime.tiers.vault import Vault
from outlast.runtime.worker.transfer.image_dialogue import Server
from outlast.runtime.worker.transfer.image_fetch import Wanted, fetch
from outlast.runtime.worker.transfer.image_receiver import ImageUnreached

KEY = trust.image_key(b"sixteen bytes, or more", "run-1")
SIZE = 3 << 20
BODY = os.urandom(SIZE)


@pytest.fixture
def vaults(tmp_path: Path) -> Iterator[tuple[Vault, Vault]]:
    """Yield the vault of the donor's node, with an image of step 7, and that of the node that needs
    it.
    """
    donor, needy = (Vault.create(tmp_path / name, "run-1") for name in ("donor", "needy"))
    donor.reserve_transfer(SIZE + (1 << 16))
    piece = TensorPiece(TensorSpec("weights", "U8", (SIZE,)), memoryview(BODY))
    donor.write_transfer(3, 7, [piece], {"made": "here"})
    yield donor, needy
    donor.remove()
    needy.remove()


@contextmanager
def serving(vault: Vault, key: bytes | None) -> Iterator[str]:
    """Yield the server's address, while its loop runs in a thread."""
    loop = Loop()
    server = ImageServer(loop, vault, key=key)
    address = server.listen("127.0.0.1")
    over = threading.Event()

    def run() -> None:
        while not over.is_set():
            loop.turn(0.02)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield address
    finally:
        over.set()
        thread.join()
        server.close()
        loop.close()


def never() -> bool:
    return False


@pytest.mark.parametrize("key", [KEY, None])
def test_an_image_arrives_whole(vaults: tuple[Vault, Vault], key: bytes | None) -> None:
    donor, needy = vaults
    with serving(donor, key) as address:
        fetch(needy, Wanted(3, 7), Server(address, key or b""), never)
    image = needy.read_transfer(3, 7)
    assert bytes(image.tensors["weights"][1]) == BODY
    assert image.metadata["made"] == "here"


def test_the_image_of_one_rank_arrives_as_that_of_another(vaults: tuple[Vault, Vault]) -> None:
    """Method: rank 0 has sealed steps 7 and 8, and rank 2 holds the same shards in a
    smaller slot.
    """
    donor, needy = vaults
    donor.reserve(0, SIZE + (1 << 16), 1)
    needy.reserve(2, 1 << 12, 1)
    for step in (7, 8):
        piece = TensorPiece(TensorSpec("weights", "U8", (SIZE,)), memoryview(BODY))
        donor.write(0, generation=3, step=step, pieces=[piece], metadata={"step": str(step)})
    with serving(donor, KEY) as address:
        fetch(needy, Wanted(None, 7, 0, 2), Server(address, KEY), never)
    image = needy.read(2, 7)
    assert (bytes(image.tensors["weights"][1]), image.metadata["step"]) == (BODY, "7")
    assert (needy.steps(2), needy.steps(0), needy.newest_transfer()) == ((7,), (), ())


@pytest.mark.parametrize("offset", [-1, -(2**70), 2**70])
def test_an_offset_outside_of_the_image_ends_no_server(
    vaults: tuple[Vault, Vault], offset: int
) -> None:
    """Method: ask for an image from an offset outside of it. The answer names its beginning or its
    end, and the next caller is served.
    """
    donor, needy = vaults
    found = donor.sealed_transfer(3, 7)
    assert found is not None
    asked = AskImage(trust.nonce(), 3, 7, offset, found[1].pack().hex())
    with serving(donor, None) as address:
        host, port = address.rsplit(":", 1)
        with socket.create_connection((host, int(port)), timeout=10) as sock:
            sock.sendall(encode(asked))
            reader, heard = FrameReader(), list[Message]()
            while not heard:
                heard += reader.feed(sock.recv(4096))
        (head,) = heard
        assert isinstance(head, ImageHead)
        assert head.offset == (0 if offset < 0 else found[1].length)
        fetch(needy, Wanted(3, 7), Server(address, b""), never)


def test_an_image_that_is_there_is_not_fetched_again(vaults: tuple[Vault, Vault]) -> None:
    """Method: nothing listens at the address."""
    donor, _ = vaults
    fetch(donor, Wanted(None, 7), Server("127.0.0.1:1", KEY), never)


def test_a_caller_without_the_key_gets_no_image(
    vaults: tuple[Vault, Vault], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "IMAGE_QUIET_S", 0.1)
    donor, needy = vaults
    other = trust.image_key(b"another token, of others", "run-1")
    with serving(donor, KEY) as address, pytest.raises(ImageUnreached, match="the run's key"):
        fetch(needy, Wanted(3, 7), Server(address, other), never)
    assert needy.sealed_transfer(3, 7) is None


def test_an_image_that_does_not_exist_is_reported_missing(
    vaults: tuple[Vault, Vault], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "IMAGE_QUIET_S", 0.1)
    donor, needy = vaults
    with serving(donor, KEY) as address, pytest.raises(ImageUnreached, match="step 8"):
        fetch(needy, Wanted(3, 8), Server(address, KEY), never)


def test_a_generation_that_is_over_ends_the_wait(vaults: tuple[Vault, Vault]) -> None:
    _, needy = vaults
    with pytest.raises(ImageUnreached, match="over"):
        fetch(needy, Wanted(3, 7), Server("127.0.0.1:1", KEY), lambda: True)


def test_a_connection_that_breaks_goes_on_where_it_broke(vaults: tuple[Vault, Vault]) -> None:
    """Method: a relay passes on a million bytes and closes the connection, and passes on everything
    the next time. In all, little more than the image goes through it.
    """
    donor, needy = vaults
    passed = [0]
    with serving(donor, KEY) as address, socket.create_server(("127.0.0.1", 0)) as front:
        host, _, port = address.rpartition(":")

        def relay(most: int) -> None:
            caller, _ = front.accept()
            with caller, socket.create_connection((host, int(port))) as beyond:
                back = threading.Thread(target=pump, args=(caller, beyond, 1 << 30, [0]))
                back.start()
                pump(beyond, caller, most, passed)
                for one in (caller, beyond):
                    one.shutdown(socket.SHUT_RDWR)
                back.join()

        def both() -> None:
            relay(1_000_000)
            relay(1 << 30)

        thread = threading.Thread(target=both)
        thread.start()
        there = f"127.0.0.1:{front.getsockname()[1]}"
        fetch(needy, Wanted(3, 7), Server(there, KEY), never)
        thread.join()
    assert bytes(needy.read_transfer(3, 7).tensors["weights"][1]) == BODY
    assert SIZE < passed[0] < SIZE + 500_000, passed


def pump(source: socket.socket, target: socket.socket, most: int, passed: list[int]) -> None:
    """Pass on this many bytes, or until one end is gone."""
    left = most
    while left > 0:
        try:
            data = source.recv(min(left, 65_536))
            target.sendall(data)
        except OSError:
            return
        if not data:
            return
        left -= len(data)
        passed[0] += len(data)
