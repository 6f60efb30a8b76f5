"""What is done to the surroundings of a run. Each act returns a function that restores the thing.

An act that finds nothing to act on raises: a fault that did not fire fails its cell.
"""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from outlast.errors import OutlastError
from outlast.runtime.ledger.view import look
from tests.drills._pids import below, table, until
from tests.drills._run import Drill
from tests.drills.surroundings.settings import Setting
from tests.drills.surroundings.table import Moment

Undo = Callable[[], object]


@dataclass
class Around:
    """A run, and the parts of its surroundings that a drill can reach."""

    drill: Drill
    setting: Setting
    scratch: Path
    moment: Moment
    closing: contextlib.ExitStack

    @property
    def launcher(self) -> int:
        return self.drill.process.pid

    @property
    def folder(self) -> Path:
        """Return the run's folder as the launcher sees it."""
        path = self.scratch / "run"
        return self.seen(path) if self.setting.mounted else path

    def seen(self, path: Path) -> Path:
        return Path(f"/proc/{self.launcher}/root{path}")

    def named(self, name: str) -> int:
        """Return the launcher's child with this kernel name, once it is there."""
        found: list[int] = []

        def look() -> bool:
            for pid, (parent, state, _) in table().items():
                with contextlib.suppress(OSError):
                    comm = Path(f"/proc/{pid}/comm").read_text().strip()
                    if parent == self.launcher and state != "Z" and comm == name[:15]:
                        found.append(pid)
                        return True
            return False

        until(f"a process {name}", look, within_s=20.0)
        return found[0]

    def store(self) -> int:
        return self.named("outlast-store")

    def zygote(self) -> int:
        return self.named("outlast-zygote")

    def rank(self, rank: int) -> int:
        return self.named(f"outlast-rank{rank}")


def _nothing() -> None:
    """Restore nothing."""


def do_nothing(around: Around) -> Undo:
    return _nothing


def see_strike(around: Around) -> Undo:
    """Wait for the strike: the rank does it by itself."""
    around.drill.until(lambda: around.drill.fired(kind="strike"), "the rank's own deed")
    return _nothing


# --- processes ------------------------------------------------------------------------------------


def _killed(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    until("it is dead", lambda: table().get(pid, (0, "Z", 0))[1] == "Z", within_s=5.0)


def _stopped(pid: int) -> Undo:
    os.kill(pid, signal.SIGSTOP)
    until("it is stopped", lambda: table().get(pid, (0, "T", 0))[1] in "TtZ", within_s=5.0)

    def back() -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)

    return back


def kill_store(around: Around) -> Undo:
    _killed(around.store())
    return _nothing


def stop_store(around: Around) -> Undo:
    return _stopped(around.store())


def kill_store_twice(around: Around) -> Undo:
    first = around.store()
    _killed(first)
    until("the next store", lambda: around.store() != first, within_s=20.0)
    _killed(around.store())
    return _nothing


def kill_zygote(around: Around) -> Undo:
    _killed(around.zygote())
    return _nothing


def stop_zygote(around: Around) -> Undo:
    return _stopped(around.zygote())


def kill_zygote_and_store(around: Around) -> Undo:
    zygote, store = around.zygote(), around.store()
    _killed(zygote)
    _killed(store)
    return _nothing


def stop_zygote_and_store(around: Around) -> Undo:
    _stopped(around.zygote())
    return _stopped(around.store())


def _other_rank(around: Around) -> int:
    """Return a rank that is not killed: to begin a regroup, rank 1 is."""
    return around.rank(0 if around.moment is Moment.REGROUP else 1)


def kill_rank(around: Around) -> Undo:
    _killed(_other_rank(around))
    return _nothing


def stop_rank(around: Around) -> Undo:
    return _stopped(_other_rank(around))


