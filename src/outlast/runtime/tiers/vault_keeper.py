"""Hold the files of a vault open, so that a run survives the removal of their names.

Names in /dev/shm can be removed while a run lives: by a person, by systemd-logind when the user's
last session ends (RemoveIPC), by systemd-tmpfiles. Ranks that have mapped the files go on, but a
successor could not open them. The launcher holds every file by a descriptor. A file whose name was
removed gets a name again: a link to that descriptor in /proc, under the old path. So every process
that opens the path afterwards gets the memory that the live ranks have mapped.

Not covered: files that were created after the newest look, and the vault of a launcher that is
killed after the removal. The links end with that launcher.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from outlast.runtime.tiers.vault_owner import OWNER

# the number of ticks after a removal in which further removals are looked for
_LOOKS_AFTER_COUNT = 40


class VaultKeeper:
    """Call `look` about once a second, and before a process has to open files of the vault fast."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._held: dict[str, int] = {}  # path within the folder -> descriptor
        self._was_removed = False
        self._looks_left = 0  # a removal may still be in progress

    @property
    def is_gone(self) -> bool:
        """Return True if the vault's own file has lost its name, now or a moment ago.

        A removal goes from file to file, so the next looks may find more. This is one system call.
        """
        if self._looks_left > 0:
            self._looks_left -= 1
            return True
        fd = self._held.get(OWNER, -1)
        return fd >= 0 and os.fstat(fd).st_nlink == 0 and not self._is_linked(OWNER, fd)

    def look(self) -> list[str]:
        """Hold new files, and restore the names of those that have lost theirs. Return their paths.

        If the rest of the vault is there, only the names that matter to a successor are restored. A
        worker may remove slots that it has just created, and in which nothing was ever sealed.
        """
        lost = [name for name, fd in self._held.items() if self._has_lost_its_name(name, fd)]
        if OWNER in lost:
            self._was_removed, self._looks_left = True, _LOOKS_AFTER_COUNT
        if not self._was_removed:
            lost = [name for name in lost if self._is_sealed(name)]
        # The owner's file comes last: a process that finds it finds the others.
        for name in sorted(lost, key=lambda one: one == OWNER):
            self._name_again(name)
        for name in self._files():
            self._hold(name)
        return lost

    def forget(self, name: str) -> None:
        """Stop holding a file, because its owner is about to remove it."""
        if (fd := self._held.pop(name, -1)) >= 0:
            os.close(fd)

    def forget_folder(self, name: str) -> None:
        """Stop holding the files of a folder, because its owner is about to remove it."""
        for held in [one for one in self._held if one.startswith(f"{name}/")]:
            self.forget(held)

    def close(self) -> None:
        """Close all files."""
        for name in list(self._held):
            self.forget(name)

    def _has_lost_its_name(self, name: str, fd: int) -> bool:
        return os.fstat(fd).st_nlink == 0 and not self._is_linked(name, fd)

    def _is_linked(self, name: str, fd: int) -> bool:
        """Return True if the path leads to the file that is held."""
        try:
            found, held = os.stat(self._folder / name), os.fstat(fd)
        except OSError:
            return False
        return (found.st_dev, found.st_ino) == (held.st_dev, held.st_ino)

    def _is_sealed(self, name: str) -> bool:
        """Return True if the file belongs to an area in which something was sealed."""
        fd = self._held.get(f"{name.partition('/')[0]}/seals", -1) if "/" in name else -1
        return fd >= 0 and any(os.pread(fd, os.fstat(fd).st_size, 0))

    def _name_again(self, name: str) -> None:
        path = self._folder / name
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):
            path.unlink()
        path.symlink_to(f"/proc/{os.getpid()}/fd/{self._held[name]}")

    def _hold(self, name: str) -> None:
        """Hold the file, unless it is held already. If no descriptor is free, it is not held."""
        held = self._held.get(name, -1)
        with contextlib.suppress(OSError):
            if held >= 0 and self._is_linked(name, held):
                return
            fd = os.open(self._folder / name, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
            self.forget(name)
            self._held[name] = fd

    def _files(self) -> Iterator[str]:
        """Yield the files of the vault, and those of its folders."""
        with contextlib.suppress(OSError), os.scandir(self._folder) as found:
            for one in found:
                if one.is_dir(follow_symlinks=False):
                    with contextlib.suppress(OSError), os.scandir(one.path) as inner:
                        for file in inner:
                            yield f"{one.name}/{file.name}"
                elif one.is_file(follow_symlinks=False):
                    yield one.name
