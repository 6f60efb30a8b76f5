"""Durable checkpoints in a local folder: shards first, manifest last.

    <root>/step-000000000012/rank-0.safetensors ...    each written under another name, synced,
                                                       renamed
    <root>/step-000000000012/manifest.json             likewise, when all shards it names are there

A checkpoint exists once its manifest does. Files that a save leaves before that are never offered
for restore. Reads verify checksums. Several ranks write into one folder. One of them writes the
manifest, once it knows all entries.

Errors     CapacityError if the disk is full, and RunFolderError if nothing may be written to it, at
           any point of a save. The checkpoints before it stay valid.
Limits     One run saves into a root at a time. A shard is the whole image of a rank.
           Replicated state that is split among the shards (split_state.py) is checked to be whole
           before its manifest is written. `Disk` promises what fsync promises on this file system,
           and no more.
"""

from __future__ import annotations

import errno
import io
import os
import shutil
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import xxhash

from outlast.engine import durable
from outlast.errors import CapacityError, CorruptError, RunFolderError, message_of
from outlast.model.limits import CHECKSUM_BLOCK_BYTES, MANIFEST_MAX_BYTES, WRITEBACK_BYTES
from outlast.model.manifest import SPLIT, FileEntry, Manifest, decode_manifest
from outlast.runtime.folders.given import read_small
from outlast.runtime.linux import start_writeback
from outlast.runtime.tiers.image import (
    Image,
    ImageHeader,
    TensorPiece,
    image_chunks,
    read_header,
    read_image,
)
from outlast.runtime.tiers.split_state import check_files

MANIFEST_NAME = "manifest.json"
IMAGE_SUFFIX = ".safetensors"
_TEMPORARY = ".tmp"
_REFUSED = "refused-"


@dataclass(frozen=True, slots=True)
class CheckpointFolder:
    """A folder whose manifest can be read. Its other files may still be damaged."""

    folder: Path
    manifest: Manifest


@dataclass(frozen=True, slots=True)
class Refusal:
    """A checkpoint that was refused, and why.

    is_others   nothing is wrong with it, but another run or program has written it
    """

    folder: Path
    reason: str
    is_others: bool = False


@dataclass(frozen=True, slots=True)
class FolderSearch:
    """The result of a search for the newest good checkpoint.

    `checkpoint` is the newest whose every byte is as written, or None; `refused` are the newer
    ones that are not, newest first.
    """

    checkpoint: CheckpointFolder | None
    refused: tuple[Refusal, ...]


class Disk:
    """The operations that change the disk. A process may end at each of them.

    Tests end the process at each of them in turn.
    """

    def make_folder(self, folder: Path) -> None:
        """Create a folder, and the folders above it, unless they exist."""
        folder.mkdir(parents=True, exist_ok=True)

    def write(self, fd: int, data: memoryview) -> None:
        """Write all of `data`."""
        while len(data):
            data = data[os.write(fd, data) :]

    def sync(self, fd: int) -> None:
        """Wait until a file or a folder is on the disk."""
        os.fsync(fd)

    def rename(self, source: Path, target: Path) -> None:
        """Rename a file or a folder. It replaces what had that name."""
        source.replace(target)

    def remove(self, folder: Path) -> None:
        """Remove a checkpoint, or a link to one."""
        if folder.is_symlink():
            # The user has moved the checkpoint elsewhere, so its files must not be removed.
            folder.unlink()
            return
        # The manifest is removed first, so that an unfinished removal leaves no checkpoint in which
        # files are missing.
        (folder / MANIFEST_NAME).unlink(missing_ok=True)
        shutil.rmtree(folder)


DISK = Disk()


def checkpoint_folder(root: Path, step: int) -> Path:
    """Return the folder of the checkpoint of `step`."""
    return root / f"step-{step:012d}"


def shard_name(rank: int) -> str:
    """Return the name of the file that `rank` writes."""
    return f"rank-{rank}{IMAGE_SUFFIX}"


# --- saving ---------------------------------------------------------------------------------------


