"""An image of a rank is damaged, and the rank is killed: the seal still says that it is whole.

Method: a real vault, and a child of a launcher of ours with the title of a rank.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from outlast.errors import CorruptError
from outlast.model.beacon import Beacon, pack_into
from outlast.runtime.drill.drill_images import DamagedImages, damage
from outlast.runtime.drill.drill_looks import LookedAtNode, LookedAtRun
from outlast.runtime.drill.striking import RunProcess, Target
from outlast.runtime.tiers.image import TensorPiece, TensorSpec, image_bytes
from outlast.runtime.tiers.vault import Vault

SHAPE = (5000,)
# a launcher whose child is a rank; the child's end is the launcher's
LAUNCHER = """
import ctypes, os, signal
if (child := os.fork()) == 0:
    ctypes.CDLL(None).prctl(1, 9)
    ctypes.CDLL(None).prctl(15, b"outlast-rank1")
    signal.pause()
print(child, flush=True)
os.waitpid(child, 0)
"""


@pytest.fixture
def vault(tmp_path: Path) -> Iterator[Vault]:
    vault = Vault.create(tmp_path / "vault", "run-1")
    yield vault
    vault.remove()


def seal(vault: Vault, rank: int, step: int) -> None:
    spec = TensorSpec("w", "F32", SHAPE)
    data = np.full(SHAPE, step, np.float32).view(np.uint8).data
    vault.reserve(rank, image_bytes([spec]), 1)
    pieces = [TensorPiece(spec, data)]
    vault.write(rank, generation=1, step=step, pieces=pieces, metadata={})


def commits(vault: Vault, step: int) -> None:
    pack_into(vault.beacon(1, create=True), Beacon(1, 7, 1, step=step))


@pytest.mark.parametrize("torn", [False, True])
def test_a_damaged_image_is_refused_and_the_one_before_it_is_whole(
    vault: Vault, torn: bool
) -> None:
    seal(vault, 1, 6)
    seal(vault, 1, 7)
    commits(vault, 7)
    assert damage(vault, 1, torn=torn)
    assert vault.steps(1) == (7, 6), "the seals say nothing of it"
    with pytest.raises(CorruptError, match="does not match its seal"):
        vault.read(1, 7)
    image = vault.read(1, 6)
    assert float(np.frombuffer(image.tensors["w"][1], np.float32).min()) == 6.0


def test_the_damaged_image_is_of_a_step_that_the_peers_have_sealed(vault: Vault) -> None:
    """The rank has sealed step 8 already, but its peer would go back to step 7."""
    for rank, step in ((0, 6), (0, 7), (1, 7), (1, 8)):
        seal(vault, rank, step)
    assert damage(vault, 1, torn=False)
    vault.read(1, 8)
    with pytest.raises(CorruptError):
        vault.read(1, 7)


def test_a_peer_that_has_not_sealed_the_newest_step_yet_is_waited_for(vault: Vault) -> None:
    """Otherwise the drill would damage an image that nobody needs any more."""
    for rank, step in ((0, 6), (0, 7), (1, 7), (1, 8)):
        seal(vault, rank, step)
    later = threading.Timer(0.1, seal, (vault, 0, 8))
    later.start()
    try:
        assert damage(vault, 1, torn=False, peers_s=60.0)
    finally:
        later.join()
    vault.read(1, 7)
    with pytest.raises(CorruptError):
        vault.read(1, 8)


def test_no_older_image_is_left_once_a_peer_has_sealed_over_its_own(
    vault: Vault,
) -> None:
    """A rank has two slots. So the drill cannot count on the older image."""
    for rank, step in ((0, 6), (0, 7), (1, 6), (1, 7), (0, 8)):
        seal(vault, rank, step)
    assert set(vault.steps(0)) & set(vault.steps(1)) == {7}
    assert damage(vault, 1, torn=True)
    vault.read(1, 6)
    with pytest.raises(CorruptError):
        vault.read(1, 7)


def test_a_rank_that_is_alone_on_its_node_waits_for_nobody(vault: Vault) -> None:
    seal(vault, 0, 4)
    assert damage(vault, 0, torn=False, peers_s=3600.0)


def test_without_an_image_nothing_is_damaged(vault: Vault) -> None:
    assert not damage(vault, 1, torn=True)


@pytest.mark.parametrize("sealed", [True, False])
def test_a_rank_is_killed_once_its_image_is_damaged(vault: Vault, sealed: bool) -> None:
    """A rank without an image goes on."""
    if sealed:
        seal(vault, 1, 7)
        commits(vault, 7)
    with subprocess.Popen([sys.executable, "-c", LAUNCHER], stdout=subprocess.PIPE) as launcher:
        assert launcher.stdout is not None
        rank = int(launcher.stdout.readline())
        target = Target(launcher.pid)
        until_s = time.monotonic() + 20
        while (process := target.find("outlast-rank1")) is None:
            assert time.monotonic() < until_s
            time.sleep(0.01)
        assert process.pid == rank
        images = DamagedImages(lambda: memory(vault, process))
        assert images.strike(target, process, torn=False) == sealed
        if not sealed:
            assert launcher.poll() is None
            assert target.send(process, signal.SIGKILL), "it is still there, and goes on"
        assert launcher.wait(20) == 0, "its rank has ended"


def memory(vault: Vault, process: RunProcess) -> LookedAtRun:
    return LookedAtRun((LookedAtNode(vault, (process,)),), Path("none"))