# this takes hold of a process, as a debugger does, and lets it go after some seconds
DEBUGGER = """
import ctypes, os, sys, time
pid, held_s = int(sys.argv[1]), float(sys.argv[2])
trace = ctypes.CDLL(None, use_errno=True).ptrace
if trace(16, pid, None, None):
    sys.exit(os.strerror(ctypes.get_errno()))
os.waitpid(pid, 0x40000000)
time.sleep(held_s)
trace(17, pid, None, None)
"""


def hold_by_debugger(around: Around) -> Undo:
    """Hold a rank for three seconds, which is how long a debugger takes to load the symbols of
    torch.
    """
    pid = _other_rank(around)
    debugger = subprocess.Popen([sys.executable, "-c", DEBUGGER, str(pid), "3"])
    around.closing.callback(debugger.wait)
    until("it is held", lambda: table().get(pid, (0, "", 0))[1] == "t", within_s=10.0)
    return _nothing


def kill_all_ranks(around: Around) -> Undo:
    for pid in [around.rank(rank) for rank in (0, 1)]:
        os.kill(pid, signal.SIGKILL)
    return _nothing


def _loader(around: Around) -> int:
    rank = around.rank(0)
    found: list[int] = []
    until(
        "a loader worker",
        lambda: found.extend(pid for pid, (of, _, _) in table().items() if of == rank) or found,
        within_s=10.0,
    )
    return found[0]


def kill_loader(around: Around) -> Undo:
    _killed(_loader(around))
    return _nothing


def stop_loader(around: Around) -> Undo:
    return _stopped(_loader(around))


def stop_everything(around: Around) -> Undo:
    """Stop all processes of the run, as in a machine that is frozen."""
    pids = [around.launcher, *below(around.launcher)]
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)

    def back() -> None:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    return back


# --- the launcher ---------------------------------------------------------------------------------


def _signals(*numbers: signal.Signals) -> Callable[[Around], Undo]:
    def send(around: Around) -> Undo:
        assert around.drill.process.poll() is None, "the launcher has ended"
        for number in numbers:
            os.kill(around.launcher, number)
        return _nothing

    return send


send_term = _signals(signal.SIGTERM)
send_int = _signals(signal.SIGINT)
send_hup = _signals(signal.SIGHUP)
send_quit = _signals(signal.SIGQUIT)
send_usr1 = _signals(signal.SIGUSR1)
send_usr2 = _signals(signal.SIGUSR2)
send_xcpu = _signals(signal.SIGXCPU)
send_harmless = _signals(signal.SIGPIPE, signal.SIGWINCH, signal.SIGCHLD, signal.SIGCONT)
kill_launcher = _signals(signal.SIGKILL)


def send_term_twice(around: Around) -> Undo:
    send_term(around)
    with contextlib.suppress(subprocess.TimeoutExpired):
        around.drill.process.wait(0.3)
    if around.drill.process.poll() is None:
        send_term(around)
    return _nothing


def stop_launcher(around: Around) -> Undo:
    return _stopped(around.launcher)


def stop_by_terminal(around: Around) -> Undo:
    os.kill(around.launcher, signal.SIGTSTP)
    return lambda: os.kill(around.launcher, signal.SIGCONT)


# --- console --------------------------------------------------------------------------------------


def close_console(around: Around) -> Undo:
    fd, around.setting.console_fd = around.setting.console_fd, -1
    assert fd >= 0
    os.close(fd)
    around.setting.stops_reading.set()
    return _nothing


def close_terminal(around: Around) -> Undo:
    return close_console(around)


def stop_console(around: Around) -> Undo:
    """Stop reading the console, so that the pipe itself fills too."""
    around.setting.stops_reading.set()
    return around.setting.stops_reading.clear


# --- files ----------------------------------------------------------------------------------------


def remove_vault(around: Around) -> Undo:
    shutil.rmtree(around.drill.vault())
    return _nothing


def replace_vault(around: Around) -> Undo:
    vault = around.drill.vault()
    shutil.rmtree(vault)
    vault.mkdir()
    return _nothing


