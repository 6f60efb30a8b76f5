"""The vault: what is sealed survives its writers, what is not is never given out, and a full file
system is an error.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from outlast.engine.commit.image_place import place_of
from outlast.errors import CapacityError, CorruptError, RunFolderError, StateError
from outlast.model.beacon import BEACON_BYTES
from outlast.model.limits import SLOTS_COUNT, VAULT_SPARE_BYTES, VAULT_STALE_S
from outlast.model.manifest import SEAL_BYTES, Seal
from outlast.runtime.cgroups import memory_hierarchies
from outlast.runtime.tiers.image import TensorPiece, TensorSpec, image_bytes
from outlast.runtime.tiers.vault import Vault
from outlast.runtime.tiers.vault_owner import clean_stale, vault_folder

SHAPE = (1000,)


def state(step: int, name: str = "w") -> list[TensorPiece]:
    return [
        TensorPiece(
            TensorSpec(name, "F32", SHAPE), np.full(SHAPE, step, np.float32).view(np.uint8).data
        )
    ]


SLOT = image_bytes([state(0)[0].spec])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "vault"


@pytest.fixture
def vault(folder: Path) -> Iterator[Vault]:
    vault = Vault.create(folder, "run-1")
    yield vault
    vault.remove()


def put(
    vault: Vault, step: int, rank: int = 0, generation: int = 1, slot: int | None = None
) -> Seal:
    return vault.write(
        rank,
        generation=generation,
        step=step,
        pieces=state(step),
        metadata={"step": str(step)},
        slot=slot,
    )


def value(vault: Vault, step: int, rank: int = 0) -> float:
    image = vault.read(rank, step)
    assert image.metadata == {"step": str(step)}
    return float(np.frombuffer(image.tensors["w"][1], np.float32).min())


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 4
    with path.open("r+b") as file:
        file.write(data)


def test_the_two_newest_steps_are_there_and_newest_comes_first(vault: Vault) -> None:
    vault.reserve(0, SLOT, companions=1)
    assert vault.steps(0) == ()
    for step in range(1, 6):
        put(vault, step)
        assert vault.steps(0) == tuple(range(step, max(0, step - SLOTS_COUNT), -1))
        assert [value(vault, known) for known in vault.steps(0)] == list(vault.steps(0))
    with pytest.raises(CorruptError):
        vault.read(0, 3)


def test_a_confirmed_image_says_so_until_its_slot_is_written_again(vault: Vault) -> None:
    vault.reserve(0, SLOT, companions=1)
    put(vault, 1)
    seal = put(vault, 2)
    vault.confirm(0, 0, seal)
    assert [one.still for one in vault.seals(0)] == [True, False]
    assert place_of(vault.read(0, 2).metadata).still
    assert not place_of(vault.read(0, 1).metadata).still
    put(vault, 2, generation=5)
    assert not place_of(vault.read(0, 2).metadata).still


def test_the_same_step_may_be_sealed_again_and_the_other_slot_stays(vault: Vault) -> None:
    vault.reserve(0, SLOT, companions=1)
    put(vault, 1)
    put(vault, 2)
    seal = put(vault, 2, generation=5)
    assert vault.seals(0) == (seal, vault.seals(0)[1])
    assert seal.generation == 5
    assert (value(vault, 1), value(vault, 2)) == (1, 2)


def test_who_seals_every_nth_step_chooses_the_slot(vault: Vault) -> None:
    vault.reserve(0, SLOT, companions=1)
    for step in (2, 4, 6):
        put(vault, step, slot=step // 2 % SLOTS_COUNT)
    assert vault.steps(0) == (6, 4)


def test_another_process_sees_what_was_sealed(vault: Vault, folder: Path) -> None:
    """Method: the second vault maps first, so that it must also see a slot that grew after that."""
    vault.reserve(0, SLOT, companions=1)
    put(vault, 1)
    other = Vault.open(folder)
    assert (other.run_id, value(other, 1), other.ranks()) == ("run-1", 1, (0,))
    vault.reserve(0, SLOT * 2, companions=1)
    assert value(vault, 1) == 1, "growing a slot keeps what is sealed in it"
    large = [*state(3), *state(3, "v")]
    vault.write(0, generation=1, step=3, pieces=large, metadata={})
    assert set(other.read(0, 3).tensors) == {"v", "w"}
    other.close()


def test_reserving_twice_changes_nothing(vault: Vault, folder: Path) -> None:
    vault.reserve(0, SLOT, companions=1)
    put(vault, 1)
    before = (folder / "rank-0" / "slot-1").stat()
    vault.reserve(0, SLOT, companions=1)
    vault.reserve(0, SLOT - 500, companions=1)
    after = (folder / "rank-0" / "slot-1").stat()
    assert (before.st_ino, before.st_size, before.st_blocks) == (
        after.st_ino,
        after.st_size,
        after.st_blocks,
    )
    assert after.st_blocks * 512 >= SLOT, "allocated, not sparse"
    assert value(vault, 1) == 1


def test_a_flipped_byte_is_refused_and_the_other_step_stays(vault: Vault, folder: Path) -> None:
    """The byte is in the slot or in its seal."""
    vault.reserve(0, SLOT, companions=1)
    put(vault, 1)
    length = put(vault, 2).length
    for at in (0, 9, length // 2, length - 1):
        flip(folder / "rank-0" / "slot-0", at)
        with pytest.raises(CorruptError):
            vault.read(0, 2)
        flip(folder / "rank-0" / "slot-0", at)
    assert value(vault, 2) == 2
    flip(folder / "rank-0" / "seals", 20)
    assert vault.steps(0) == (1,)
    assert value(vault, 1) == 1


def test_two_images_of_one_step_are_both_given_and_a_damaged_one_is_not(
    vault: Vault, folder: Path
) -> None:
    """One was sealed at the vote, one when the next step began."""
    vault.reserve(0, SLOT, companions=1)
    length = put(vault, 7, slot=0).length
    put(vault, 7, slot=1)
    assert sorted(slot for slot, _ in vault.images(0, 7)) == [0, 1]
    vault.unseal(0, 0)
    assert [slot for slot, _ in vault.images(0, 7)] == [1]
    put(vault, 7, slot=0)
    flip(folder / "rank-0" / "slot-0", length // 2)
    assert [slot for slot, _ in vault.images(0, 7)] == [1]
    vault.unseal(0, 1)
    with pytest.raises(CorruptError):
        vault.images(0, 7)
    with pytest.raises(CorruptError, match="no sealed image of rank 0 at step 8"):
        vault.images(0, 8)


def test_a_seal_of_another_run_or_rank_does_not_count(vault: Vault, folder: Path) -> None:
    for rank in (0, 1):
        vault.reserve(rank, SLOT, companions=2)
        put(vault, 1, rank=rank)
    shutil.copy(folder / "rank-0" / "seals", folder / "rank-1" / "seals")
    assert vault.steps(1) == ()
    stranger = Vault(folder, "run-2", -1)
    assert stranger.steps(0) == ()
    stranger.close()


def grown(step: int) -> list[TensorPiece]:
    """State that no slot of SLOT bytes holds."""
    return [*state(step), *(state(step, f"v{i}")[0] for i in range(9))]


def test_slots_grow_with_the_state(vault: Vault, folder: Path) -> None:
    """The other slot keeps its image, and a process that had mapped the smaller slots reads the
    larger ones.
    """
    vault.reserve(0, SLOT, companions=1)
    vault.reserve_transfer(SLOT)
    put(vault, 1)
    put(vault, 2)
    vault.write_transfer(1, 2, state(2), {})
    other = Vault.open(folder)
    assert value(other, 2) == 2
    vault.write(0, generation=1, step=3, pieces=grown(3), metadata={"step": "3"})
    vault.write_transfer(1, 3, grown(3), {})
    assert (value(other, 2), value(other, 3)) == (2, 3)
    assert set(other.read_transfer(1, 3).tensors) == {piece.spec.name for piece in grown(3)}
    other.close()


def test_a_process_writes_into_slots_that_another_one_has_made_larger(
    vault: Vault, folder: Path
) -> None:
    """Rank 0's process has mapped the small slots. Its successor makes them larger and is lost."""
    vault.reserve(0, SLOT, companions=1)
    vault.reserve_transfer(SLOT)
    put(vault, 1)
    vault.write_transfer(1, 1, state(1), {})
    other = Vault.open(folder)
    for step in (2, 3):
        other.write(0, generation=2, step=step, pieces=grown(step), metadata={"step": str(step)})
        other.write_transfer(2, step, grown(step), {})
    other.close()
    for step in (4, 5):
        vault.write(0, generation=3, step=step, pieces=grown(step), metadata={"step": str(step)})
        vault.write_transfer(3, step, grown(step), {})
    assert (value(vault, 4), value(vault, 5)) == (4, 5)
    assert set(vault.read_transfer(3, 5).tensors) == {piece.spec.name for piece in grown(5)}


