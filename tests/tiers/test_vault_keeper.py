"""A vault whose names are removed while it is in use."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from outlast.errors import RunFolderError
from outlast.runtime.tiers.vault import Vault
from outlast.runtime.tiers.vault_keeper import VaultKeeper
from tests.tiers.test_vault import SLOT, put, state, value


@pytest.fixture
def vault(tmp_path: Path) -> Iterator[Vault]:
    one = Vault.create(tmp_path / "vault", "run-1")
    one.reserve(0, SLOT, 1)
    one.reserve_transfer(SLOT)
    yield one
    one.remove()


def kept(vault: Vault) -> VaultKeeper:
    assert vault.keeper is not None
    return vault.keeper


def rm_rf(folder: Path) -> None:
    shutil.rmtree(folder)


def remove_ipc(folder: Path) -> None:
    """What systemd-logind does with RemoveIPC=yes: files first, then folders that are empty."""
    for path in sorted(folder.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    folder.rmdir()


@pytest.mark.parametrize("remove", [rm_rf, remove_ipc])
def test_a_removed_vault_is_there_again_with_all_that_was_sealed(
    vault: Vault, remove: Callable[[Path], None]
) -> None:
    """A worker has it open, and goes on sealing; its successor opens the names again."""
    worker = Vault.open(vault.folder)
    put(worker, 6)
    worker.write_transfer(1, 6, state(6), {})
    worker.beacon(3, create=True)
    assert kept(vault).look() == []
    remove(vault.folder)
    assert kept(vault).is_gone
    lost = kept(vault).look()
    assert {"owner", "rank-0/slot-0", "rank-0/seals", "transfer/slot-0", "beacon-3"} <= set(lost)
    put(worker, 7)  # into what it has mapped
    successor = Vault.open(vault.folder)
    assert successor.steps(0) == (7, 6)
    assert (value(successor, 7), value(successor, 6)) == (7.0, 6.0)
    assert successor.read_transfer(1, 6).tensors
    put(successor, 8)
    assert value(worker, 8) == 8.0, "both have the same memory"
    assert kept(vault).look() == []


def test_a_vault_that_is_removed_before_the_first_look_is_put_back(tmp_path: Path) -> None:
    """The launcher looks once it runs; until then the zygote is prepared."""
    vault = Vault.create(tmp_path / "vault", "run-1")
    shutil.rmtree(vault.folder)
    assert kept(vault).is_gone
    assert kept(vault).look() == ["owner"]
    assert Vault.open(vault.folder).run_id == "run-1"
    vault.remove()


def test_a_vault_is_removed_more_than_once(vault: Vault) -> None:
    put(vault, 1)
    for step in (2, 3):
        kept(vault).look()
        shutil.rmtree(vault.folder)
        assert kept(vault).look()
        put(vault, step)
    assert value(Vault.open(vault.folder), 3) == 3.0


def test_a_vault_that_was_put_back_is_still_owned(vault: Vault) -> None:
    """Nobody else adopts it, and its end removes it whole."""
    kept(vault).look()
    shutil.rmtree(vault.folder)
    kept(vault).look()
    with pytest.raises(RunFolderError, match="in use"):
        Vault.adopt(vault.folder, "run-1")
    vault.remove()
    assert not vault.folder.exists()


def test_what_was_taken_back_on_purpose_is_not_named_again(vault: Vault) -> None:
    """A beacon of a worker that has ended, and slots in which nothing was ever sealed."""
    vault.beacon(5, create=True)
    vault.reserve(1, SLOT, 1)
    kept(vault).look()
    vault.drop_beacon(5)
    shutil.rmtree(vault.folder / "rank-1")
    assert kept(vault).look() == []
    assert not (vault.folder / "beacon-5").exists()
    assert not (vault.folder / "rank-1").exists()


def test_a_removal_that_is_seen_half_way_is_undone_as_a_whole(vault: Vault) -> None:
    """The owner's file is removed first and put back; then the rest, which has no seals."""
    kept(vault).look()
    (vault.folder / "owner").unlink()
    assert kept(vault).look() == ["owner"]
    shutil.rmtree(vault.folder / "transfer")
    assert kept(vault).is_gone, "the rest is looked for in the next ticks"
    assert {"transfer/seals", "transfer/slot-0"} <= set(kept(vault).look())
    vault.write_transfer(1, 3, state(3), {})
    assert Vault.open(vault.folder).read_transfer(1, 3).tensors


def test_a_file_is_waited_for_while_the_vault_is_put_back(vault: Vault) -> None:
    """A worker writes right after the removal, and the launcher looks a moment later."""
    kept(vault).look()
    worker = Vault.open(vault.folder)
    shutil.rmtree(vault.folder)
    later = threading.Timer(0.1, kept(vault).look)
    later.start()
    put(worker, 9)
    later.join()
    assert value(Vault.open(vault.folder), 9) == 9.0


def test_a_seal_that_is_removed_alone_is_named_again(vault: Vault) -> None:
    put(vault, 4)
    kept(vault).look()
    (vault.folder / "rank-0" / "seals").unlink()
    assert kept(vault).look() == ["rank-0/seals"]
    assert value(Vault.open(vault.folder), 4) == 4.0