def write_shard(
    folder: Path,
    rank: int,
    *,
    pieces: Sequence[TensorPiece],
    metadata: Mapping[str, str],
    disk: Disk = DISK,
) -> FileEntry:
    """Write the image of `pieces` as the shard of `rank`. Return its entry for the manifest.

    Raises CapacityError, and RunFolderError if the folder already has a manifest. In that case,
    call `set_aside` first, unless the step is saved already.
    """
    chunks = image_chunks(pieces=pieces, metadata=metadata)
    return write_file(folder, shard_name(rank), chunks, disk=disk)


def write_shard_bytes(
    folder: Path, rank: int, image: memoryview, *, disk: Disk = DISK
) -> FileEntry:
    """Write an image that exists already, as in a slot of the vault, as the shard of `rank`.

    Its entry's checksum is that of the bytes as read now.
    """
    chunks = (
        image[at : at + CHECKSUM_BLOCK_BYTES] for at in range(0, len(image), CHECKSUM_BLOCK_BYTES)
    )
    return write_file(folder, shard_name(rank), chunks, disk=disk)


def write_manifest(folder: Path, manifest: Manifest, *, disk: Disk = DISK) -> CheckpointFolder:
    """Write the manifest, which makes the checkpoint exist.

    Raises CorruptError if a file that the manifest names is not there with its length, or if the
    files lack a part of the state that was split among them, and CapacityError.
    """
    for entry in manifest.files:
        if _size(folder / entry.name) != entry.length:
            raise CorruptError(
                f"{folder / entry.name} {_length_words(folder / entry.name, entry)}",
                hint="the save is given up",
            )
    if manifest.kind == SPLIT:
        headers = {entry.name: header_of(folder / entry.name, entry) for entry in manifest.files}
        check_split(CheckpointFolder(folder, manifest), headers)
    with _explained_errors(folder):
        _sync_folder(folder, disk)  # the shards' names are durable before the manifest names them
        _write_file(folder / MANIFEST_NAME, (memoryview(manifest.encode()),), disk)
        _sync_folder(folder, disk)
        _sync_folder(folder.parent, disk)
    return CheckpointFolder(folder, manifest)


def write_file(
    folder: Path, name: str, chunks: Iterable[memoryview], *, disk: Disk = DISK
) -> FileEntry:
    """Write a file of a checkpoint. Return its entry for the manifest. Raises as `write_shard`."""
    if (folder / MANIFEST_NAME).exists():
        raise RunFolderError(
            f"{folder} holds a checkpoint already",
            hint="it is that of this step; set it aside if it was refused",
        )
    with _explained_errors(folder):
        disk.make_folder(folder)
        return _write_file(folder / name, chunks, disk)


def _write_file(path: Path, chunks: Iterable[memoryview], disk: Disk) -> FileEntry:
    temporary = path.with_name(path.name + _TEMPORARY)
    digest, length, begun = xxhash.xxh3_64(), 0, 0
    # A process that was killed while the disk hung may still write into the file of that name.
    temporary.unlink(missing_ok=True)
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        for chunk in chunks:
            disk.write(fd, chunk)
            digest.update(chunk)
            length += len(chunk)
            if length - begun >= WRITEBACK_BYTES:
                # The disk works while the next bytes are summed and copied, so fsync has less to
                # do.
                start_writeback(fd, begun, length - begun)
                begun = length
        disk.sync(fd)
    except OSError:
        temporary.unlink(missing_ok=True)  # this frees the space on a full disk at once
        raise
    finally:
        os.close(fd)
    disk.rename(temporary, path)
    return FileEntry(path.name, length, digest.intdigest())


def _sync_folder(folder: Path, disk: Disk) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        disk.sync(fd)
    finally:
        os.close(fd)