def test_a_state_that_has_outgrown_all_memory_is_told(
    vault: Vault, monkeypatch: pytest.MonkeyPatch
) -> None:
    vault.reserve(0, SLOT, companions=1)
    put(vault, 1)
    monkeypatch.setattr(
        "outlast.runtime.tiers.vault.room_in",
        lambda *_: SimpleNamespace(free=0, of="nothing", hint="get more"),
    )
    with pytest.raises(CapacityError, match="has outgrown its slot"):
        vault.write(0, generation=1, step=2, pieces=grown(2), metadata={})
    assert vault.steps(0) == (1,)


def test_a_failed_write_takes_its_own_seal_only(vault: Vault) -> None:
    vault.reserve(0, SLOT, companions=1)
    put(vault, 1)
    put(vault, 2)
    with pytest.raises(CapacityError):
        vault.write(0, generation=1, step=4, pieces=state(4), metadata={"long": "x" * 4096})
    with pytest.raises(StateError):
        vault.write(0, generation=1, step=4, pieces=[*state(4), *state(4)], metadata={})
    assert vault.steps(0) == (1,)
    assert value(vault, 1) == 1


def test_the_transfer_image_is_found_by_generation_and_step_only(
    vault: Vault, folder: Path
) -> None:
    vault.reserve_transfer(SLOT)
    with pytest.raises(CorruptError):
        vault.read_transfer(None, 7)
    vault.write_transfer(3, 7, state(7), {"a": "b"})
    other = Vault.open(folder)
    for generation in (3, None):
        assert other.read_transfer(generation, 7).metadata == {"a": "b"}
    for generation, step in ((2, 7), (3, 6), (None, 8)):
        with pytest.raises(CorruptError):
            other.read_transfer(generation, step)
    vault.write_transfer(4, 8, state(8), {})
    with pytest.raises(CorruptError):
        other.read_transfer(3, 7)
    flip(folder / "transfer" / "slot-0", SLOT - 1)
    with pytest.raises(CorruptError):
        other.read_transfer(4, 8)
    other.close()


