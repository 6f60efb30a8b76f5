"""The environments in which runs are started if a cell needs more than a folder: consoles, mounts,
networks.
"""

from __future__ import annotations

import contextlib
import os
import pty
import shutil
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from outlast.runtime.folders.run_folder import RunFolder
from tests.drills._run import SCRIPTS

GROUPS = Path("/sys/fs/cgroup/pids")
SHM = Path("/dev/shm")


@dataclass
class Setting:
    """What a run is started in.

    options      for `Drill`
    console_fd   the descriptor that the test reads
    over         the test has ended, so the reader of the console ends too, even if it stands still
    group        the control group of the processes, if it has one
    wall_jump    holds the seconds that the run's wall clock is ahead, if it has a clock of its own
    """

    script: str = "quick.py"
    arguments: list[str | int] = field(default_factory=list)
    options: dict[str, Any] = field(default_factory=dict)
    console_fd: int = -1
    stops_reading: threading.Event = field(default_factory=threading.Event)
    over: threading.Event = field(default_factory=threading.Event)
    group: Path | None = None
    mounted: bool = False
    wall_jump: Path | None = None


def shell(command: str) -> tuple[str, ...]:
    """Return a prefix that runs this command first, in the process that becomes the launcher."""
    return ("sh", "-c", f'{command} && exec "$@"', "sh")


def needs_root() -> None:
    if os.geteuid() != 0:
        pytest.skip("needs the right to mount and to make namespaces (root)")


def mounts(folder: Path | str, size: str, *, first: str = "true") -> tuple[str, ...]:
    needs_root()
    mount = f"mount -t tmpfs -o size={size} tmpfs {folder} && {first}"
    return ("unshare", "-m", *shell(mount))


@contextlib.contextmanager
def prepared(name: str, scratch: Path) -> Iterator[Setting]:
    """Yield the setting of this name, and clean up afterwards."""
    one = Setting()
    with contextlib.ExitStack() as closing:
        closing.callback(one.over.set)
        if name:
            _MAKERS[name](one, scratch, closing)
        yield one


def _reads(one: Setting, read_fd: int, scratch: Path, closing: contextlib.ExitStack) -> None:
    """Read the console into the files that a Drill reads, until told to stop."""
    one.console_fd = os.dup(read_fd)
    closing.callback(lambda: contextlib.suppress(OSError) and _close(one.console_fd))

    def read() -> None:
        with contextlib.suppress(OSError), (scratch / "stderr").open("ab", buffering=0) as file:
            while data := os.read(read_fd, 65536):
                file.write(data)
                while one.stops_reading.is_set():
                    if one.over.wait(0.05):
                        return
        _close(read_fd)

    threading.Thread(target=read, daemon=True).start()


def _close(fd: int) -> None:
    with contextlib.suppress(OSError):
        os.close(fd)


def _piped(one: Setting, scratch: Path, closing: contextlib.ExitStack) -> None:
    read_fd, write_fd = os.pipe()
    one.options |= {"console": write_fd}
    _reads(one, read_fd, scratch, closing)


def _terminal(one: Setting, scratch: Path, closing: contextlib.ExitStack) -> None:
    master, slave = pty.openpty()
    one.options |= {"console": slave}
    one.console_fd = master  # the act closes it: no other process has it open
    closing.callback(lambda: _close(one.console_fd))


def _full_console(one: Setting, scratch: Path, closing: contextlib.ExitStack) -> None:
    one.options |= {"console": os.open("/dev/full", os.O_WRONLY)}


def _small_shm(one: Setting, scratch: Path, closing: contextlib.ExitStack) -> None:
    one.options |= {"before": mounts(SHM, "192m")}


def _full_shm(one: Setting, scratch: Path, closing: contextlib.ExitStack) -> None:
    one.options |= {"before": mounts(SHM, "4k", first=f"(echo x > {SHM}/x || true)")}


def _held(one: Setting, scratch: Path, closing: contextlib.ExitStack) -> None:
    held = RunFolder.create(scratch / "run", name="held", version="0", options={})
    closing.callback(held.close)


def _small_disk(one: Setting, scratch: Path, closing: contextlib.ExitStack) -> None:
    (scratch / "run").mkdir()
    one.mounted = True
    one.options |= {"before": mounts(scratch / "run", "24m")}


def _full_disk(one: Setting, scratch: Path, closing: contextlib.ExitStack) -> None:
    folder = scratch / "run"
    folder.mkdir()
    one.mounted = True
    fill = f"(cat /dev/zero > {folder}/filler 2> /dev/null || true)"
    one.options |= {"before": mounts(folder, "16k", first=fill)}


def _few_descriptors(one: Setting, scratch: Path, closing: contextlib.ExitStack) -> None:
    one.options |= {"before": shell("ulimit -n 40")}


