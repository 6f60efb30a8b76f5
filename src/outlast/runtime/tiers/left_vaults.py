"""Vaults that killed launchers have left in shared memory.

They are kept for a day, so that `--resume` finds the newest images. Until then they use memory that
nothing reports. So the next run says how much it is, and how to free it.
"""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path

from outlast.model.limits import LEFT_VAULTS_TOLD_BYTES
from outlast.model.texts import count, some
from outlast.runtime.folders.given import read_small
from outlast.runtime.tiers.vault_owner import OWNER, SHARED_MEMORY, is_ours, vault_folder

_OWNER_BYTES = 65_536  # an owner file is much shorter


def left_vaults_note(*, own: Path, parent: Path = SHARED_MEMORY) -> str:
    """Return a sentence about vaults of dead runs that take much memory, or "".

    own   the folder of this run's vault
    """
    left = {
        folder: _size_bytes(folder)
        for folder in sorted(parent.glob(f"{vault_folder('').name}*"))
        if folder != own and _owner_is_dead(folder)
    }
    total_bytes = sum(left.values())
    if total_bytes < LEFT_VAULTS_TOLD_BYTES:
        return ""
    runs = count(len(left), "run whose launcher was", "runs whose launchers were")
    return (
        f"warning: shared memory still holds {total_bytes / 1e6:,.0f} MB of {runs} killed, for"
        f" --resume and for a day; to free it now, remove {some([str(one) for one in left])}"
    )


def _owner_is_dead(folder: Path) -> bool:
    """Return True if the launcher of this vault is known to be gone.

    The lock that the launcher held is not tried, because a launcher that resumes may be taking it
    at this moment.
    """
    try:
        if not is_ours(folder):
            return False
        owner = json.loads(read_small(folder / OWNER, most_bytes=_OWNER_BYTES))
        os.kill(int(owner["pid"]), 0)
    except ProcessLookupError:
        return True
    except (OSError, ValueError, KeyError, TypeError, OverflowError):
        return False  # it is not a vault, or was removed meanwhile
    return False


def _size_bytes(folder: Path) -> int:
    """Return the memory that the files of a vault take."""
    total = 0
    for place, _, files in os.walk(folder):  # skips what is removed meanwhile
        for name in files:
            with contextlib.suppress(OSError):
                total += os.lstat(os.path.join(place, name)).st_blocks * 512
    return total
