"""The vault: snapshots in shared memory that outlive the worker that made them, and the launcher
too.

A folder on tmpfs. The launcher makes it and holds its `owner` file under flock as long as it (or a
fork of it) lives; workers open it. A rank has two slots, so that one whole image lies sealed at any
time while the other is being written. One more area per node, `transfer`, carries replicated state
from a survivor to a newcomer.

Units      Sizes are bytes, generations and steps are counted by the coordinator.
Promises   A sealed image survives SIGKILL of every process. Memory is allocated in `reserve`, and
           in a write only where an image has outgrown its slot.
Not        It does not survive the node. Two processes that write one rank's slots at once are not
           kept apart:
promised   the coordinator gives a rank to one process at a time.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import shutil
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from outlast.errors import CapacityError, CorruptError, OutlastError, RunFolderError
from outlast.model.beacon import BEACON_BYTES, unpack
from outlast.model.limits import SLOTS_COUNT, VAULT_SPARE_BYTES, VAULT_STALE_S
from outlast.model.manifest import NO_RANK, Seal, run_hash
from outlast.runtime import clock
from outlast.runtime.cgroups import Hierarchy, memory_hierarchies, memory_room
from outlast.runtime.tiers.area import Area, allocate, map_file
from outlast.runtime.tiers.image import Image, Piece, image_bytes
from outlast.runtime.tiers.vault_keeper import VaultKeeper

SHARED_MEMORY = Path("/dev/shm")
_OWNER = "owner"
_OWNER_VERSION = 1
_BALLOTS = "ballots"
_GROWTH = 1.5  # how much more than an image that has outgrown its slot the new slots hold


def vault_folder(run_id: str) -> Path:
    """Where the vault of a run lies unless somebody says otherwise."""
    return SHARED_MEMORY / f"{_prefix()}{run_id}"


class Vault:
    """Made by `create`, `open` or `adopt`. Mappings are made once and kept until `close`."""

    def __init__(
        self, folder: Path, run_id: str, owner_fd: int, groups: list[Hierarchy] | None = None
    ) -> None:
        """`groups`: whose memory limits count; this process's own unless given."""
        self.folder = folder
        self._groups = groups
        self.run_id = run_id
        self._owner_fd = owner_fd  # -1 for those who only opened it
        self._run = run_hash(run_id)
        self._ranks: dict[int, Area] = {}
        self._transfers = [
            Area(folder / name, run=self._run, rank=NO_RANK, slots_count=1)
            for name in ("transfer", "transfer-beside")
        ]
        self._beacons: dict[int, memoryview] = {}
        # of the owner: it holds what would be lost with its name
        self.keeper = VaultKeeper(folder) if owner_fd >= 0 else None

    @classmethod
    def create(cls, folder: Path, run_id: str) -> Vault:
        """A new, empty vault, owned by this process.

        Raises RunFolderError where one exists, CapacityError where there is no room.
        """
        try:
            folder.mkdir(mode=0o700)
            fd = os.open(folder / _OWNER, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.write(
                fd,
                json.dumps({"version": _OWNER_VERSION, "run": run_id, "pid": os.getpid()}).encode(),
            )
        except FileExistsError as error:
            raise RunFolderError(
                f"there is a vault already in {folder}",
                hint="go on with that run by --resume, or remove the folder",
            ) from error
        except OSError as error:
            shutil.rmtree(folder, ignore_errors=True)
            raise CapacityError(
                f"no vault can be made in {folder}: {error.strerror}",
                hint="/dev/shm must be writable and not full",
            ) from error
        return cls(folder, run_id, fd)

    @classmethod
    def open(cls, folder: Path) -> Vault:
        """The vault that a launcher made. Takes no part in its ownership. Raises RunFolderError."""
        fd, run_id = _open_owner(folder)
        os.close(fd)
        return cls(folder, run_id, -1)

    @classmethod
    def adopt(cls, folder: Path, run_id: str) -> Vault:
        """Take over the vault of a launcher that died, with all that is sealed in it.

        Raises RunFolderError while it is owned, or of another run.
        """
        fd, found = _open_owner(folder)
        try:
            if found != run_id:
                raise RunFolderError(
                    f"the vault in {folder} belongs to the run {found}, not to {run_id}"
                )
            if not _lock(fd, folder):
                raise RunFolderError(
                    f"the vault in {folder} is in use",
                    hint="the run's launcher is alive, or a process that it forked",
                )
            os.ftruncate(fd, 0)
            os.pwrite(
                fd,
                json.dumps({"version": _OWNER_VERSION, "run": run_id, "pid": os.getpid()}).encode(),
                0,
            )
        except BaseException:
            os.close(fd)
            raise
        # what dead ranks have voted must not count in a generation of the same number
        (folder / _BALLOTS).unlink(missing_ok=True)
        return cls(folder, run_id, fd)

    def reserve(self, rank: int, slot_bytes: int, companions: int) -> None:
        """Allocate and touch the slots of `rank`; nothing happens where they are large enough.

        `companions` is how many ranks of this node will each need as much, this one included: room
        for all of them is looked for first, so that the first rank to come speaks up. Raises
        CapacityError.
        """
        area = self._area(rank)
        if min(area.allocated()) < slot_bytes:
            missing = companions * SLOTS_COUNT * slot_bytes - sum(
                min(size, slot_bytes) for size in self._allocated()
            )
            self._require(
                missing, f"{companions} ranks with {SLOTS_COUNT} slots of {slot_bytes:,} bytes each"
            )
        area.reserve(slot_bytes)

    def write(
        self,
        rank: int,
        *,
        generation: int,
        step: int,
        pieces: Sequence[Piece],
        metadata: Mapping[str, str],
        slot: int | None = None,
    ) -> Seal:
        """Seal the image of `step` in one slot; the other slot is not touched.

        The slot is `step % SLOTS_COUNT` unless given: who writes every n-th step only passes `step
        // n % SLOTS_COUNT`, or even n would meet one slot again and again. Writing the same step
        again rewrites its slot in place. Slots that the image has outgrown are made larger. Raises
        CapacityError where there is no room for that, StateError as `write_image`.
        """
        slot = step % SLOTS_COUNT if slot is None else slot
        return self._write(self._area(rank), slot, generation, step, pieces, metadata)

    def slot_beside_newest(self, rank: int, step: int) -> int:
        """The slot in which `step` can be sealed while the newest other image stays, whatever lies
        between their steps.
        """
        others = [
            (seal.step, slot)
            for slot, seal in self._area(rank).sealed().items()
            if seal.step != step
        ]
        return (max(others)[1] + 1) % SLOTS_COUNT if others else step % SLOTS_COUNT

    def seals(self, rank: int) -> tuple[Seal, ...]:
        """Valid seals of `rank`, newest step first.

        The bytes below are not verified; `read` does that.
        """
        return tuple(
            sorted(
                self._area(rank).sealed().values(),
                key=lambda seal: (seal.step, seal.generation),
                reverse=True,
            )
        )

    def steps(self, rank: int) -> tuple[int, ...]:
        return tuple(seal.step for seal in self.seals(rank))

    def ranks(self) -> tuple[int, ...]:
        """Ranks that have slots here."""
        return tuple(
            sorted(
                int(path.name[5:])
                for path in self.folder.glob("rank-*")
                if path.name[5:].isdecimal()
            )
        )

    def forget_step(self, rank: int, step: int) -> None:
        """Take the seals of `step` away: its image must not be restored from again."""
        for slot, seal in self._area(rank).sealed().items():
            if seal.step == step:
                self._area(rank).unseal(slot)

    def forget_after(self, rank: int, step: int) -> None:
        """Take the seals of later steps away: they are of a past that was rolled back."""
        for later in self.steps(rank):
            if later > step:
                self.forget_step(rank, later)

    def read(self, rank: int, step: int) -> Image:
        """The verified image: views of the slot, good until it is written again.

        Raises CorruptError.
        """
        area = self._area(rank)
        found = [
            (seal.generation, slot, seal)
            for slot, seal in area.sealed().items()
            if seal.step == step
        ]
        if not found:
            raise CorruptError(
                f"the vault holds no sealed image of rank {rank} at step {step}",
                hint=f"it holds steps {list(self.steps(rank))}",
            )
        _, slot, seal = max(found)
        return area.read(slot, seal)

    def images(self, rank: int, step: int) -> list[tuple[int, Image]]:
        """Return every verified image of `step` with its slot: views, good until the slot is
        written again.

        Raises CorruptError where there is none; one that is damaged is left out if another is
        whole.
        """
        area = self._area(rank)
        found: list[tuple[int, Image]] = []
        damaged: CorruptError | None = None
        for slot, seal in area.sealed().items():
            if seal.step == step:
                try:
                    found.append((slot, area.read(slot, seal)))
                except CorruptError as error:
                    damaged = error
        if found:
            return found
        raise damaged or CorruptError(
            f"the vault holds no sealed image of rank {rank} at step {step}",
            hint=f"it holds steps {list(self.steps(rank))}",
        )

    def unseal(self, rank: int, slot: int) -> None:
        """Take one seal away; the other slot stays."""
        self._area(rank).unseal(slot)

    def reserve_transfer(self, nbytes: int) -> None:
        """Room for one image of replicated state of `nbytes`. Raises CapacityError."""
        self._make_room(self._transfers[0], nbytes)

    def write_transfer(
        self, generation: int, step: int, pieces: Sequence[Piece], metadata: Mapping[str, str]
    ) -> Seal:
        """Over the image that is there, or beside it if that is of the same step: all others may
        depend on it, and this writer may die.

        Room for a second image is made the first time that one is needed, and kept. Where there is
        none, the first is written over all the same. Errors as `Area.write`.
        """
        first, beside = self._transfers
        there = self._transfers_of(None, step)
        kept = there[0][1] if there else None
        target = beside if kept is first and self._has_room_beside() else first
        for area in self._transfers:
            if area is not kept and area.sealed():
                area.unseal(0)
        return self._write(target, 0, generation, step, pieces, metadata)

    def expect_transfer(self) -> None:
        """Map the transfer image, if room has been made for it: for a spare, which will have to
        read it in a hurry.
        """
        with contextlib.suppress(OutlastError, OSError):
            self._transfers[0].map_ahead(0)

    def read_transfer(self, generation: int | None, step: int) -> Image:
        """The newest verified transfer image of that step (and generation).

        Raises CorruptError where there is none.
        """
        there = self._transfers_of(generation, step)
        for seal, area in there[:-1]:
            with contextlib.suppress(CorruptError):
                return area.read(0, seal)
        if there:
            seal, area = there[-1]
            return area.read(0, seal)
        found = [
            f"step {seal.step}, generation {seal.generation}"
            for area in self._transfers
            for seal in area.sealed().values()
        ]
        raise CorruptError(
            f"the transfer image is not of step {step}, generation {generation}, but of"
            f" {' and '.join(found) or 'nothing'}"
        )

    def _write(
        self,
        area: Area,
        slot: int,
        generation: int,
        step: int,
        pieces: Sequence[Piece],
        metadata: Mapping[str, str],
    ) -> Seal:
        try:
            return area.write(
                slot, generation=generation, step=step, pieces=pieces, metadata=metadata
            )
        except CapacityError:
            sizes, needed = area.allocated(), image_bytes([piece.spec for piece in pieces])
            if needed <= sizes[slot]:
                raise
        larger = int(needed * _GROWTH)
        self._require(
            sum(larger - size for size in sizes),
            f"an image of {needed:,} bytes, which has outgrown its slot of {sizes[slot]:,}",
        )
        area.reserve(larger)
        return area.write(slot, generation=generation, step=step, pieces=pieces, metadata=metadata)

    def _transfers_of(self, generation: int | None, step: int) -> list[tuple[Seal, Area]]:
        """Newest first."""
        found = [
            (seal, area)
            for area in self._transfers
            for seal in area.sealed().values()
            if seal.step == step and generation in (None, seal.generation)
        ]
        return sorted(found, key=lambda one: -one[0].generation)

    def _has_room_beside(self) -> bool:
        first, beside = self._transfers
        try:
            self._make_room(beside, *first.allocated())
        except CapacityError:
            return False
        return True

    def _make_room(self, area: Area, nbytes: int) -> None:
        (size,) = area.allocated()
        if size < nbytes:
            self._require(nbytes - size, f"a transfer image of {nbytes:,} bytes")
        area.reserve(nbytes)

    def beacon(self, worker: int, create: bool) -> memoryview:
        """BEACON_BYTES of shared memory in which a worker says where it is.

        Raises CapacityError, or FileNotFoundError where it is to exist.
        """
        path = self.folder / f"beacon-{worker}"
        if worker not in self._beacons:
            if create:
                _make(path, BEACON_BYTES, "beacon")
            page = map_file(path)[:BEACON_BYTES]
            if len(page) < BEACON_BYTES:
                # its name comes before its bytes
                raise FileNotFoundError(f"{path} is just being made")
            self._beacons[worker] = page
        return self._beacons[worker]

    def newest_committed(self) -> int:
        """The newest step that the beacons of the workers in this vault tell of; 0 without any."""
        newest = 0
        for path in self.folder.glob("beacon-*"):
            with contextlib.suppress(OSError):
                page = path.read_bytes()[:BEACON_BYTES]
                beacon = unpack(memoryview(page)) if len(page) == BEACON_BYTES else None
                if beacon is not None and not beacon.torn:
                    newest = max(newest, beacon.step)
        return newest

    def ballots(self, size: int) -> memoryview:
        """Shared memory in which the ranks of this node vote; zeros at first.

        Made once: later generations need no room. Raises CapacityError.
        """
        path = self.folder / _BALLOTS
        _make(path, size, "ballot box")
        return map_file(path)

    def drop_beacon(self, worker: int) -> None:
        self._beacons.pop(worker, None)
        if self.keeper is not None:
            self.keeper.forget(f"beacon-{worker}")
        (self.folder / f"beacon-{worker}").unlink(missing_ok=True)

    def close(self) -> None:
        """Let go of everything; the folder stays. Views that were given out stay valid."""
        for area in (*self._ranks.values(), *self._transfers):
            area.close()
        self._beacons.clear()
        if self.keeper is not None:
            self.keeper.close()
        if self._owner_fd >= 0:
            os.close(self._owner_fd)
            self._owner_fd = -1

    def remove(self) -> None:
        """The clean end of a run. Only the owner may; may be called twice."""
        assert self._owner_fd >= 0 or not self.folder.exists(), "a vault is removed by its owner"
        shutil.rmtree(self.folder, ignore_errors=True)
        self.close()

    def _area(self, rank: int) -> Area:
        if rank not in self._ranks:
            self._ranks[rank] = Area(
                self.folder / f"rank-{rank}", run=self._run, rank=rank, slots_count=SLOTS_COUNT
            )
        return self._ranks[rank]

    def _allocated(self) -> Iterator[int]:
        for rank in self.ranks():
            yield from self._area(rank).allocated()

    def _require(self, missing: int, what: str) -> None:
        room = _room(self.folder, memory_hierarchies() if self._groups is None else self._groups)
        if missing + VAULT_SPARE_BYTES > room.free:
            raise CapacityError(
                f"the vault needs {max(missing, 0) + VAULT_SPARE_BYTES:,} more bytes in"
                f" {self.folder} for {what}; {room.free:,} are available ({room.of})",
                hint=f"{room.hint}, or start fewer workers per node",
            )


def _make(path: Path, size: int, what: str) -> None:
    try:
        allocate(path, size)
    except OSError as error:
        path.unlink(missing_ok=True)
        raise CapacityError(
            f"no {what} can be made in {path}: {error.strerror}", hint="make room in /dev/shm"
        ) from error


def clean_stale(parent: Path = SHARED_MEMORY) -> tuple[Path, ...]:
    """Remove this user's vaults whose owner is dead and in which nothing was sealed for
    VAULT_STALE_S; says which.
    """
    removed = []
    for folder in sorted(parent.glob(f"{_prefix()}*")):
        # another user's, or gone meanwhile: not ours to clean
        with contextlib.suppress(OutlastError, OSError):
            if _is_stale(folder):
                removed.append(folder)
    return tuple(removed)


def _is_stale(folder: Path) -> bool:
    # Removes while the lock is held, so that nobody adopts what is going away.
    if not _is_ours(folder) or clock.wall_s() - _newest_change_s(folder) < VAULT_STALE_S:
        return False
    try:
        fd = os.open(folder / _OWNER, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        shutil.rmtree(folder)
        return True
    try:
        if not _lock(fd, folder):
            return False
        shutil.rmtree(folder)
        return True
    finally:
        os.close(fd)


def _newest_change_s(folder: Path) -> float:
    paths = (folder, folder / _OWNER, *folder.glob("*/seals"))
    return max(path.stat().st_mtime for path in paths if path.exists())


def _prefix() -> str:
    return f"outlast-{os.getuid()}-"


def _is_ours(folder: Path) -> bool:
    found = folder.lstat()
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()


def _open_owner(folder: Path) -> tuple[int, str]:
    try:
        if not _is_ours(folder):
            raise RunFolderError(
                f"{folder} is not a folder of this user",
                hint="a vault is opened by the user who made it",
            )
        fd = os.open(folder / _OWNER, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError as error:
        raise RunFolderError(f"there is no vault in {folder}") from error
    try:
        fields = json.loads(os.pread(fd, 65536, 0))
        if fields["version"] != _OWNER_VERSION:
            raise RunFolderError(
                f"the vault in {folder} is of version {fields['version']}, not {_OWNER_VERSION}",
                hint="remove it, or use the outlast that made it",
            )
        return fd, str(fields["run"])
    except (ValueError, KeyError, TypeError) as error:
        os.close(fd)
        raise RunFolderError(
            f"{folder / _OWNER} is not an owner file",
            hint="the launcher died while it made the vault; remove the folder",
        ) from error
    except BaseException:
        os.close(fd)
        raise


def _lock(fd: int, folder: Path) -> bool:
    """Whether the owner file is now ours: nobody held it, and it is still the one that lies in
    `folder`.
    """
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return (folder / _OWNER).stat().st_ino == os.fstat(fd).st_ino
    except FileNotFoundError:
        return False
    except OSError as error:
        if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
            return False
        raise


@dataclass(frozen=True, slots=True)
class _Room:
    """Bytes that can still be allocated, what sets that limit, and how it is raised."""

    free: int
    of: str
    hint: str


def _room(folder: Path, groups: list[Hierarchy]) -> _Room:
    """The tightest limit. tmpfs may be larger than what memory the machine or the control group has
    left: an allocation would end in the OOM killer.
    """
    found = os.statvfs(folder)
    size_hint = (
        "make /dev/shm larger (docker run --shm-size=..., mount -o remount,size=... /dev/shm), free"
        " memory"
    )
    rooms = [_Room(found.f_bavail * found.f_frsize, "free space of the file system", size_hint)]
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            rooms.append(
                _Room(int(line.split()[1]) * 1024, "memory of this machine", "free memory")
            )
    if (limited := memory_room(groups)) is not None:
        limit_hint = (
            "raise that limit (docker run --memory=..., limits.memory of a pod, MemoryMax= of a"
            " unit)"
        )
        rooms.append(
            _Room(limited[0], f"memory limit of the control group {limited[1]}", limit_hint)
        )
    return min(rooms, key=lambda room: room.free)