def _own_network(one: Setting, scratch: Path, closing: contextlib.ExitStack) -> None:
    needs_root()
    one.options |= {"before": ("unshare", "-n", *shell("ip link set lo up"))}


def _no_network(one: Setting, scratch: Path, closing: contextlib.ExitStack) -> None:
    needs_root()
    one.options |= {"before": ("unshare", "-n")}


def _own_group(one: Setting, scratch: Path, closing: contextlib.ExitStack) -> None:
    if not os.access(GROUPS, os.W_OK):
        pytest.skip(f"no control group of processes can be made in {GROUPS}")
    one.group = GROUPS / f"outlast-test-{os.getpid()}-{threading.get_ident()}"
    one.group.mkdir()
    closing.callback(one.group.rmdir)
    one.options |= {"before": shell(f"echo $$ > {one.group}/cgroup.procs")}


def _few_threads(one: Setting, scratch: Path, closing: contextlib.ExitStack) -> None:
    """Allow all processes of a run of two ranks, but not the threads of its groups."""
    _own_group(one, scratch, closing)
    assert one.group is not None
    (one.group / "pids.max").write_text("12")


def _nohup(one: Setting, scratch: Path, closing: contextlib.ExitStack) -> None:
    one.options |= {"before": ("nohup",)}


def _loaders(one: Setting, scratch: Path, closing: contextlib.ExitStack) -> None:
    one.arguments += ["--loaders", 1]


def _own_script(one: Setting, scratch: Path, closing: contextlib.ExitStack) -> None:
    folder = scratch / "own"
    folder.mkdir()
    for name in ("quick.py", "strikes.py", "misdeeds.py", "commits.py"):
        shutil.copy(SCRIPTS / name, folder)
    one.script = str(folder / "quick.py")


def _own_folder(one: Setting, scratch: Path, closing: contextlib.ExitStack) -> None:
    (scratch / "cwd").mkdir()
    one.options |= {"cwd": scratch / "cwd"}


def _own_temporary(one: Setting, scratch: Path, closing: contextlib.ExitStack) -> None:
    (scratch / "tmp").mkdir()
    one.options |= {"env": {"TMPDIR": str(scratch / "tmp")}}


def _strange_shm(one: Setting, scratch: Path, closing: contextlib.ExitStack) -> None:
    """Make a folder, a file, a pipe and a link that begin with outlast's prefix."""
    stem = SHM / f"outlast-{os.getuid()}-strange{os.getpid()}"
    folder, file, link = Path(f"{stem}-a"), Path(f"{stem}-b"), Path(f"{stem}-c")
    folder.mkdir()
    os.mkfifo(folder / "owner")
    file.write_text("x")
    link.symlink_to("/dev/zero")
    closing.callback(shutil.rmtree, folder)
    closing.callback(file.unlink)
    closing.callback(link.unlink)


def _other_clock(one: Setting, scratch: Path, closing: contextlib.ExitStack) -> None:
    needs_root()
    one.options |= {"before": ("unshare", "-T", "--monotonic", "86400", "--fork")}


def _closed_shm(one: Setting, scratch: Path, closing: contextlib.ExitStack) -> None:
    needs_root()
    one.options |= {"before": ("unshare", "-m", *shell(f"mount -t tmpfs -o ro tmpfs {SHM}"))}


def _own_wall_clock(one: Setting, scratch: Path, closing: contextlib.ExitStack) -> None:
    """Give all of the run's processes a wall clock that is `wall_jump` seconds ahead of the
    machine's.
    """
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler to build another wall clock with")
    library = scratch / "wall.so"
    source = Path(__file__).with_name("wall_clock.c")
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, source], check=True)
    one.wall_jump = scratch / "wall-jump"
    one.wall_jump.write_text("0")
    one.options |= {"env": {"LD_PRELOAD": str(library), "WALL_JUMP": str(one.wall_jump)}}


_MAKERS = {
    "piped console": _piped,
    "terminal": _terminal,
    "full console": _full_console,
    "small shared memory": _small_shm,
    "full shared memory": _full_shm,
    "held folder": _held,
    "small disk": _small_disk,
    "full disk": _full_disk,
    "few descriptors": _few_descriptors,
    "own network": _own_network,
    "no network": _no_network,
    "own process group": _own_group,
    "few threads": _few_threads,
    "nohup": _nohup,
    "loaders": _loaders,
    "own script": _own_script,
    "own folder": _own_folder,
    "own temporary": _own_temporary,
    "strange shared memory": _strange_shm,
    "other clock": _other_clock,
    "closed shared memory": _closed_shm,
    "own wall clock": _own_wall_clock,
}
NAMES = tuple(_MAKERS)