def test_of_two_transfer_images_of_a_step_the_newest_that_is_whole_is_read(
    vault: Vault, folder: Path
) -> None:
    vault.reserve_transfer(SLOT)
    vault.write_transfer(3, 7, state(7), {"by": "first"})
    vault.write_transfer(4, 7, state(7), {"by": "second"})
    assert [vault.read_transfer(generation, 7).metadata["by"] for generation in (3, 4, None)] == [
        "first",
        "second",
        "second",
    ]
    flip(folder / "transfer-beside" / "slot-0", SLOT - 1)
    assert vault.read_transfer(None, 7).metadata["by"] == "first"
    with pytest.raises(CorruptError):
        vault.read_transfer(4, 7)


def test_where_there_is_no_room_beside_it_a_transfer_image_is_written_over(
    vault: Vault, monkeypatch: pytest.MonkeyPatch
) -> None:
    vault.reserve_transfer(SLOT)
    vault.write_transfer(3, 7, state(7), {})

    def full(missing: int, what: str) -> None:
        raise CapacityError(what)

    monkeypatch.setattr(vault, "need_room", full)
    vault.write_transfer(4, 7, state(7), {})
    assert vault.read_transfer(4, 7).metadata == {}
    with pytest.raises(CorruptError):
        vault.read_transfer(3, 7)


