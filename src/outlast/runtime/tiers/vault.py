"""The vault: snapshots in shared memory that outlive their worker, and the launcher too.

The vault is a folder on tmpfs. The launcher creates it, and holds its `owner` file under flock as
long as the launcher or a fork of it lives. Workers open it. A rank has two slots, so that one
complete image is sealed at any time while the other is being written. Each node has one more area,
`transfer`, for replicated state that a survivor sends to a newcomer. kept_copies.py puts copies
beside them.

Units      Sizes are bytes, generations and steps are counted by the coordinator.
Promises   A sealed image survives SIGKILL of every process. Memory is allocated in `reserve`, and
           in a write only if an image has outgrown its slot.
Limits     It does not survive the node. Two processes that write one rank's slots at once are not
           kept apart: the coordinator gives a rank to one process at a time.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from outlast.errors import CapacityError, CorruptError, OutlastError, RunFolderError
from outlast.model.beacon import BEACON_BYTES, Beacon, unpack
from outlast.model.limits import METADATA_RESERVE_BYTES, SLOTS_COUNT, VAULT_SPARE_BYTES
from outlast.model.manifest import NO_RANK, Seal, run_hash
from outlast.runtime.cgroups import Hierarchy, memory_hierarchies
from outlast.runtime.tiers.area import Area, allocate, map_file
from outlast.runtime.tiers.image import Image, TensorPiece, image_bytes
from outlast.runtime.tiers.lease_page import LeasePage
from outlast.runtime.tiers.rank_areas import RankAreas
from outlast.runtime.tiers.room import room_in
from outlast.runtime.tiers.vault_keeper import VaultKeeper
from outlast.runtime.tiers.vault_owner import OWNER, lock_owner, open_owner, owner_record

_VOTES = "votes"
_GROWTH = 1.5  # how much more than an image that has outgrown its slot the new slots hold


class Vault:
    """The vault of one run. `create`, `open` or `adopt` make it.

    Mappings are made once and kept until `close`.
    """

    def __init__(
        self, folder: Path, run_id: str, owner_fd: int, groups: list[Hierarchy] | None = None
    ) -> None:
        """Prepare the vault.

        `groups`: the cgroups whose memory limits count; None: that of this process.
        """
        self.folder = folder
        self._groups = groups
        self.run_id = run_id
        self._owner_fd = owner_fd  # -1 for processes that only opened it
        self.run = run_hash(run_id)
        self._areas = RankAreas(folder, "rank", run=self.run)
        self._transfers = [
            Area(folder / name, run=self.run, rank=NO_RANK, slots_count=1)
            for name in ("transfer", "transfer-beside")
        ]
        self._beacons: dict[int, memoryview] = {}
        self.lease: LeasePage | None = None  # set in a process on one of several nodes
        # set in the owner: it holds the files that would be lost with their names
        self.keeper = VaultKeeper(folder) if owner_fd >= 0 else None

    @classmethod
    def create(cls, folder: Path, run_id: str) -> Vault:
        """Make a new, empty vault, owned by this process.

        Raises RunFolderError if one exists, and CapacityError if there is no room.
        """
        try:
            folder.mkdir(mode=0o700)
            fd = os.open(folder / OWNER, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.write(fd, owner_record(run_id))
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
        return cls(folder, run_id, fd)._held()

    def _held(self) -> Vault:
        """Hold the files open from now on, because their names may be removed at any time."""
        if self.keeper is not None:
            self.keeper.look()
        return self

    @classmethod
    def open(cls, folder: Path) -> Vault:
        """Open the vault that a launcher created, without becoming its owner.

        Raises RunFolderError.
        """
        fd, run_id = open_owner(folder)
        os.close(fd)
        return cls(folder, run_id, -1)

    @classmethod
    def adopt(cls, folder: Path, run_id: str) -> Vault:
        """Take over the vault of a launcher that died, with everything that is sealed in it.

        Raises RunFolderError while another process owns it, or if it is of another run.
        """
        fd, found = open_owner(folder)
        try:
            if found != run_id:
                raise RunFolderError(
                    f"the vault in {folder} belongs to the run {found}, not to {run_id}"
                )
            if not lock_owner(fd, folder):
                raise RunFolderError(
                    f"the vault in {folder} is in use",
                    hint="the run's launcher is alive, or a process that it forked",
                )
            os.ftruncate(fd, 0)
            os.pwrite(fd, owner_record(run_id), 0)
        except BaseException:
            os.close(fd)
            raise
        # votes of dead ranks must not count in a generation with the same number
        (folder / _VOTES).unlink(missing_ok=True)
        return cls(folder, run_id, fd)._held()

    def reserve(self, rank: int, slot_bytes: int, companions: int) -> None:
        """Allocate and touch the slots of `rank`, unless they are large enough.

        `companions` is how many ranks of this node will each need as much, this one included. Room
        for all of them is checked first, so that the first rank already reports a lack. Raises
        CapacityError.
        """
        area = self._area(rank)
        if min(area.allocated()) < slot_bytes:
            missing = companions * SLOTS_COUNT * slot_bytes - sum(
                min(size, slot_bytes) for size in self._allocated()
            )
            self.need_room(
                missing, f"{companions} ranks with {SLOTS_COUNT} slots of {slot_bytes:,} bytes each"
            )
        area.reserve(slot_bytes)

    def write(
        self,
        rank: int,
        *,
        generation: int,
        step: int,
        pieces: Sequence[TensorPiece],
        metadata: Mapping[str, str],
        slot: int | None = None,
    ) -> Seal:
        """Seal the image of `step` in one slot; the other slot is not touched.

        The slot is `step % SLOTS_COUNT` unless given. A caller that writes only every n-th step
        passes `step // n % SLOTS_COUNT`, because otherwise even n would always meet the same slot.
        Writing the same step again rewrites its slot in place. Raises CapacityError as `write_area`
        does, and StateError as `write_image` does.
        """
        slot = step % SLOTS_COUNT if slot is None else slot
        return self.write_area(self._area(rank), slot, generation, step, pieces, metadata)

    def memory(self, rank: int) -> list[memoryview]:
        """Return the slots of `rank` as this process has mapped them."""
        return self._area(rank).memory()

    def slot_beside_newest(self, rank: int, step: int) -> int:
        """Return the slot in which `step` can be sealed while the newest other image stays."""
        sealed = self._area(rank).sealed()
        others = [(seal.step, slot) for slot, seal in sealed.items() if seal.step != step]
        return (max(others)[1] + 1) % SLOTS_COUNT if others else step % SLOTS_COUNT

    def seals(self, rank: int) -> tuple[Seal, ...]:
        """Return the valid seals of `rank`, newest step first. `read` verifies the bytes."""
        return tuple(
            sorted(
                self._area(rank).sealed().values(),
                key=lambda seal: (seal.step, seal.generation),
                reverse=True,
            )
        )

    def steps(self, rank: int) -> tuple[int, ...]:
        """Return the steps that `rank` has sealed, newest first."""
        return tuple(seal.step for seal in self.seals(rank))

    def ranks(self) -> tuple[int, ...]:
        """Return the ranks that have slots here."""
        return self._areas.ranks()

    def forget_step(self, rank: int, step: int) -> None:
        """Remove the seals of `step`: its image must not be restored from again."""
        for slot in self._sealed_of(rank, step):
            self._area(rank).unseal(slot)

    def forget_after(self, rank: int, step: int) -> None:
        """Remove the seals of later steps, because those steps were rolled back."""
        for later in self.steps(rank):
            if later > step:
                self.forget_step(rank, later)

    def read(self, rank: int, step: int) -> Image:
        """Return the verified image: views of the slot, good until it is written again.

        Raises CorruptError.
        """
        found = self._newest_seal(rank, step)
        if found is None:
            raise self._no_image(rank, step)
        return self._area(rank).read(*found)

    def images(self, rank: int, step: int) -> list[tuple[int, Image]]:
        """Return every verified image of `step` with its slot.

        The images are views, which are valid until the slot is written again. A damaged image is
        left out if another one is not damaged. Raises CorruptError if there is none.
        """
        found: list[tuple[int, Image]] = []
        damaged: CorruptError | None = None
        for slot, seal in self._sealed_of(rank, step).items():
            try:
                found.append((slot, self._area(rank).read(slot, seal)))
            except CorruptError as error:
                damaged = error
        if found:
            return found
        raise damaged or self._no_image(rank, step)

    def _sealed_of(self, rank: int, step: int) -> dict[int, Seal]:
        """Return the valid seals of `step`, by slot."""
        sealed = self._area(rank).sealed()
        return {slot: seal for slot, seal in sealed.items() if seal.step == step}

    def _newest_seal(self, rank: int, step: int) -> tuple[int, Seal] | None:
        """Return slot and seal of `step` in the newest generation; None if none is sealed."""
        sealed = self._sealed_of(rank, step)
        if not sealed:
            return None
        slot = max(sealed, key=lambda slot: (sealed[slot].generation, slot))
        return slot, sealed[slot]

    def _no_image(self, rank: int, step: int) -> CorruptError:
        return CorruptError(
            f"the vault holds no sealed image of rank {rank} at step {step}",
            hint=f"it holds steps {list(self.steps(rank))}",
        )

    def confirm(self, rank: int, slot: int, seal: Seal) -> None:
        """Note that what `seal` describes is still valid, now that its writer has gone further."""
        self._area(rank).confirm(slot, seal)

    def unseal(self, rank: int, slot: int) -> None:
        """Remove one seal; the other slot stays."""
        self._area(rank).unseal(slot)

    def reserve_transfer(self, nbytes: int) -> None:
        """Make room for one image of replicated state of `nbytes`. Raises CapacityError."""
        self._make_room(self._transfers[0], nbytes)

    def write_transfer(
        self, generation: int, step: int, pieces: Sequence[TensorPiece], metadata: Mapping[str, str]
    ) -> Seal:
        """Write a transfer image over the one that is there, or beside one of the same step.

        It is written beside one of the same step because all other ranks may depend on that one,
        and this writer may die. Room for a second image is made the first time that one is needed,
        and kept. If there is no room, the first image is overwritten anyway. Raises what
        `Area.write` does.
        """
        first, beside = self._transfers
        there = self._transfers_of(None, step)
        kept = there[0][1] if there else None
        target = beside if kept is first and self._has_room_beside() else first
        for area in self._transfers:
            if area is not kept and area.sealed():
                area.unseal(0)
        return self.write_area(target, 0, generation, step, pieces, metadata)

    def expect_transfer(self) -> None:
        """Map the transfer image, if room has been made for it.

        A spare calls this, because it will have to read the image fast.
        """
        with contextlib.suppress(OutlastError, OSError):
            self._transfers[0].map_ahead(0)

    def read_transfer(self, generation: int | None, step: int) -> Image:
        """Return the newest verified transfer image of that step (and generation).

        Raises CorruptError if there is none.
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

    def sealed_transfer(self, generation: int | None, step: int) -> tuple[Path, Seal] | None:
        """Return the newest transfer image of `step` that is sealed, and the file that contains it.

        generation   the generation in which it was written; None: any
        """
        there = self._transfers_of(generation, step)
        return (there[0][1].slot_path(0), there[0][0]) if there else None

    def sealed_image(self, rank: int, step: int) -> tuple[Path, Seal] | None:
        """Return the image of `step` that `rank` has sealed, and the file that contains it."""
        found = self._newest_seal(rank, step)
        return None if found is None else (self._area(rank).slot_path(found[0]), found[1])

    def receive_image(self, rank: int, seal: Seal, fill: Callable[[memoryview], None]) -> None:
        """Receive an image that a rank has sealed on another node, as one of `rank`.

        `fill` and the errors are as for `receive_transfer`.
        """
        self.reserve(rank, seal.length, 1)
        slot = self.slot_beside_newest(rank, seal.step)
        self._area(rank).receive(slot, replace(seal, rank=rank), fill)

    def receive_transfer(self, seal: Seal, fill: Callable[[memoryview], None]) -> None:
        """Receive a transfer image that another node has sealed.

        `fill` writes its bytes. It is sealed only afterwards, and verified when it is read. Raises
        CapacityError if there is no room, and what `fill` raises.
        """
        area = self._transfers[0]
        self._make_room(area, seal.length)
        for one in self._transfers:
            if one.sealed():
                one.unseal(0)
        area.receive(0, seal, fill)

    def write_area(
        self,
        area: Area,
        slot: int,
        generation: int,
        step: int,
        pieces: Sequence[TensorPiece],
        metadata: Mapping[str, str],
        *,
        metadata_room: int = METADATA_RESERVE_BYTES,
    ) -> Seal:
        """Seal an image in one slot of an area. Slots that it has outgrown are made larger.

        Raises CapacityError if there is no room for that.
        """

        def write() -> Seal:
            return area.write(
                slot,
                generation=generation,
                step=step,
                pieces=pieces,
                metadata=metadata,
                metadata_room=metadata_room,
            )

        try:
            return write()
        except CapacityError:
            specs = [piece.spec for piece in pieces]
            sizes, needed = area.allocated(), image_bytes(specs, metadata_bytes=metadata_room)
        if needed > sizes[slot]:
            larger = int(needed * _GROWTH)
            self.need_room(
                sum(larger - size for size in sizes),
                f"an image of {needed:,} bytes, which has outgrown its slot of {sizes[slot]:,}",
            )
            area.reserve(larger)
        else:
            # Another process has made the slot larger since this one mapped it.
            area.map_ahead(slot, needed)
        return write()

    def _transfers_of(self, generation: int | None, step: int) -> list[tuple[Seal, Area]]:
        """Return the transfer images, the newest first."""
        found = [
            (seal, area)
            for area in self._transfers
            for seal in area.sealed().values()
            if seal.step == step and generation in (None, seal.generation)
        ]
        return sorted(found, key=lambda one: -one[0].generation)

    def _has_room_beside(self) -> bool:
        """Make room for a second transfer image. Return False if there is none."""
        first, beside = self._transfers
        try:
            self._make_room(beside, *first.allocated())
        except CapacityError:
            return False
        return True

    def _make_room(self, area: Area, nbytes: int) -> None:
        (size,) = area.allocated()
        if size < nbytes:
            self.need_room(nbytes - size, f"a transfer image of {nbytes:,} bytes")
        area.reserve(nbytes)

    def beacon(self, worker: int, create: bool) -> memoryview:
        """Return BEACON_BYTES of shared memory in which a worker says where it is.

        Raises CapacityError, or FileNotFoundError if it has to exist already.
        """
        path = self.folder / f"beacon-{worker}"
        if worker not in self._beacons:
            if create:
                _make(path, BEACON_BYTES, "beacon")
            page = map_file(path)[:BEACON_BYTES]
            if len(page) < BEACON_BYTES:
                # a new file gets its name before it gets its bytes
                raise FileNotFoundError(f"{path} is just being made")
            self._beacons[worker] = page
        return self._beacons[worker]

    def beacons(self) -> Iterator[Beacon]:
        """Yield the beacons in this vault, those of workers that have just ended too."""
        for path in self.folder.glob("beacon-*"):
            with contextlib.suppress(OSError):
                page = path.read_bytes()[:BEACON_BYTES]
                beacon = unpack(memoryview(page)) if len(page) == BEACON_BYTES else None
                if beacon is not None and not beacon.torn:
                    yield beacon

    def newest_committed(self) -> int:
        """Return the newest step that the workers' beacons in this vault show; 0 without any."""
        return max((beacon.step for beacon in self.beacons()), default=0)

    def vote_memory(self, size: int) -> memoryview:
        """Return shared memory in which the ranks of this node vote. It is all zeros at first.

        It is made once: later generations need no room. Raises CapacityError.
        """
        path = self.folder / _VOTES
        _make(path, size, "memory for votes")
        return map_file(path)

    def newest_transfer(self) -> tuple[int, ...]:
        """Return generation and step of the newest transfer image, or () if there is none."""
        seals = [seal for area in self._transfers for seal in area.sealed().values()]
        return max(((seal.generation, seal.step) for seal in seals), default=())

    def drop_beacon(self, worker: int) -> None:
        """Remove the beacon of a worker that has ended."""
        self._beacons.pop(worker, None)
        if self.keeper is not None:
            self.keeper.forget(f"beacon-{worker}")
        (self.folder / f"beacon-{worker}").unlink(missing_ok=True)

    def drop_folder(self, name: str) -> None:
        """Remove a folder of the vault, and give its memory back once nothing maps it."""
        if self.keeper is not None:
            self.keeper.forget_folder(name)
        shutil.rmtree(self.folder / name, ignore_errors=True)

    def close(self) -> None:
        """Close all files; the folder stays. Views that were given out stay valid."""
        self._areas.close()
        for area in self._transfers:
            area.close()
        self._beacons.clear()
        if self.keeper is not None:
            self.keeper.close()
        if self._owner_fd >= 0:
            os.close(self._owner_fd)
            self._owner_fd = -1

    def remove(self) -> None:
        """Remove the folder: the clean end of a run. Only the owner may; it may be called twice."""
        assert self._owner_fd >= 0 or not self.folder.exists(), "a vault is removed by its owner"
        shutil.rmtree(self.folder, ignore_errors=True)
        self.close()

    def _area(self, rank: int) -> Area:
        return self._areas.of(rank)

    def _allocated(self) -> Iterator[int]:
        """Yield the bytes of each slot of each rank."""
        for rank in self.ranks():
            yield from self._area(rank).allocated()

    def need_room(self, missing: int, what: str) -> None:
        """Raise CapacityError unless there is room for `missing` more bytes.

        The error says `what` they are for.
        """
        room = room_in(self.folder, memory_hierarchies() if self._groups is None else self._groups)
        if missing + VAULT_SPARE_BYTES > room.free:
            raise CapacityError(
                f"the vault needs {max(missing, 0) + VAULT_SPARE_BYTES:,} more bytes in"
                f" {self.folder} for {what}; {room.free:,} are available ({room.of})",
                hint=f"{room.hint}, or start fewer workers per node",
            )


def _make(path: Path, size: int, what: str) -> None:
    """Create a file of `size` bytes. Raises CapacityError, which names `what` it was for."""
    try:
        allocate(path, size)
    except OSError as error:
        path.unlink(missing_ok=True)
        raise CapacityError(
            f"no {what} can be made in {path}: {error.strerror}", hint="make room in /dev/shm"
        ) from error
