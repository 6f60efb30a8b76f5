"""What a drill reads of a run's redundancy: who lives, what is sealed, what the ledger says.

Method: a real vault, a real ledger, and beacons written as workers write them. The processes are
entries of a list. tests/drills/test_drill_command.py reads a real run.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from outlast.model.beacon import Beacon, pack_into
from outlast.model.drills.drill_redundancy import InForce
from outlast.runtime.drill.drill_looks import (
    EACH_S,
    InForceLooks,
    LookedAtNode,
    LookedAtRun,
    look,
)
from outlast.runtime.drill.striking import RunProcess
from outlast.runtime.ledger.store import Ledger
from outlast.runtime.tiers.image import TensorPiece, TensorSpec, image_bytes
from outlast.runtime.tiers.kept_copies import KeptCopies
from outlast.runtime.tiers.vault import Vault
from tests.ledger import a_run

DATA = np.zeros(100, np.float32).view(np.uint8).data
PIECES = [TensorPiece(TensorSpec("w", "F32", (100,)), DATA)]
SLOT = image_bytes([PIECES[0].spec])


@pytest.fixture
def vault(tmp_path: Path) -> Iterator[Vault]:
    vault = Vault.create(tmp_path / "vault", a_run.META.run)
    yield vault
    vault.remove()


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    with closing(Ledger.create(tmp_path / "ledger.db", a_run.META, pid=1)) as ledger:
        yield ledger


def said(ledger: Ledger, *, sharded: bool, **more: object) -> None:
    """Write what the launcher says once a second."""
    known = {"sharded": sharded, "nodes_to_lose": None} | more
    checkpoint = {"step": 30, "at_s": 1.0, "folder": "x"}
    snapshot = {"redundancy": known, "last_checkpoint": checkpoint}
    ledger.set_snapshot(snapshot, now_s=1.0)
    ledger.flush()


def works(vault: Vault, worker: int, rank: int, step: int) -> None:
    pack_into(vault.beacon(worker, create=True), Beacon(worker, 100 + worker, rank, step=step))


def process(pid: int, title: str) -> RunProcess:
    return RunProcess(pid, 1, title)


def memory(vault: Vault, ledger: Path, *some: RunProcess) -> LookedAtRun:
    return LookedAtRun((LookedAtNode(vault, some),), ledger)


RANKS = (process(7, "outlast-rank0"), process(8, "outlast-rank1"))


def test_a_living_rank_that_has_the_newest_step_is_a_copy(
    tmp_path: Path, vault: Vault, ledger: Ledger
) -> None:
    """Rank 1 had a worker that is dead, and its new one has not restored the state yet."""
    world = a_run.META.world_size
    said(ledger, sharded=False)
    works(vault, 1, 0, 50)
    works(vault, 2, 1, 49)
    seen = look(memory(vault, tmp_path / "ledger.db", *RANKS, process(9, "outlast-hot")), ())
    assert seen == InForce(50, False, 2, 1, 1, 0, 30, 0)
    works(vault, 3, 1, 0)
    seen = look(memory(vault, tmp_path / "ledger.db", *RANKS), ())
    assert seen is not None
    assert (seen.copies, seen.spares) == (1, 0)
    copies = KeptCopies(vault)
    for rank in range(world):
        copies.reserve(rank, SLOT)
        copies.write(rank, generation=1, step=45, pieces=PIECES, metadata={}, world_size=world)
    copies.write(0, generation=1, step=48, pieces=PIECES, metadata={}, world_size=world)
    seen = look(memory(vault, tmp_path / "ledger.db", *RANKS), ())
    assert seen is not None
    assert (seen.kept_step, seen.behind_steps) == (45, 5), "not all ranks have copied step 48"
    copies.write(1, generation=1, step=48, pieces=PIECES, metadata={}, world_size=world)
    seen = look(memory(vault, tmp_path / "ledger.db", *RANKS), ())
    assert seen is not None
    assert (seen.kept_step, seen.behind_steps) == (48, 2)
    copies.close()


def test_a_process_that_was_struck_holds_nothing(
    tmp_path: Path, vault: Vault, ledger: Ledger
) -> None:
    """A rank that hangs is still there, and its state is of no use to the others."""
    said(ledger, sharded=False)
    works(vault, 1, 0, 50)
    works(vault, 2, 1, 50)
    seen = look(memory(vault, tmp_path / "ledger.db", *RANKS), {8})
    assert seen is not None
    assert seen.copies == 1


def test_sharded_state_counts_by_its_images(tmp_path: Path, vault: Vault, ledger: Ledger) -> None:
    said(ledger, sharded=True, nodes_to_lose=1)
    world = a_run.META.world_size
    for rank in range(world):
        works(vault, rank, rank, 50)
        vault.reserve(rank, SLOT, 1)
        vault.write(rank, generation=1, step=49, pieces=PIECES, metadata={})
    vault.write(0, generation=1, step=50, pieces=PIECES, metadata={})
    seen = look(memory(vault, tmp_path / "ledger.db", *RANKS), ())
    assert seen is not None
    assert (seen.copies, seen.nodes, seen.kept_step) == (None, None, 49)
    assert seen.nodes_survived == 0, "no other node could lead this run"


def test_what_cannot_be_read_is_not_guessed(tmp_path: Path, vault: Vault, ledger: Ledger) -> None:
    """There is no snapshot yet, or no file."""
    assert look(memory(vault, tmp_path / "ledger.db", *RANKS), ()) is None
    assert look(memory(vault, tmp_path / "none.db", *RANKS), ()) is None


def test_a_fault_gets_the_newest_look_before_it(
    tmp_path: Path, vault: Vault, ledger: Ledger
) -> None:
    said(ledger, sharded=False)
    looks = InForceLooks(lambda: memory(vault, tmp_path / "ledger.db", *RANKS))
    assert looks.at(1.0) is None
    works(vault, 1, 0, 10)
    looks.now(1.0, ())
    works(vault, 1, 0, 20)
    looks.refresh(1.0 + EACH_S / 2, ())
    looks.refresh(1.0 + EACH_S, ())
    works(vault, 1, 0, 30)
    seen = [looks.at(at_s) for at_s in (0.9, 1.0 + EACH_S * 0.9, 9.0)]
    assert [one and one.step for one in seen] == [None, 10, 20]
