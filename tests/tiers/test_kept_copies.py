"""Copies of the state of all ranks: the newest whole one stays, whoever dies while it copies."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlast.errors import CapacityError, CorruptError
from outlast.runtime.tiers.image import TensorPiece, TensorSpec, image_bytes
from outlast.runtime.tiers.kept_copies import KeptCopies
from outlast.runtime.tiers.vault import Vault

SHAPE = (1000,)


def state(step: int) -> list[TensorPiece]:
    data = np.full(SHAPE, step, np.float32).view(np.uint8).data
    return [TensorPiece(TensorSpec("w", "F32", SHAPE), data)]


SLOT = image_bytes([state(0)[0].spec])


@pytest.fixture
def vault(tmp_path: Path) -> Iterator[Vault]:
    vault = Vault.create(tmp_path / "vault", "run-1")
    yield vault
    vault.remove()


@pytest.fixture
def copies(vault: Vault) -> KeptCopies:
    """Those of two ranks, with room for each."""
    copies = KeptCopies(vault)
    for rank in (0, 1):
        copies.reserve(rank, SLOT)
    return copies


def keep(copies: KeptCopies, rank: int, step: int, world_size: int = 2) -> None:
    copies.write(rank, generation=1, step=step, pieces=state(step), world_size=world_size)


def value(copies: KeptCopies, rank: int, step: int) -> float:
    return float(np.frombuffer(copies.read(rank, step).tensors["w"][1], np.float32).min())


@given(st.lists(st.tuples(st.integers(0, 3), st.booleans()), max_size=12))
def test_the_newest_step_that_all_ranks_copied_is_never_overwritten(
    rounds: list[tuple[int, bool]],
) -> None:
    """Method: in each round a drawn number of ranks copies the next step, then all are lost.

    Whoever comes back goes on from the newest step that all have, and forgets what is later.
    """
    vault = Vault.create(Path(tempfile.mkdtemp()) / "vault", "run-1")
    copies, newest, step, world = KeptCopies(vault), 0, 0, 3
    try:
        for rank in range(world):
            copies.reserve(rank, SLOT)
        for copied_by, lost in rounds:
            step += 1
            for rank in range(copied_by):
                keep(copies, rank, step, world)
            newest = step if copied_by == world else newest
            assert (copies.newest_whole(world) or 0) == newest
            if newest:
                assert [value(copies, rank, newest) for rank in range(world)] == [newest] * world
            if lost:
                step = newest
                for rank in range(world):
                    copies.forget_after(rank, newest)
    finally:
        copies.close()
        vault.remove()


def test_a_copy_that_is_there_is_not_written_again(copies: KeptCopies) -> None:
    """Where it is the only one, a writer that dies would leave none."""
    for rank in (0, 1):
        keep(copies, rank, 4)
    copies.write(0, generation=2, step=4, pieces=state(9), world_size=2)
    assert value(copies, 0, 4) == 4
    with pytest.raises(CorruptError, match="no copy of the state of rank 0 at step 3"):
        copies.read(0, 3)


def test_a_damaged_copy_is_refused_and_the_one_before_is_found(
    vault: Vault, copies: KeptCopies
) -> None:
    """It is forgotten, on all ranks, so it is told once."""
    for step in (4, 6):
        for rank in (0, 1):
            keep(copies, rank, step)
    assert copies.newest_good(2) == (6, [])
    for path in (vault.folder / "kept-1").glob("slot-*"):
        data = path.read_bytes()
        at = data.find(np.float32(6).tobytes() * 100)
        if at >= 0:
            with path.open("r+b") as file:
                file.seek(at)
                file.write(b"x")
    step, (refused,) = copies.newest_good(2)
    assert step == 4
    assert refused.startswith("the copies of the state of step 6 in shared memory are not used: ")
    assert "hint" not in refused, "it is one sentence of a warning"
    assert copies.newest_good(2) == (4, [])


def test_copies_that_nobody_made_are_no_copies(vault: Vault) -> None:
    assert KeptCopies(vault).newest_good(2) == (0, [])


def test_a_lack_of_room_is_said_before_anything_is_allocated(vault: Vault) -> None:
    with pytest.raises(CapacityError, match="two copies of the state of rank 0"):
        KeptCopies(vault).reserve(0, 1 << 50)
    assert not (vault.folder / "kept-0").exists()


def test_a_state_that_has_grown_gets_a_larger_slot(copies: KeptCopies) -> None:
    grown = [*state(8), *(piece._replace(spec=piece.spec._replace(name="v")) for piece in state(9))]
    for rank in (0, 1):
        copies.write(rank, generation=1, step=8, pieces=grown, world_size=2)
    assert copies.newest_good(2) == (8, [])
