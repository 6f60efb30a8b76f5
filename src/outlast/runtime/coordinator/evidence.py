"""What is kept of an interruption, for its verdict: secured before a process is gone, written down once training goes on.

    evidence/interruption-<id>/
      standing.json            each process that lived when the first one was given up: where it stood, what the kernel said, how it ended (schema 1)
      stacks-rank<r>.txt       what the process itself wrote while it stood still (runtime/worker/witness.py)
      recorder-rank<r>.json    its copy of torch's flight recorder
      <stream>-rank<r>.log     the end of what it printed
      verdict.json             what `outlast diagnose` makes of all that

Before a kill the agent takes EVIDENCE_BUDGET_S at most: recovery waits for no more. The verdict is found by a process of its own, at low priority, after
training goes on; at the end of a run it is waited for.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from outlast.model import limits
from outlast.model.beacon import Beacon
from outlast.model.records import Interruption
from outlast.runtime import clock
from outlast.runtime.agent.processes import Exited
from outlast.runtime.linux import stat_fields
from outlast.runtime.loop import Loop, Timer

_PROC = ("stat", "wchan", "syscall")
_TAIL_BYTES = 64 * 1024
OnVerdict = Callable[[int, Mapping[str, object]], None]


@dataclass
class _Process:
    """One line of standing.json. `age_s`: since its beacon moved; `kernel`: /proc/<pid>/{stat,wchan,syscall}, where they were read."""

    worker: int
    rank: int
    pid: int
    phase: str
    step: int
    age_s: float
    kernel: dict[str, str] = field(default_factory=dict)
    killed: bool = False
    exit_code: int | None = None
    signal: int | None = None
    oom: bool = False


@dataclass
class _Case:
    """What is known of the interruption at hand: processes by worker, stacks and logs by rank."""

    processes: dict[int, _Process] = field(default_factory=dict)
    stacks: dict[int, bytes] = field(default_factory=dict)
    logs: dict[int, dict[str, Path]] = field(default_factory=dict)
    spent_s: float = 0.0


class Evidence:
    """`standing` tells of all that live (worker, pid, beacon); `logs` where a worker prints. `command`: finds a verdict in a folder, on stdout, as JSON."""

    def __init__(
        self, *, loop: Loop, folder: Path, vault: Path, standing: Callable[[], Iterable[tuple[int, int, Beacon]]], logs: Callable[[int], Mapping[str, Path]],
        command: tuple[str, ...], on_verdict: OnVerdict,
    ) -> None:  # fmt: skip
        self._folder = folder
        self._vault = vault
        self._standing = standing
        self._logs = logs
        self._case = _Case()
        self._written: dict[int, Path] = {}
        self._desk = _Desk(loop, command, on_verdict)

    # --- while it happens ---

    def before_kill(self, worker: int, pid: int, *, hung: bool) -> None:
        """The process still lives. Takes what only it can tell, and what others will overwrite as they go on. `hung`: it is killed for that."""
        began_s = clock.now_s()
        case = self._look(began_s)
        process = case.processes.get(worker)
        if process is not None and case.spent_s < limits.EVIDENCE_BUDGET_S:
            process.killed = True
            process.kernel = {name: text for name in _PROC if (text := _read_proc(pid, name))}
            if hung and worker not in case.stacks and _runs(process.kernel) and not self._fresh_stacks(process):
                self._ask_for_stacks(process)
        for one in case.processes.values():
            if case.spent_s + clock.now_s() - began_s < limits.EVIDENCE_BUDGET_S and one.rank not in case.stacks:
                self._take_stacks(case, one)
        case.spent_s += clock.now_s() - began_s

    def ended(self, exited: Exited) -> None:
        case = self._look(clock.now_s())
        process = case.processes.get(exited.worker)
        if process is not None:
            process.exit_code, process.signal, process.oom = exited.exit_code, exited.signal, bool(exited.oom)
            self._take_stacks(case, process)

    def _look(self, now_s: float) -> _Case:
        """Where all stand when the first of them is given up."""
        for worker, pid, beacon in self._standing():
            if beacon.rank >= 0 and worker not in self._case.processes:
                age_s = max(0.0, now_s - beacon.at_ns / 1e9)
                self._case.processes[worker] = _Process(worker, beacon.rank, pid, beacon.phase.value, beacon.step, round(age_s, 3))
                self._case.logs[beacon.rank] = dict(self._logs(worker))
        return self._case

    def _take_stacks(self, case: _Case, process: _Process) -> None:
        if text := self._fresh_stacks(process):
            case.stacks[process.rank] = text

    def _fresh_stacks(self, process: _Process) -> bytes:
        try:
            with (self._folder / f"stacks-{process.worker}.txt").open("rb") as file:
                fresh = clock.wall_s() - os.fstat(file.fileno()).st_mtime < limits.STACKS_FRESH_S
                return file.read(_TAIL_BYTES) if fresh else b""
        except OSError:
            return b""

    def _ask_for_stacks(self, process: _Process) -> None:
        """It did not answer the ping: something holds its interpreter lock. The handler writes without it."""
        until_s, seen = clock.now_s() + limits.STACKS_WAIT_S, b""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(process.pid, limits.STACKS_SIGNAL)
        while clock.now_s() < until_s:
            before, seen = seen, self._fresh_stacks(process)
            if seen and seen == before:  # it has come to its end
                return
            time.sleep(0.001)

    # --- once it is over ---

    def close(self, interruption: Interruption) -> None:
        """Training goes on, or will not. Its folder is written, and its verdict is sought. Children are part of their parent."""
        root = interruption.id if interruption.parent is None else interruption.parent
        if root in self._written or interruption.parent is not None:
            return
        case, self._case = self._case, _Case()
        folder = self._folder / f"interruption-{root}"
        try:
            self._write(folder, interruption, case)
        except OSError:
            return  # a disk that takes no evidence stops nobody
        self._written[root] = folder
        self._desk.ask(root, folder)

    def finish(self, open_ones: Iterable[Interruption], *, within_s: float) -> None:
        """The run is over: what is still open is closed, and verdicts that are sought are waited for."""
        for one in open_ones:
            self.close(one)
        self._desk.finish(within_s=within_s)

    def _write(self, folder: Path, interruption: Interruption, case: _Case) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        about = interruption.public(began_s=0.0)
        standing = {"schema": 1, "outlast": "standing", "interruption": about, "processes": [asdict(one) for one in case.processes.values()]}
        (folder / "standing.json").write_text(json.dumps(standing, indent=1) + "\n")
        for rank, text in case.stacks.items():
            (folder / f"stacks-rank{rank}.txt").write_bytes(text)
        for one in case.processes.values():
            recorder = self._vault / f"recorder-{one.worker}"
            with contextlib.suppress(FileNotFoundError):
                (folder / f"recorder-rank{one.rank}.json").write_bytes(recorder.read_bytes())
                recorder.unlink()
        for rank, paths in case.logs.items():
            for stream, path in paths.items():
                if text := _tail(path):
                    (folder / f"{stream}-rank{rank}.log").write_bytes(text)


class _Desk:
    """Seeks verdicts, one after the other."""

    def __init__(self, loop: Loop, command: tuple[str, ...], on_verdict: OnVerdict) -> None:
        self._loop = loop
        self._command = command
        self._on_verdict = on_verdict
        self._waiting: deque[tuple[int, Path]] = deque()
        self._at_work: tuple[int, Path, subprocess.Popen[bytes], int] | None = None
        self._limit: Timer | None = None

    def ask(self, interruption: int, folder: Path) -> None:
        self._waiting.append((interruption, folder))
        self._loop.call_soon(self._begin)

    def finish(self, *, within_s: float) -> None:
        """The loop runs no more."""
        until_s = clock.now_s() + within_s
        while self._at_work is not None or self._waiting:
            self._begin()
            if self._at_work is None:
                continue
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._at_work[2].wait(timeout=max(0.1, until_s - clock.now_s()))
            self._over(looping=False)

    def _begin(self) -> None:
        if self._at_work is not None or not self._waiting:
            return
        interruption, folder = self._waiting.popleft()
        try:
            with (folder / "verdict.part").open("wb") as out:
                process = subprocess.Popen([*self._command, str(folder)], stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.DEVNULL)
            os.setpriority(os.PRIO_PROCESS, process.pid, 10)
            pidfd = os.pidfd_open(process.pid)
        except OSError:
            return
        self._at_work = (interruption, folder, process, pidfd)
        self._loop.add_reader(pidfd, lambda: self._over(looping=True))
        self._limit = self._loop.call_at(clock.now_s() + limits.DIAGNOSIS_S, process.kill)

    def _over(self, *, looping: bool) -> None:
        """Supervision boundary: without a verdict the run has none for this one, and goes on."""
        assert self._at_work is not None
        interruption, folder, process, pidfd = self._at_work
        self._at_work = None
        self._loop.remove_reader(pidfd)
        os.close(pidfd)
        if self._limit is not None:
            self._limit.cancel()
        process.kill()
        process.wait()
        part = folder / "verdict.part"
        try:
            verdict = json.loads(part.read_bytes())
            part.replace(folder / "verdict.json")
        except (OSError, ValueError):
            verdict = None
        if isinstance(verdict, dict):
            self._on_verdict(interruption, verdict)
        if looping:
            self._loop.call_soon(self._begin)


def _runs(kernel: Mapping[str, str]) -> bool:
    """It can take a signal: it is neither stopped, nor in the kernel for good, nor gone."""
    fields = stat_fields(kernel.get("stat", "").encode())
    return bool(fields) and fields[0] in (b"R", b"S")


def _read_proc(pid: int, name: str) -> str:
    try:
        with open(f"/proc/{pid}/{name}", "rb") as file:
            return file.read(4096).decode("ascii", "backslashreplace").strip()
    except OSError:
        return ""


def _tail(path: Path) -> bytes:
    """Its last lines."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _TAIL_BYTES))
            text = file.read(_TAIL_BYTES)
    except OSError:
        return b""
    return text if size <= _TAIL_BYTES else text.partition(b"\n")[2]
