"""The processes of a job on this node, as /proc shows them.

A training process is one whose environment has RANK, as every launcher sets it. The workers of a
data loader and other children inherit it. They are processes of that rank too. A rank of `outlast
run` is forked from a process that has no RANK, and /proc shows the environment of that process; but
the kernel's name of the forked process says which rank it is.

Without further rights, only this user's processes can be read. What may not be read is left out,
and the collector names it.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from outlast.runtime.linux import stat_fields

# the variables that name a job, by the launcher or scheduler that sets them
JOB_IDS = ("TORCHELASTIC_RUN_ID", "SLURM_JOB_ID", "JOB_ID", "PBS_JOBID", "LSB_JOBID")
_OUTLAST_RANK = re.compile(r"outlast-rank(\d+)")


@dataclass(frozen=True, slots=True)
class JobProcess:
    """One process of the job. `is_rank`: it is the rank itself, and not a child that it started."""

    pid: int
    rank: int
    parent: int
    command: str
    state: str
    started_s: float
    is_rank: bool = True
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def world_size(self) -> int:
        return self._count("WORLD_SIZE")

    @property
    def local_world_size(self) -> int:
        """Return how many ranks the launcher started on this node, or 0 if it does not say."""
        return self._count("LOCAL_WORLD_SIZE")

    def _count(self, name: str) -> int:
        text = self.environment.get(name, "")
        return int(text) if text.isdecimal() else 0


def find_processes(*, pids: Iterable[int] = (), job: str = "") -> list[JobProcess]:
    """Return the job's processes: those named, those of the job's id, or otherwise all with a RANK.

    With the processes that `pids` names, their children are found. With a launcher, its ranks are
    found.
    """
    found: dict[int, JobProcess] = {}
    parents: dict[int, int] = {}
    for entry in os.scandir("/proc"):
        if not entry.name.isdecimal():
            continue
        pid = int(entry.name)
        with suppress(OSError, ValueError, IndexError):
            parents[pid] = _parent_of(pid)
            one = _read(pid)
            if one is not None:
                found[pid] = one
    named = set(pids)
    if named:
        wanted = {pid for pid in found if _line_of(pid, parents) & named}
    elif job:
        wanted = {
            pid
            for pid, one in found.items()
            if job in {one.environment.get(name) for name in JOB_IDS}
        }
    else:
        wanted = set(found)
    ranks = {one.pid: one.rank for one in found.values()}
    return sorted(
        (_with_role(found[pid], ranks) for pid in wanted if pid != os.getpid()),
        key=lambda one: (one.rank, not one.is_rank, one.pid),
    )


def writers_of(files: Iterable[str]) -> list[int]:
    """Return the processes of this user that print into one of the files."""
    wanted = set()
    for path in files:
        with suppress(OSError):
            wanted.add(_identity(path))
    found = []
    for entry in os.scandir("/proc"):
        if entry.name.isdecimal() and int(entry.name) != os.getpid():
            with suppress(OSError):
                if wanted & {_identity(f"/proc/{entry.name}/fd/{number}") for number in (1, 2)}:
                    found.append(int(entry.name))
    return sorted(found)


def _identity(path: str) -> tuple[int, int]:
    status = os.stat(path)
    return status.st_dev, status.st_ino


def _with_role(one: JobProcess, ranks: Mapping[int, int]) -> JobProcess:
    """Return the process with its role.

    A child of a process of the same rank is not a rank itself.
    """
    is_child = ranks.get(one.parent) == one.rank
    return replace(one, is_rank=not is_child)


def _line_of(pid: int, parents: Mapping[int, int]) -> set[int]:
    """Return the process and all its ancestors."""
    line = {pid}
    while (pid := parents.get(pid, 0)) > 1 and pid not in line:
        line.add(pid)
    return line


def _parent_of(pid: int) -> int:
    return int(_stat(pid)[1])


def _stat(pid: int) -> list[bytes]:
    """Return the fields of /proc/PID/stat, beginning with the state.

    Raises OSError if it is gone.
    """
    return stat_fields(Path(f"/proc/{pid}/stat").read_bytes())


def _read(pid: int) -> JobProcess | None:
    environment = environment_of(pid)
    named = _OUTLAST_RANK.fullmatch(Path(f"/proc/{pid}/comm").read_text().strip())
    rank = named[1] if named else environment.get("RANK", "")
    if not rank.isdecimal() or not (named or environment.get("WORLD_SIZE", "").isdecimal()):
        return None
    fields = _stat(pid)
    return JobProcess(
        pid,
        int(rank),
        int(fields[1]),
        command_of(pid),
        fields[0].decode(),
        _boot_s() + int(fields[19]) / os.sysconf("SC_CLK_TCK"),
        environment=environment,
    )


def activity_of(pid: int) -> tuple[int, int]:
    """Return how often the main thread was switched, and for how many ticks it computed.

    Raises OSError or ValueError if that cannot be read.
    """
    task = Path(f"/proc/{pid}/task/{pid}")
    switches = sum(
        int(row.rpartition(":")[2])
        for row in (task / "status").read_text().splitlines()
        if "ctxt_switches" in row
    )
    fields = stat_fields((task / "stat").read_bytes())
    return switches, int(fields[11]) + int(fields[12])


def uses_gpu(pid: int) -> bool:
    """Return True if the process has mapped a GPU's driver, or if that cannot be read."""
    try:
        mapped = Path(f"/proc/{pid}/maps").read_text()
    except OSError:
        return True
    return any(name in mapped for name in ("libcuda.so", "libamdhip64.so", "/dev/nvidia"))


def environment_of(pid: int) -> dict[str, str]:
    """Return the environment of a process. Raises OSError if it may not be read."""
    raw = Path(f"/proc/{pid}/environ").read_bytes().decode("utf-8", "replace")
    return {
        name: value for name, mark, value in (row.partition("=") for row in raw.split("\0")) if mark
    }


def command_of(pid: int) -> str:
    raw = Path(f"/proc/{pid}/cmdline").read_bytes()
    # A script that is given by -c has several lines, and the tables have one line for each process.
    return " ".join(raw.replace(b"\0", b" ").decode("utf-8", "replace").split())


@functools.cache
def _boot_s() -> float:
    """Return when the machine was started, as Unix seconds. The kernel writes it once."""
    for row in Path("/proc/stat").read_text().splitlines():
        if row.startswith("btime "):
            return float(row.split()[1])
    return 0.0