def _fill(folder: Path) -> Undo:
    filler = folder / "filler"
    size = 1 << 20
    with filler.open("wb", buffering=0) as file:
        while size:
            try:
                file.write(b"x" * size)
            except OSError:
                size //= 2
    assert filler.stat().st_size, "nothing was filled"
    return lambda: filler.unlink(missing_ok=True)


def fill_shm(around: Around) -> Undo:
    return _fill(around.seen(Path("/dev/shm")))


def fill_disk(around: Around) -> Undo:
    return _fill(around.folder)


def make_read_only(around: Around) -> Undo:
    """Mount the folder over itself, read-only.

    It is prepared beside the folder, where nothing writes yet. The kernel refuses to mount it if
    the launcher has just opened a file for writing.
    """
    path, aside = around.scratch / "run", around.scratch / "aside"
    aside.mkdir()

    def mount(*words: str | Path) -> None:
        inside = ["nsenter", "-t", str(around.launcher), "-m", "mount"]
        subprocess.run([*inside, *map(str, words)], check=True, capture_output=True)

    mount("--bind", path, aside)
    mount("-o", "remount,ro,bind", aside)
    mount("--move", aside, path)
    return lambda: mount("-o", "remount,rw,bind", path)


def remove_folder(around: Around) -> Undo:
    # a file that is made meanwhile keeps rmtree from its end, so it is tried again
    for _ in range(20):
        shutil.rmtree(around.folder, ignore_errors=True)
        if not around.folder.exists():
            return _nothing
    raise AssertionError("the folder is not gone")


def move_folder(around: Around) -> Undo:
    away = around.scratch / "away"
    around.folder.rename(away)

    def back() -> None:
        shutil.rmtree(around.folder, ignore_errors=True)
        away.rename(around.scratch / "run")

    return back


def replace_folder(around: Around) -> Undo:
    move_folder(around)
    (around.scratch / "run").mkdir()
    (around.scratch / "run" / "lock").write_text("1\n")
    return _nothing


def remove_logs(around: Around) -> Undo:
    shutil.rmtree(around.folder / "logs")
    return _nothing


def remove_evidence(around: Around) -> Undo:
    shutil.rmtree(around.folder / "evidence")
    return _nothing


def remove_checkpoints(around: Around) -> Undo:
    folder = around.folder / "checkpoints"
    assert folder.exists()
    for _ in range(20):
        shutil.rmtree(folder, ignore_errors=True)
    return _nothing


def replace_checkpoints(around: Around) -> Undo:
    remove_checkpoints(around)
    path = around.folder / "checkpoints"
    if path.exists():
        path.rename(around.scratch / "checkpoints-away")
    path.write_text("no folder")
    return _nothing


def remove_script(around: Around) -> Undo:
    script = Path(around.setting.script)
    text = script.read_bytes()
    script.unlink()
    return lambda: script.write_bytes(text)


def remove_working_folder(around: Around) -> Undo:
    (around.scratch / "cwd").rmdir()
    return _nothing


def remove_temporary(around: Around) -> Undo:
    shutil.rmtree(around.scratch / "tmp")
    return _nothing


# --- the ledger -----------------------------------------------------------------------------------


def lock_ledger(around: Around) -> Undo:
    path = around.folder / "ledger.db"
    around.drill.until(path.exists, str(path))  # a lock before that would itself make the file
    other = sqlite3.connect(path, timeout=30, isolation_level=None, check_same_thread=False)
    other.execute("BEGIN IMMEDIATE")
    around.closing.callback(other.close)
    return lambda: other.execute("ROLLBACK")


def remove_ledger(around: Around) -> Undo:
    (around.folder / "ledger.db").unlink()
    return _nothing


def _is_made(around: Around) -> bool:
    """Return whether the ledger can be read, which means that its launcher has made it."""
    try:
        look(around.folder)
    except OutlastError:
        return False
    return True


