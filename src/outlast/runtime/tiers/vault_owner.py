"""The owner of a vault: its owner file, and the removal of vaults whose launcher is dead.

    /dev/shm/outlast-<uid>-<run>/owner     version, run and pid, as JSON; held under flock as long
                                           as the launcher or a fork of it lives

Any user may create a folder of such a name in /dev/shm, so a vault of another user is never opened
and never removed.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import shutil
import stat
from pathlib import Path

from outlast.errors import OutlastError, RunFolderError
from outlast.model.limits import VAULT_STALE_S
from outlast.runtime import clock

SHARED_MEMORY = Path("/dev/shm")
OWNER = "owner"
_OWNER_VERSION = 1


def vault_folder(run_id: str) -> Path:
    """Return the folder of a run's vault."""
    return SHARED_MEMORY / f"{_prefix()}{run_id}"


def _prefix() -> str:
    return f"outlast-{os.getuid()}-"


def clean_stale(parent: Path = SHARED_MEMORY) -> tuple[Path, ...]:
    """Remove this user's stale vaults, and return which.

    A vault is stale if its owner is dead and nothing was sealed in it for VAULT_STALE_S.
    """
    removed = []
    for folder in sorted(parent.glob(f"{_prefix()}*")):
        # a vault of another user, or one that was removed meanwhile, is skipped
        with contextlib.suppress(OutlastError, OSError):
            if _is_stale(folder):
                removed.append(folder)
    return tuple(removed)


def _is_stale(folder: Path) -> bool:
    if not is_ours(folder) or clock.wall_s() - _newest_change_s(folder) < VAULT_STALE_S:
        return False
    return remove_left(folder)


def remove_left(folder: Path) -> bool:
    """Remove a vault if its launcher is dead.

    Return False if the launcher lives, or if the vault is another user's.
    """
    if not is_ours(folder):
        return False
    try:
        fd = os.open(folder / OWNER, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        shutil.rmtree(folder)
        return True
    try:
        if not lock_owner(fd, folder):
            return False
        shutil.rmtree(folder)  # under the lock, so that no other launcher adopts it meanwhile
        return True
    finally:
        os.close(fd)


def _newest_change_s(folder: Path) -> float:
    paths = (folder, folder / OWNER, *folder.glob("*/seals"))
    return max(path.stat().st_mtime for path in paths if path.exists())


def is_ours(folder: Path) -> bool:
    """Return whether this folder belongs to this user. Any user may create one of such a name."""
    found = folder.lstat()
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()


def owner_record(run_id: str) -> bytes:
    """Return what the owner file of this process's vault says."""
    return json.dumps({"version": _OWNER_VERSION, "run": run_id, "pid": os.getpid()}).encode()


def open_owner(folder: Path) -> tuple[int, str]:
    """Open the owner file. Return its descriptor and the run's id. Raises RunFolderError."""
    try:
        if not is_ours(folder):
            raise RunFolderError(
                f"{folder} is not a folder of this user",
                hint="a vault is opened by the user who made it",
            )
        fd = os.open(folder / OWNER, os.O_RDWR | os.O_CLOEXEC)
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
            f"{folder / OWNER} is not an owner file",
            hint="the launcher died while it made the vault; remove the folder",
        ) from error
    except BaseException:
        os.close(fd)
        raise


def lock_owner(fd: int, folder: Path) -> bool:
    """Lock the owner file. Return False if another process holds it, or has replaced it."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return (folder / OWNER).stat().st_ino == os.fstat(fd).st_ino
    except FileNotFoundError:
        return False
    except OSError as error:
        if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
            return False
        raise