def test_a_beacon_that_is_just_being_made_is_not_there_yet(vault: Vault) -> None:
    """Its file has a name before it has bytes; who looks in between must not take nothing
    for it.
    """
    (vault.folder / "beacon-5").touch()
    with pytest.raises(FileNotFoundError):
        vault.beacon(5, create=False)
    vault.beacon(5, create=True)[0] = 7
    assert vault.beacon(5, create=False)[0] == 7


def test_a_beacon_is_shared_and_can_be_dropped(vault: Vault, folder: Path) -> None:
    page = vault.beacon(3, create=True)
    page[5] = 77
    other = Vault.open(folder)
    assert len(page) == BEACON_BYTES
    assert other.beacon(3, create=False)[5] == 77
    vault.drop_beacon(3)
    vault.drop_beacon(3)
    assert page[5] == 77, "who still holds it may go on writing"
    with pytest.raises(FileNotFoundError):
        vault.beacon(3, create=False)
    other.close()


WRITER = """
import sys, numpy as np
from pathlib import Path
from outlast.runtime.tiers.vault import Vault
from outlast.runtime.cgroups import memory_hierarchies
from outlast.runtime.tiers.image import TensorPiece, TensorSpec, image_bytes
vault = Vault.open(Path(sys.argv[1]))
count = 4_000_000
def pieces(step): return [TensorPiece(TensorSpec("w", "F32", (count,)), np.full(count, step, \
np.float32).view(np.uint8).data)]
vault.reserve(0, image_bytes([pieces(0)[0].spec]), companions=1)
step = 0
while True:
    step += 1
    vault.write(0, generation=1, step=step, pieces=pieces(step), metadata={"step": str(step)})
    print(step, flush=True)
"""


def test_a_writer_killed_at_any_moment_leaves_a_whole_step(vault: Vault, folder: Path) -> None:
    """Method: SIGKILL a process that seals without pause, at several moments; what its seals name
    must verify.
    """
    for after in (2, 3, 5):
        process = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(folder)], stdout=subprocess.PIPE, text=True
        )
        try:
            assert process.stdout is not None
            said = [int(process.stdout.readline()) for _ in range(after)]
        finally:
            process.send_signal(signal.SIGKILL)
            rest, _ = process.communicate(timeout=20)
        said += [int(line) for line in rest.splitlines() if line]
        steps = vault.steps(0)
        assert steps
        assert steps[0] >= said[-1] - 1
        for step in steps:
            assert value(vault, step) == step


def test_room_for_all_companions_is_checked_before_any_allocation(
    vault: Vault, folder: Path
) -> None:
    found = os.statvfs(folder)
    slot = found.f_bavail * found.f_frsize // (4 * SLOTS_COUNT)
    with pytest.raises(
        CapacityError, match=f"{4 * SLOTS_COUNT * slot + VAULT_SPARE_BYTES:,}"
    ) as caught:
        vault.reserve(0, slot, companions=4)
    assert "fewer workers" in caught.value.hint
    assert not (folder / "rank-0").exists()