@contextmanager
def _explained_errors(folder: Path) -> Iterator[None]:
    """Turn errors of a full or read-only disk into CapacityError and RunFolderError."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
            raise RunFolderError(
                f"the checkpoint in {folder} could not be written: {error.strerror}",
                hint="it needs the right to write there, and a file system that is not mounted"
                " read-only",
            ) from error
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise CapacityError(
            f"the checkpoint in {folder} could not be written: {error.strerror}",
            hint="make room, or keep fewer checkpoints",
        ) from error


# --- finding and reading --------------------------------------------------------------------------


def checkpoints(root: Path) -> tuple[CheckpointFolder, ...]:
    """Return the checkpoints with a readable manifest, newest first.

    Shards are not verified: `newest_good` and `verify` do that.
    """
    read = (read_manifest(one.folder) for one in step_folders(root) if one.has_manifest)
    return tuple(found for found in read if isinstance(found, CheckpointFolder))


def verify(
    checkpoint: CheckpointFolder, *, seen: Callable[[int], None] = lambda count: None
) -> None:
    """Read every byte. `seen` is called with the number of bytes of each read.

    Raises CorruptError for the first file that is missing, cut short or changed, or whose header
    does not describe it, and if the files lack a part of the state that was split among them.
    """
    block, headers = memoryview(bytearray(CHECKSUM_BLOCK_BYTES)), dict[str, ImageHeader]()
    for entry in checkpoint.manifest.files:
        digest = xxhash.xxh3_64()
        with opened(checkpoint.folder / entry.name, entry) as file:
            while count := file.readinto(block):
                digest.update(block[:count])
                seen(count)
        if digest.intdigest() != entry.checksum:
            raise CorruptError(f"{checkpoint.folder / entry.name} does not match its checksum")
        if entry.name.endswith(IMAGE_SUFFIX):
            headers[entry.name] = header_of(checkpoint.folder / entry.name, entry)
    check_split(checkpoint, headers)


def header_of(path: Path, entry: FileEntry) -> ImageHeader:
    """Return the header of an image. Raises CorruptError unless it describes the file.

    That is so even if the checksum of the file is right.
    """
    with opened(path, entry) as file:

        def read(begin: int, size: int) -> bytes:
            data = bytearray(size)
            file.seek(begin)
            read_fully(file, memoryview(data))
            return bytes(data)

        try:
            return read_header(read, entry.length)
        except CorruptError as error:
            raise CorruptError(f"{path}: {error.message}") from None


def check_split(checkpoint: CheckpointFolder, headers: Mapping[str, ImageHeader]) -> None:
    """Raise CorruptError if state was split among the files, and they do not have all of it.

    headers   of all images, by the name of the file
    """
    if checkpoint.manifest.kind != SPLIT:
        return
    try:
        check_files(headers, shard_name(0))
    except CorruptError as error:
        raise CorruptError(f"{checkpoint.folder}: {error.message}", hint=error.hint) from None


@dataclass(frozen=True, slots=True)
class LocalStepFolder:
    """The folder of a step (engine/durable.py)."""

    folder: Path
    step: int
    has_manifest: bool


def newest_good(
    root: Path, *, foreign: Callable[[Manifest], str] = lambda manifest: ""
) -> FolderSearch:
    """Go back from the newest checkpoint to the first one that verifies (engine/durable.py).

    This reads all bytes of the checkpoints on the way. `foreign` says why a checkpoint is not for
    the caller, or "". Such a checkpoint is refused without being read.
    """
    read: dict[int, CheckpointFolder] = {}
    others: set[int] = set()

    def why_not(one: LocalStepFolder) -> str:
        found = read_manifest(one.folder)
        if isinstance(found, Refusal):
            return found.reason
        if reason := foreign(found.manifest):
            others.add(one.step)
            return reason
        try:
            verify(found)
        except CorruptError as error:
            return error.message
        read[one.step] = found
        return ""

    good, refused = durable.newest_good(step_folders(root), why_not=why_not)
    return FolderSearch(
        None if good is None else read[good.step],
        tuple(Refusal(one.folder, reason, one.step in others) for one, reason in refused),
    )


def read_shard(checkpoint: CheckpointFolder, rank: int) -> Image:
    """Return the verified image of `rank`, read into memory. Raises CorruptError."""
    name = shard_name(rank)
    entry = next((entry for entry in checkpoint.manifest.files if entry.name == name), None)
    if entry is None:
        raise CorruptError(
            f"the checkpoint in {checkpoint.folder} has no {name}",
            hint=f"it was written by {checkpoint.manifest.world_size} ranks",
        )
    data = bytearray(entry.length)
    with opened(checkpoint.folder / name, entry) as file:
        read_fully(file, memoryview(data))
    return read_image(memoryview(data), entry.length, entry.checksum)


@contextmanager
def opened(path: Path, entry: FileEntry) -> Iterator[io.FileIO]:
    """Open a file that a manifest names.

    Raises CorruptError if it is missing, has another length, is a link or not an ordinary file, or
    cannot be read. A link could lead out of the checkpoint's folder, and opening a pipe could wait.
    """
    # It is read, not mapped, so that a bad sector is an error and not a SIGBUS.
    if _size(path) != entry.length:
        raise CorruptError(f"{path} {_length_words(path, entry)}")
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        with open(fd, "rb", buffering=0) as file:
            yield file
    except OSError as error:
        raise CorruptError(f"{path} cannot be read: {error.strerror}") from error


def read_fully(file: io.FileIO, target: memoryview) -> None:
    """Fill `target` from a file. Raises CorruptError if the file ends before that."""
    left = target
    while len(left):
        count = file.readinto(left)
        if not count:
            raise CorruptError(f"{file.name} ended while it was read")
        left = left[count:]


def read_manifest(folder: Path) -> CheckpointFolder | Refusal:
    """Return the checkpoint that the manifest in `folder` names, or why there is none."""
    try:
        manifest = decode_manifest(
            read_small(folder / MANIFEST_NAME, most_bytes=MANIFEST_MAX_BYTES)
        )
        if checkpoint_folder(folder.parent, manifest.step) != folder:
            raise CorruptError(f"its manifest is of step {manifest.step}")
    except CorruptError as error:
        return Refusal(folder, error.message)
    except (OSError, ValueError) as error:
        return Refusal(folder, f"its manifest cannot be read: {message_of(error)}")
    return CheckpointFolder(folder, manifest)


def step_folders(root: Path) -> list[LocalStepFolder]:
    """Return the folders of steps in `root`, the newest first."""
    found = [path for path in root.glob("step-*") if path.name[5:].isdecimal() and path.is_dir()]
    steps = [
        LocalStepFolder(path, int(path.name[5:]), (path / MANIFEST_NAME).exists()) for path in found
    ]
    return sorted(steps, key=lambda one: one.step, reverse=True)


# --- making room ----------------------------------------------------------------------------------


def clean(root: Path, *, disk: Disk = DISK) -> tuple[Path, ...]:
    """Remove what unfinished saves have left, and return which folders.

    Call it only while no process saves into `root`.
    """
    return _remove([one.folder for one in step_folders(root) if not one.has_manifest], disk)


def set_aside(folder: Path, prefix: str = _REFUSED, *, disk: Disk = DISK) -> Path:
    """Rename a checkpoint that is not to be used, so that its step can be saved again.

    It is kept for people who want to know.
    """
    target = folder.with_name(prefix + folder.name)
    count = 1
    while target.exists():
        count += 1
        target = folder.with_name(f"{prefix}{folder.name}-{count}")
    disk.rename(folder, target)
    return target


def prune(root: Path, keep: int, *, every: int = 0, disk: Disk = DISK) -> tuple[Path, ...]:
    """Keep the newest `keep` checkpoints, remove the superfluous ones, and return which folders.

    See engine/durable.py, also for `every`. If all checkpoints are good, this reads the bytes of
    one.
    """
    good = newest_good(root).checkpoint
    there = step_folders(root)
    steps = durable.superfluous(
        there,
        good=good.manifest.step if good is not None else None,
        keep=keep,
        every=every,
    )
    return _remove([one.folder for one in there if one.step in steps], disk)


def _remove(folders: Sequence[Path], disk: Disk) -> tuple[Path, ...]:
    for folder in folders:
        disk.remove(folder)
    return tuple(folders)


def _size(path: Path) -> int:
    """Return the length of an ordinary file. Return -1 if there is none, and for a link."""
    try:
        found = path.lstat()
    except OSError:
        return -1
    return found.st_size if stat.S_ISREG(found.st_mode) else -1


def _length_words(path: Path, entry: FileEntry) -> str:
    """Say how the length of a file differs from what the manifest says."""
    if (size := _size(path)) >= 0:
        return f"should have {entry.length:,} bytes and has {size:,}"
    return "is a link, or no ordinary file" if os.path.lexists(path) else "is missing"
