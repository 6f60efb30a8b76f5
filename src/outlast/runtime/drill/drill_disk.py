"""Let the disk of a run be full, or slow, for a while (`outlast drill`, "full_disk", "slow_disk").

    disk = RunDisk(launcher, run)
    disk.strike("full_disk", until_s)
    disk.look(now_s)               # now and then: ends what has lasted long enough

Full    The launcher is started in a mount namespace of its own (`mounting`), in which a file system
        in memory lies over the folder of the run's checkpoints. It becomes as small as what it
        holds. The kernel removes it when the last process of the run has ended, however that
        ends, and with it the checkpoints of this run.
Slow    A control group limits how fast the run's processes write to the block device on which the
        run's folder is.

Both need root. `may_be_filled` and `may_be_slowed` return why this is not possible here, or "".
"""

from __future__ import annotations

import contextlib
import functools
import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from outlast.runtime import clock
from outlast.runtime.cgroups import MOUNT
from outlast.runtime.drill.control_groups import PREFIX, REMOVE_S, TICK_S, move_up

SLOW_BYTES_PER_S = 1 << 20
WAIT_S = 20.0  # for a call of `mount`
_MOUNT = 'mkdir -p "$0" && mount -t tmpfs tmpfs "$0" && exec "$@"'
_DEVICES = Path("/sys/dev/block")


def mounting(folder: Path) -> list[str]:
    """Return the words before a command that has a small file system at this folder, to itself."""
    return ["unshare", "--mount", "sh", "-c", _MOUNT, str(folder.resolve())]


@functools.cache
def may_be_filled() -> str:
    """Return why no disk can be full here, or ""."""
    words = ["unshare", "--mount", "mount", "-t", "tmpfs", "tmpfs", "/tmp"]
    try:
        subprocess.run(words, check=True, capture_output=True, timeout=WAIT_S)
    except FileNotFoundError as error:
        return f"the program {error.filename} is not installed here"
    except (OSError, subprocess.SubprocessError) as error:
        said = (getattr(error, "stderr", None) or b"").decode(errors="replace").strip()
        return f"a small file system needs root (CAP_SYS_ADMIN): {said or error}"
    return ""


def may_be_slowed(folder: Path, mount: Path = MOUNT) -> str:
    """Return why the disk of a folder cannot be slow here, or "". The folder need not exist yet."""
    there = folder.absolute()
    while not there.exists():
        there = there.parent
    device = _device(there)
    if not device:
        return f"{there} is on no block device, so its writes cannot be limited"
    try:
        limit = _Limit(f"try-{os.getpid()}", device, mount)
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        return f"control groups for disks need root, and a tree that may be written to: {why}"
    limit.remove()
    return ""


def _device(folder: Path) -> str:
    """Return the whole disk on which a folder is, as MAJOR:MINOR, or "" if it is on none."""
    number = folder.stat().st_dev
    name = f"{os.major(number)}:{os.minor(number)}"
    place = (_DEVICES / name).resolve()
    if not (_DEVICES / name).exists():
        return ""
    if (place / "partition").exists():
        return (place.parent / "dev").read_text().strip()
    return name


class _Limit:
    """A control group with a limit of what is written to one disk, under either hierarchy.

    Raises OSError if it cannot be made.
    """

    def __init__(self, name: str, device: str, mount: Path) -> None:
        first = (mount / "blkio" / "blkio.throttle.write_bps_device").exists()
        self._folder = (mount / "blkio" if first else mount) / f"{PREFIX}disk-{name}"
        self._device = device
        self._file = self._folder / ("blkio.throttle.write_bps_device" if first else "io.max")
        self._words = ("{}", "0") if first else ("wbps={}", "wbps=max")
        self._folder.mkdir()
        try:
            if not self._file.exists():
                raise FileNotFoundError(None, f"{mount} does not control disks", str(self._file))
            self.end()  # it has none yet, and the kernel says whether it knows this disk
        except OSError:
            self._folder.rmdir()
            raise

    def add(self, pid: int) -> None:
        """Count a process from now on, and all that it starts."""
        (self._folder / "cgroup.procs").write_text(str(pid))

    def begin(self) -> None:
        self._file.write_text(f"{self._device} {self._words[0].format(SLOW_BYTES_PER_S)}\n")

    def end(self) -> None:
        self._file.write_text(f"{self._device} {self._words[1]}\n")

    def remove(self) -> None:
        """Remove the group. Processes that are still there go back to the group above."""
        until_s = clock.now_s() + REMOVE_S
        with contextlib.suppress(OSError):
            self.end()
        while True:
            move_up(self._folder)
            with contextlib.suppress(OSError):
                self._folder.rmdir()
            if not self._folder.exists() or clock.now_s() >= until_s:
                return
            time.sleep(TICK_S)


class RunDisk:
    """The disk of one run. Leaving ends what still lasts, and removes the group.

    launcher   the pid of `outlast run`
    run        the run's folder
    slowed     the plan has a slow disk, so the launcher has to be counted from the start
    """

    def __init__(self, launcher: int, run: Path, *, slowed: bool, mount: Path = MOUNT) -> None:
        self._launcher = launcher
        self._checkpoints = (run / "checkpoints").resolve()
        self._lasting: dict[str, tuple[float, Callable[[], object]]] = {}
        self._limit: _Limit | None = None
        if slowed:
            self._limit = _Limit(f"{os.getpid()}-{launcher}", _device(run.parent), mount)
            self._limit.add(launcher)

    def strike(self, kind: str, until_s: float) -> bool:
        """Let the disk be full or slow. Return False if it is already, or cannot be now."""
        if kind in self._lasting:
            return False
        if kind == "full_disk":
            if not self._resize(full=True):
                return False
            self._lasting[kind] = until_s, lambda: self._resize(full=False)
            return True
        if self._limit is None:
            return False
        self._limit.begin()
        self._lasting[kind] = until_s, self._limit.end
        return True

    def look(self, now_s: float) -> None:
        """End what has lasted long enough."""
        for kind, (until_s, end) in list(self._lasting.items()):
            if now_s >= until_s:
                del self._lasting[kind]
                end()

    def _resize(self, *, full: bool) -> bool:
        """Make the file system as small as what it holds, or as large as it was.

        Return False if the run is gone, or has written meanwhile.
        """
        try:
            seen = os.statvfs(f"/proc/{self._launcher}/root{self._checkpoints}")
        except OSError:
            return False
        used = (seen.f_blocks - seen.f_bfree) * seen.f_frsize
        size = str(max(used, seen.f_frsize)) if full else "50%"
        enter = ["nsenter", f"--target={self._launcher}", "--mount"]
        words = ["mount", "-o", f"remount,size={size}", str(self._checkpoints)]
        try:
            subprocess.run([*enter, *words], check=True, capture_output=True, timeout=WAIT_S)
        except (OSError, subprocess.SubprocessError):
            return False
        return True

    def __enter__(self) -> RunDisk:
        return self

    def __exit__(self, *_: object) -> None:
        if self._limit is not None:
            self._limit.remove()