def test_room_is_what_the_control_group_leaves_where_that_is_less(
    folder: Path, tmp_path: Path
) -> None:
    """Pages of tmpfs count against the group's limit: /dev/shm may be half empty, and the
    allocation ends in an OOM kill all the same.
    """
    pod = tmp_path / "tree" / "pod"
    (pod / "container").mkdir(parents=True)
    free = VAULT_SPARE_BYTES + 4 * SLOTS_COUNT * SLOT - 1
    for name, text in {
        "memory.max": "1000000000",
        "memory.current": f"{1_000_000_000 - free}",
        "memory.stat": "file 0",
    }.items():
        (pod / name).write_text(f"{text}\n")
    (tmp_path / "own").write_text("0::/pod/container\n")
    Vault.create(folder, "run-1").close()
    vault = Vault(folder, "run-1", -1, memory_hierarchies(tmp_path / "own", tmp_path / "tree"))
    with pytest.raises(
        CapacityError,
        match=(
            rf"needs {free + 1:,} more bytes .* {free:,} are available \(memory limit of the"
            rf" control group {pod}\)"
        ),
    ) as caught:
        vault.reserve(0, SLOT, companions=4)
    assert "--memory" in caught.value.hint
    assert "--shm-size" not in caught.value.hint
    assert not (folder / "rank-0").exists()
    vault.reserve(0, SLOT, companions=3)
    vault.close()


@pytest.fixture
def small_tmpfs(tmp_path: Path) -> Iterator[Path]:
    """32 MiB of tmpfs of our own."""
    where = tmp_path / "shm"
    where.mkdir()
    if (
        os.geteuid() != 0
        or subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=32m", "tmpfs", where], check=False
        ).returncode
        != 0
    ):
        pytest.skip("mounting a tmpfs needs root")
    yield where
    subprocess.run(["umount", "-l", where], check=True)


def test_a_full_file_system_is_an_error_and_leaves_nothing_half_made(small_tmpfs: Path) -> None:
    """Method: take the room between the check and the allocation by going to `Area` directly, then
    fill up for the rest.
    """
    vault = Vault.create(small_tmpfs / "vault", "run-1")
    vault.reserve(0, SLOT, companions=1)
    put(vault, 1)
    before = sorted((path, path.stat().st_size) for path in (small_tmpfs / "vault").rglob("*"))
    for rank in (0, 1):
        with pytest.raises(CapacityError):
            vault.reserve(rank, 9 << 20, companions=1)
        with pytest.raises(CapacityError):
            vault._area(rank).reserve(20 << 20)
    with pytest.raises(CapacityError):
        vault.reserve_transfer(20 << 20)
    assert (
        sorted((path, path.stat().st_size) for path in (small_tmpfs / "vault").rglob("*")) == before
    )
    assert value(vault, 1) == 1
    (small_tmpfs / "filler").write_bytes(
        bytes(os.statvfs(small_tmpfs).f_bavail * os.statvfs(small_tmpfs).f_frsize)
    )
    with pytest.raises(CapacityError):
        vault.beacon(1, create=True)
    put(vault, 3)
    assert value(vault, 3) == 3, "writing allocates nothing"
    with pytest.raises(CapacityError):
        Vault.create(small_tmpfs / "second", "run-2")
    assert not (small_tmpfs / "second").exists()
    vault.remove()


def test_one_vault_one_owner(folder: Path) -> None:
    vault = Vault.create(folder, "run-1")
    with pytest.raises(RunFolderError):
        Vault.create(folder, "run-1")
    with pytest.raises(RunFolderError, match="in use"):
        Vault.adopt(folder, "run-1")
    vault.remove()
    vault.remove()
    assert not folder.exists()
    for missing in (lambda: Vault.open(folder), lambda: Vault.adopt(folder, "run-1")):
        with pytest.raises(RunFolderError):
            missing()


def test_a_folder_without_a_good_owner_file_is_no_vault(folder: Path) -> None:
    folder.mkdir()
    for content in (None, "", "[]", '{"version": 1}', '{"version": 99, "run": "r", "pid": 1}'):
        if content is not None:
            (folder / "owner").write_text(content)
        with pytest.raises(RunFolderError):
            Vault.open(folder)


