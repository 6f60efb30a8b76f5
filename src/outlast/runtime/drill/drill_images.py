"""Damage an image in shared memory, as a broken memory module or a cut write would.

Only the vault of a run that the drill has started is written to. The seal stays as it is, so the
image looks whole until it is read and its checksum is compared.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

from outlast.runtime import clock
from outlast.runtime.drill.drill_looks import RANK_TITLE, LookedAtRun
from outlast.runtime.drill.striking import RunProcess, Target
from outlast.runtime.linux import stat_fields
from outlast.runtime.tiers.area import Area
from outlast.runtime.tiers.rank_areas import RankAreas
from outlast.runtime.tiers.vault import Vault

FLIPPED_BYTES = 100
STOP_S = 0.2  # a process that is told to stop has stopped by then
PEERS_S = 0.2  # its peers have sealed its newest step by then, and it does not count as hung yet
_LOOK_S = 0.001


class DamagedImages:
    """Damage the image of a rank, and then kill the rank, so that the image is needed.

    memory   what the run has now
    """

    def __init__(self, memory: Callable[[], LookedAtRun]) -> None:
        self._memory = memory

    def strike(self, target: Target, process: RunProcess, *, torn: bool) -> bool:
        """Damage the newest image of the rank that a process holds, and kill it.

        The process is stopped meanwhile, so that it does not seal another image. Return False if
        it is gone, or has no image. Then it goes on.
        """
        vault = self._vault_of(process)
        if vault is None or not target.send(process, signal.SIGSTOP):
            return False
        rank = int(process.title.removeprefix(RANK_TITLE))
        until_s = clock.now_s() + STOP_S
        while not _has_stopped(process.pid) and clock.now_s() < until_s:
            time.sleep(_LOOK_S)
        if damage(vault, rank, torn=torn, peers_s=PEERS_S):
            return target.send(process, signal.SIGKILL)
        target.send(process, signal.SIGCONT)
        return False

    def _vault_of(self, process: RunProcess) -> Vault | None:
        nodes = self._memory().nodes
        return next((node.vault for node in nodes if process in node.processes), None)


def damage(vault: Vault, rank: int, *, torn: bool, peers_s: float = 0.0) -> bool:
    """Damage the image from which a successor of a rank would begin.

    Return False if the rank has sealed none. The image is that of the newest step that the other
    ranks of its node have sealed as well. If there is no such step, it is the rank's newest image.

    torn      True: the second half of its data was never written; False: some bits have flipped
    peers_s   how long to wait for ranks that have not sealed this rank's newest step yet. If they
              seal it a moment later, all begin from it, and nobody needs an older image
    """
    areas = RankAreas(vault.folder, "rank", run=vault.run)
    until_s = clock.now_s() + peers_s
    try:
        sealed = areas.of(rank).sealed()
        if not sealed:
            return False
        steps = {slot: one.step for slot, one in sealed.items()}
        newest = max(steps.values())
        peers = [one for one in areas.ranks() if one != rank]
        while newest not in (common := _sealed_by_all(areas, peers)):
            if not peers or clock.now_s() >= until_s:
                break
            time.sleep(_LOOK_S)
        slot = max(steps, key=lambda one: (steps[one] in common, steps[one]))
        _write(areas.of(rank), slot, sealed[slot].length, torn=torn)
        return True
    finally:
        areas.close()


def _sealed_by_all(areas: RankAreas, ranks: list[int]) -> set[int]:
    """Return the steps that all these ranks have sealed. Without ranks there are none."""
    sealed = [set(areas.steps(rank)) for rank in ranks]
    return set.intersection(*sealed) if sealed else set()


def _write(area: Area, slot: int, length: int, *, torn: bool) -> None:
    fd = os.open(area.slot_path(slot), os.O_RDWR | os.O_CLOEXEC)
    try:
        first = 8 + int.from_bytes(os.pread(fd, 8, 0), "little")  # behind the header
        if torn:
            at = (first + length) // 2
            os.pwrite(fd, b"\xaa" * (length - at), at)
        else:
            data = os.pread(fd, min(FLIPPED_BYTES, length - first), first)
            os.pwrite(fd, bytes(one ^ 0xFF for one in data), first)
    finally:
        os.close(fd)


def _has_stopped(pid: int) -> bool:
    """Return whether every thread of a process has stopped, or the process is gone."""
    try:
        tasks = list(Path(f"/proc/{pid}/task").iterdir())
        return all(stat_fields((one / "stat").read_bytes())[0] in (b"T", b"Z") for one in tasks)
    except (OSError, IndexError):
        return not Path(f"/proc/{pid}").exists()