def _cut(name: str) -> Callable[[Around], Undo]:
    def cut(around: Around) -> Undo:
        path = around.folder / name
        around.drill.until(lambda: path.exists() and _is_made(around), str(path))
        os.truncate(path, 0)
        return _nothing

    return cut


cut_ledger, cut_index, cut_wal = _cut("ledger.db"), _cut("ledger.db-shm"), _cut("ledger.db-wal")


def overwrite_ledger(around: Around) -> Undo:
    path = around.folder / "ledger.db"
    with path.open("r+b") as file:
        file.write(b"\xa5" * path.stat().st_size)
    return _nothing


# --- limits ---------------------------------------------------------------------------------------


def _limit(pid: int, kind: int, most: int) -> Undo:
    before = resource.prlimit(pid, kind, (most, resource.prlimit(pid, kind)[1]))

    def back() -> None:
        with contextlib.suppress(ProcessLookupError):
            resource.prlimit(pid, kind, before)

    return back


def _open_count(pid: int) -> int:
    return max(int(name) for name in os.listdir(f"/proc/{pid}/fd")) + 1


def limit_descriptors(around: Around) -> Undo:
    return _limit(around.launcher, resource.RLIMIT_NOFILE, _open_count(around.launcher))


def limit_zygote_descriptors(around: Around) -> Undo:
    pid = around.zygote()
    return _limit(pid, resource.RLIMIT_NOFILE, _open_count(pid))


def limit_memory(around: Around) -> Undo:
    pages = int(Path(f"/proc/{around.launcher}/statm").read_text().split()[0])
    return _limit(around.launcher, resource.RLIMIT_AS, pages * resource.getpagesize() + (1 << 16))


def limit_file_size(around: Around) -> Undo:
    return _limit(around.launcher, resource.RLIMIT_FSIZE, 4096)


def limit_processes(around: Around) -> Undo:
    group = around.setting.group
    assert group is not None
    (group / "pids.max").write_text((group / "pids.current").read_text())
    return lambda: (group / "pids.max").write_text("max")


def limit_rank_threads(around: Around) -> Undo:
    return limit_processes(around)


# --- network and others ---------------------------------------------------------------------------


def loopback_down(around: Around) -> Undo:
    def ip(how: str) -> None:
        command = ["nsenter", "-t", str(around.launcher), "-n", "ip", "link", "set", "lo", how]
        subprocess.run(command, check=True, capture_output=True)

    ip("down")
    return lambda: ip("up")


def _store_port(around: Around) -> int:
    """Return the port on which the store's host listens."""
    pid = around.store()
    inodes = set()
    for name in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(OSError):
            inodes.add(os.readlink(f"/proc/{pid}/fd/{name}"))
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        words = line.split()
        if words[3] == "0A" and f"socket:[{words[9]}]" in inodes:
            return int(words[1].rpartition(":")[2], 16)
    raise AssertionError("the store listens nowhere")


def garbage_to_store(around: Around) -> Undo:
    with socket.create_connection(("127.0.0.1", _store_port(around)), timeout=5) as one:
        one.sendall(b"GET / HTTP/1.1\r\n\r\n" + bytes(range(256)) * 64)
    return _nothing


def flood_store(around: Around) -> Undo:
    port = _store_port(around)
    for _ in range(100):
        around.closing.enter_context(socket.create_connection(("127.0.0.1", port), timeout=5))
    return _nothing


# --- clocks ---------------------------------------------------------------------------------------


def _set_wall_clock(ahead_s: int) -> Callable[[Around], Undo]:
    def set_clock(around: Around) -> Undo:
        assert around.setting.wall_jump is not None
        around.setting.wall_jump.write_text(str(ahead_s))
        return _nothing

    return set_clock


wall_clock_forward, wall_clock_back = _set_wall_clock(2 * 86_400), _set_wall_clock(-3 * 86_400)