OWNER = """
import sys, time
from pathlib import Path
from outlast.runtime.tiers.vault import Vault
vault = Vault.create(Path(sys.argv[1]), sys.argv[2])
print("ready", flush=True)
time.sleep(60)
"""


def test_the_vault_of_a_killed_launcher_is_adopted_with_its_images(folder: Path) -> None:
    """Method: a process makes the vault, another seals in it, the owner gets SIGKILL."""
    process = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(folder), "run-1"], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        worker = Vault.open(folder)
        worker.reserve(0, SLOT, companions=1)
        put(worker, 9)
        with pytest.raises(RunFolderError, match="in use"):
            Vault.adopt(folder, "run-1")
    finally:
        process.kill()
        process.communicate(timeout=20)
    with pytest.raises(RunFolderError, match="belongs to"):
        Vault.adopt(folder, "run-2")
    vault = Vault.adopt(folder, "run-1")
    assert value(vault, 9) == 9
    with pytest.raises(RunFolderError, match="in use"):
        Vault.adopt(folder, "run-1")
    vault.remove()
    assert not folder.exists()


def test_only_old_vaults_of_dead_owners_are_cleaned(tmp_path: Path) -> None:
    """Method: four vaults, dead or alive, old or young by their files' times; a young seal makes an
    old vault young.
    """
    prefix = vault_folder("").name
    living, young, old, sealed, ownerless = (
        tmp_path / f"{prefix}{name}" for name in ("living", "young", "old", "sealed", "ownerless")
    )
    owner = Vault.create(living, "living")
    for path in (young, old, sealed):
        vault = Vault.create(path, path.name)
        if path == sealed:
            vault.reserve(0, SLOT, companions=1)
        vault.close()
    ownerless.mkdir()
    (tmp_path / "somebody-else").mkdir()
    then = time.time() - VAULT_STALE_S - 60
    for path in (living, old, sealed, ownerless, tmp_path / "somebody-else"):
        for item in (*path.rglob("*"), path):
            os.utime(item, (then, then))
    worker = Vault.open(sealed)
    put(worker, 1)
    worker.close()
    assert clean_stale(tmp_path) == tuple(sorted((old, ownerless)))
    assert sorted(path for path in tmp_path.iterdir()) == sorted(
        (living, young, sealed, tmp_path / "somebody-else")
    )
    owner.remove()


def test_views_outlive_close(vault: Vault) -> None:
    vault.reserve(0, SLOT, companions=1)
    put(vault, 1)
    image = vault.read(0, 1)
    page = vault.beacon(0, create=True)
    vault.close()
    page[0] = 1
    assert np.frombuffer(image.tensors["w"][1], np.float32).max() == 1
    fd = os.open(vault.folder / "owner", os.O_RDWR)
    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    vault._owner_fd = fd  # so that the fixture may remove it


def test_default_folder_is_per_user_and_run() -> None:
    run_id = uuid.uuid4().hex
    assert vault_folder(run_id) == Path(f"/dev/shm/outlast-{os.getuid()}-{run_id}")


def test_seals_have_their_own_place_per_slot(vault: Vault, folder: Path) -> None:
    vault.reserve(0, SLOT, companions=1)
    assert (folder / "rank-0" / "seals").stat().st_size == SEAL_BYTES * SLOTS_COUNT


@pytest.mark.parametrize("steps", [(0, 5, 10, 15, 17), (0, 20, 27), (3, 4, 5), (7, 20, 40)])
def test_who_seals_now_and_then_never_writes_over_the_newest_image(
    vault: Vault, steps: tuple[int, ...]
) -> None:
    """Steps on a grid and off it.

    After each, the one before is still there; sealing a step again takes its own slot.
    """
    vault.reserve(0, SLOT, companions=1)
    for before, step in zip((None, *steps), steps, strict=False):
        for _ in range(2):
            put(vault, step, slot=vault.slot_beside_newest(0, step))
            assert vault.steps(0) == ((step,) if before is None else (step, before))
