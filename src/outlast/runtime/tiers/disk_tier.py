"""The tier of a local folder, or of a file system that is mounted: tiers/local.py as a `Tier`.

It survives the end of every process, and a reboot. It does not survive the loss of the disk.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from outlast.errors import CorruptError, RunFolderError
from outlast.model.limits import CHECKSUM_BLOCK_BYTES
from outlast.model.manifest import FileEntry, Manifest
from outlast.runtime.tiers import local
from outlast.runtime.tiers.local import DISK, Disk
from outlast.runtime.tiers.tier import Seen, TierStepFolder, unseen


class DiskTier:
    """Keep checkpoints in folders below `root`. Each has the name of its step."""

    def __init__(self, root: Path, *, disk: Disk = DISK) -> None:
        self.root = root
        self._disk = disk

    @property
    def place(self) -> str:
        """Return the path of the folder."""
        return str(self.root)

    def folder(self, step: int) -> Path:
        """Return where the files of a step are."""
        return local.checkpoint_folder(self.root, step)

    def try_writing(self) -> None:
        """Create the folder, and in it a file, which is removed again. Raises RunFolderError."""
        try:
            self._disk.make_folder(self.root)
            with tempfile.TemporaryFile(dir=self.root):
                pass
        except OSError as error:
            raise RunFolderError(
                f"{self.root} cannot be written: {error.strerror}",
                hint="it needs the right to write there, and a file system that is not mounted"
                " read-only",
            ) from None

    def step_folders(self) -> Sequence[TierStepFolder]:
        """Return the folders that have the name of a step."""
        return [
            TierStepFolder(one.step, one.has_manifest)
            for one in local.step_folders(self.root)
            if one.folder == self.folder(one.step)
        ]

    def manifest(self, step: int) -> Manifest:
        """Return the manifest of a step. Raises CorruptError."""
        found = local.read_manifest(self.folder(step))
        if isinstance(found, local.Refusal):
            raise CorruptError(f"{found.folder}: {found.reason}")
        return found.manifest

    def written_s(self, step: int) -> float:
        """Return when the manifest was written, or the folder if it has none."""
        folder = self.folder(step)
        manifest = folder / local.MANIFEST_NAME
        try:
            return (manifest if manifest.exists() else folder).stat().st_mtime
        except OSError:  # it was removed meanwhile
            return 0.0

    def put(
        self, step: int, name: str, chunks: Iterable[memoryview], *, length: int = 0
    ) -> FileEntry:
        """Write a file under another name, sync it, and rename it."""
        return local.write_file(self.folder(step), name, chunks, disk=self._disk)

    def commit(self, manifest: Manifest) -> None:
        """Sync the folder, then write the manifest in the same way as a file."""
        local.write_manifest(self.folder(manifest.step), manifest, disk=self._disk)

    def read(self, step: int, entry: FileEntry, begin: int, target: memoryview) -> None:
        """Fill `target` from a file of a step."""
        with local.opened(self.folder(step) / entry.name, entry) as file:
            file.seek(begin)
            local.read_fully(file, target)

    def chunks(self, step: int, entry: FileEntry) -> Iterator[memoryview]:
        """Yield all bytes of a file."""
        block = memoryview(bytearray(CHECKSUM_BLOCK_BYTES))
        with local.opened(self.folder(step) / entry.name, entry) as file:
            while count := file.readinto(block):
                yield block[:count]

    def why_not(self, step: int, *, seen: Seen = unseen) -> str:
        """Read every byte, and return what is wrong, or ""."""
        try:
            local.verify(local.CheckpointFolder(self.folder(step), self.manifest(step)), seen=seen)
        except CorruptError as error:
            return error.message
        return ""

    def remove(self, step: int) -> None:
        """Remove the folder of a step. Its manifest goes first.

        Raises RunFolderError if the folder cannot be removed.
        """
        folder = self.folder(step)
        try:
            self._disk.remove(folder)
        except OSError as error:
            raise RunFolderError(
                f"{folder} cannot be removed: {error.strerror}",
                hint="it needs the right to write in that folder, and a file system that is not"
                " mounted read-only",
            ) from None

    def set_aside(self, step: int) -> str:
        """Rename the folder of a step, to `refused-` and its name."""
        return local.set_aside(self.folder(step), disk=self._disk).name
