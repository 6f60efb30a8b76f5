"""Copies of the state of all ranks: the newest whole one stays, whoever dies while it copies."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlast.engine.protocol.outputs import SaveLast
from outlast.errors import CapacityError, CorruptError
from outlast.model.manifest import SPLIT
from outlast.runtime.coordinator.saves import save_images
from outlast.runtime.tiers import local, split_state
from outlast.runtime.tiers.image import TensorPiece, TensorSpec, image_bytes
from outlast.runtime.tiers.kept_copies import KeptCopies
from outlast.runtime.tiers.replicated import read_replicated
from outlast.runtime.tiers.vault import Vault
from tests.tiers import split

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
    copies.write(
        rank, generation=1, step=step, pieces=state(step), metadata={}, world_size=world_size
    )


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
    copies.write(0, generation=2, step=4, pieces=state(9), metadata={}, world_size=2)
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
        copies.write(rank, generation=1, step=8, pieces=grown, metadata={}, world_size=2)
    assert copies.newest_good(2) == (8, [])


# --- replicated state that the ranks have split ---------------------------------------------------

RANKS = 3


def keep_split(vault: Vault, step: int, *, lost: str = "") -> KeptCopies:
    """Let three ranks copy their shares. `lost`: nobody copies the last part of this tensor."""
    copies, tensors = KeptCopies(vault), split.state(step)
    specs = split.specs_of(tensors)
    shares = list(split_state.split(specs, RANKS))
    if lost:
        last = max(
            at for at, share in enumerate(shares) if lost in [one.spec.name for one in share]
        )
        shares[last] = tuple(one for one in shares[last] if one.spec.name != lost)
    for rank, parts in enumerate(shares):
        pieces = split.pieces(tensors, parts, rank)
        names = [piece.spec for piece in pieces]
        metadata = split_state.metadata_of(names, parts, contents=None if rank else specs)
        copies.reserve(rank, image_bytes(names))
        copies.write(
            rank, generation=1, step=step, pieces=pieces, metadata=metadata, world_size=RANKS
        )
    return copies


def test_shares_are_put_together_for_each_rank(vault: Vault) -> None:
    copies = keep_split(vault, 4)
    assert copies.newest_good(RANKS) == (4, [])
    for like in range(RANKS):
        image = copies.read_state(4, like=like, world_size=RANKS)
        for name, one in split.state(4).items():
            assert bytes(image.tensors[name][1]) == one.tobytes(), name
        assert bytes(image.tensors["private/text"][1]) == f"rank {like}".encode()
        assert bytes(image.tensors["shared/text"][1]) == b"{}"


def test_copies_that_lack_a_part_are_refused_by_its_name(vault: Vault) -> None:
    keep_split(vault, 4)
    copies = keep_split(vault, 5, lost="shared/large")
    with pytest.raises(CorruptError, match="shared/large is not whole"):
        copies.read_state(5, like=0, world_size=RANKS)
    newest, refused = copies.newest_good(RANKS)
    assert newest == 4
    assert "shared/large is not whole" in refused[0]


def test_copies_that_rank_0_made_of_everything_are_still_read(vault: Vault) -> None:
    """An older outlast, whose launcher was killed, has left them."""
    copies = KeptCopies(vault)
    for rank in (0, 1):
        data = f"rank {rank}".encode()
        own = TensorPiece(TensorSpec("private/text", "U8", (len(data),)), memoryview(data))
        (spec, values) = state(6)[0]
        shared = TensorPiece(spec._replace(name="shared/w"), values)
        pieces = [own, shared] if rank == 0 else [own]
        copies.reserve(rank, SLOT)
        copies.write(rank, generation=1, step=6, pieces=pieces, metadata={}, world_size=2)
    image = copies.read_state(6, like=1, world_size=2)
    assert bytes(image.tensors["private/text"][1]) == b"rank 1"
    assert image.tensors["shared/w"][0].shape == SHAPE


def test_copies_are_saved_as_a_checkpoint_of_shares(vault: Vault, tmp_path: Path) -> None:
    """As a run does that gives up."""
    keep_split(vault, 4)
    order = SaveLast(4, sharded=False, kept=True)
    folder, error = save_images(vault, tmp_path / "saved", order, "run-1", 1, RANKS)
    assert error == ""
    found = local.newest_good(tmp_path / "saved").checkpoint
    assert found is not None
    assert (str(found.folder), found.manifest.kind) == (folder, SPLIT)
    image = read_replicated(found, 2)
    for name, one in split.state(4).items():
        assert bytes(image.tensors[name][1]) == one.tobytes(), name
    assert bytes(image.tensors["private/text"][1]) == b"rank 2"
