"""The evidence of an interruption.

It is secured before a process is gone, and is written once training goes on.

    evidence/interruption-<id>/
      standing.json            each process that was alive when the first one was given up: where
                               it stood, what the kernel said, how it ended (schema 1)
      stacks-rank<r>.txt       what the process itself wrote while it stood still
                               (runtime/worker/process/witness.py)
      recorder-rank<r>.json    its copy of torch's flight recorder
      <stream>-rank<r>.log     the end of what it printed
      verdict.json             what `outlast diagnose` concludes from all of these

On several nodes, each node first keeps its own evidence (secured_evidence.py). The node that leads
gathers it (runtime/coordinator/evidence_gatherer.py).

Before a kill the agent takes EVIDENCE_BUDGET_S at most, over all kills of one interruption, because
recovery waits for it. Once that time is used up, the agent reads nothing more, waits for nothing
more, and keeps what it has read until then. Only a single read of bounded size (`glance.py`) may
end after it. A separate process finds the verdict, at low priority, after training goes on. At the
end of a run the launcher waits for it.
"""

from __future__ import annotations

import json
import math
import re
import signal
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from outlast.model import limits
from outlast.model.beacon import Beacon
from outlast.model.records import Interruption
from outlast.runtime import kernel_log
from outlast.runtime.agent.glance import Glance
from outlast.runtime.agent.oom import OomKill
from outlast.runtime.agent.processes import Exited
from outlast.runtime.agent.verdict_queue import OnVerdict, VerdictQueue
from outlast.runtime.folders.node_folders import node_folder_name
from outlast.runtime.linux import stat_fields
from outlast.runtime.loop import Loop

PROCESSES = "processes.json"  # the processes of one of several nodes
_PROC = ("stat", "wchan", "syscall")
_TAIL_BYTES = 64 * 1024
_STACKS_MAX_BYTES = 512 * 1024  # a hundred threads of forty frames
_RECORDER_MAX_BYTES = 16 << 20
_FRAME = re.compile(r'^  File "(.*)", line (\d+) in (.*)$', re.MULTILINE)
_CLOCKS_S = 0.02  # a file's time is that of the kernel's last tick


@dataclass
class _Process:
    """One line of standing.json.

    age_s     since its beacon moved
    kernel    /proc/<pid>/{stat,wchan,syscall}, where they were read
    killed    outlast killed it
    oom       the kernel killed it for memory; it died of a SIGKILL that outlast did not send
    oom_near  the kernel counted an OOM kill at that time, but not of which process
    oom_read  the kernel's counters of OOM kills could be read then; if not, `oom` says nothing
    generation  the generation that it was in; 0: in none yet
    """

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
    oom_near: bool = False
    oom_read: bool = False
    generation: int = 0

    @property
    def is_over(self) -> bool:
        return self.exit_code is not None or self.signal is not None


@dataclass
class _Case:
    """The facts that are known about the interruption that is being recorded.

    since_s     stacks count only if they were written after this time, on the wall clock
    stands_s    by worker: since when it stands where it does, but not earlier than `since_s`. Older
                stacks are of an earlier alarm, because slow steps are asked about too
    processes   by worker
    stacks      by rank: what the process wrote, unchanged
    logs        by rank: the files that the process prints to
    spent_s     how long recovery was held up for this evidence so far
    """

    since_s: float
    stands_s: dict[int, float] = field(default_factory=dict)
    processes: dict[int, _Process] = field(default_factory=dict)
    stacks: dict[int, bytes] = field(default_factory=dict)
    logs: dict[int, dict[str, Path]] = field(default_factory=dict)
    spent_s: float = 0.0

    def is_past(self, live: Iterable[tuple[int, int, Beacon]]) -> bool:
        """Return whether training has gone on since the places were noted.

        That is so if a process has made steps since: in another generation, or in the same one if
        no process had failed. Some regroups are not interruptions, so nobody asked for their
        places.
        """
        failed = any(one.killed or one.is_over for one in self.processes.values())
        return any(
            (one := self.processes.get(worker)) is not None
            and beacon.step > one.step + 1
            and (beacon.generation > one.generation or not failed)
            for worker, _, beacon in live
        )

    def take(self, *, since: int, before: int) -> tuple[_Case, _Case | None]:
        """Return the part that belongs to the interruption of generation `since`, and the rest.

        Training went on after it in generation `before`. The rest belongs to a later interruption;
        None: there is no rest. What is older than `since` is dropped, because no interruption came
        of it. A process in generation 0 ended before it joined one.
        """
        own, rest = _Case(self.since_s), _Case(self.since_s, spent_s=self.spent_s)
        for worker, one in self.processes.items():
            if 0 < one.generation < since:
                continue
            part = own if one.generation < before else rest
            part.processes[worker], part.stands_s[worker] = one, self.stands_s[worker]
            part.logs.setdefault(one.rank, self.logs.get(one.rank, {}))
            if one.rank in self.stacks and one.rank not in own.stacks:
                part.stacks[one.rank] = self.stacks[one.rank]
        return own, rest if rest.processes else None


class EvidenceCollector:
    """Gather evidence about processes before they are killed.

    live_beacons   returns worker, pid and newest beacon of all processes that have one
    logs           returns the files that a worker prints to
    command        finds a verdict in a folder, and prints it as JSON
    """

    def __init__(
        self,
        *,
        loop: Loop,
        folder: Path,
        vault: Path,
        live_beacons: Callable[[], Iterable[tuple[int, int, Beacon]]],
        logs: Callable[[int], Mapping[str, Path]],
        command: tuple[str, ...],
        on_verdict: OnVerdict,
        glance: Glance | None = None,
    ) -> None:
        self._folder = folder
        self._vault = vault
        self._live_beacons = live_beacons
        self._logs = logs
        self._glance = glance or Glance()
        self._case: _Case | None = None
        self._earlier: _Case | None = None  # the newest one after which training has gone on
        self._written: set[int] = set()
        self._verdict_queue = VerdictQueue(loop, command, on_verdict)

    # --- while the interruption goes on ---

    def before_kill(self, worker: int, pid: int, *, hung: bool) -> None:
        """Read what a process that is still alive can tell, before it is killed.

        This covers what only the process can tell, and what other processes will overwrite as they
        go on. `hung`: it is killed because it hangs.
        """
        began_s = self._glance.now_s()
        case = self._look(began_s)
        until_s = began_s + limits.EVIDENCE_BUDGET_S - case.spent_s
        process = case.processes.get(worker)
        if process is not None:
            process.killed = True
            for name in _PROC:
                if self._glance.now_s() < until_s and (text := self._glance.kernel(pid, name)):
                    process.kernel[name] = text
            if (
                hung
                and process.rank not in case.stacks
                and _runs(process.kernel)
                and not self._take_stacks(case, process, until_s)
            ):
                until_s += self._ask_for_stacks(case, process, until_s)
        for one in case.processes.values():
            if one.rank not in case.stacks:
                self._take_stacks(case, one, until_s)
        case.spent_s += self._glance.now_s() - began_s

    def note_places(self) -> bool:
        """Note where all processes stand now, because they are about to leave their generation.

        On several nodes, a process of another node may have failed, so that none is killed here.
        Only memory is read, because recovery waits. Return whether this is the first note of an
        interruption: `keep_stacks` has to follow then, once the processes were told to leave.
        """
        before = self._case
        self._look(self._glance.now_s())
        return self._case is not before

    def keep_stacks(self) -> None:
        """Keep the stacks that the processes of this node have written, if there is time left."""
        case = self._case
        if case is None:
            return
        began_s = self._glance.now_s()
        until_s = began_s + limits.EVIDENCE_BUDGET_S - case.spent_s
        for one in case.processes.values():
            if one.rank not in case.stacks:
                self._take_stacks(case, one, until_s)
        case.spent_s += self._glance.now_s() - began_s

    def find_place(self, worker: int, pid: int) -> str:
        """Return where a process stands that does not answer: "file:line in function".

        It is asked for its stacks by signal, which takes up to STACKS_WAIT_S. If it does not write
        them either, the name of what it waits for in the kernel is returned, or "".
        """
        path, text = self._folder / f"stacks-{worker}.txt", b""
        if self._glance.catches(pid, limits.STACKS_SIGNAL):
            self._glance.clear(path)
            self._glance.signal(pid, limits.STACKS_SIGNAL)
            before, until_s = b"", self._glance.now_s() + limits.STACKS_WAIT_S
            while (not text or text != before) and self._glance.now_s() < until_s:
                self._glance.pause(0.001)
                before, text = text, self._glance.read(path, most_bytes=_STACKS_MAX_BYTES)
        if place := innermost_place(text.decode("utf-8", "replace")):
            return place
        wchan = self._glance.kernel(pid, "wchan")
        return f"{wchan} in the kernel" if wchan not in ("", "0") else ""

    def ended(self, exited: Exited) -> None:
        """Note how a process ended.

        Recovery waits for its death, so nothing is read now. What the process wrote is not
        overwritten, and can be read later.
        """
        process = self._look(self._glance.now_s()).processes.get(exited.worker)
        if process is not None:
            process.exit_code, process.signal = exited.exit_code, exited.signal
            process.killed = process.killed or exited.killed
            foreign = exited.signal == signal.SIGKILL and not process.killed
            process.oom = exited.oom is OomKill.OURS
            process.oom_near = exited.oom is OomKill.SOMEBODY
            process.oom_read = foreign and exited.oom is not OomKill.NOT_READ

    def _look(self, now_s: float) -> _Case:
        """Note where all processes stand when the first of them is given up."""
        if self._case is not None and self._case.is_past(self._live_beacons()):
            self._earlier, self._case = self._case, None
        case = self._case = self._case or self._new_case()
        for worker, pid, beacon in self._live_beacons():
            if beacon.rank >= 0 and worker not in case.processes:
                age_s = max(0.0, now_s - beacon.at_ns / 1e9)
                case.processes[worker] = _Process(
                    worker,
                    beacon.rank,
                    pid,
                    beacon.phase.value,
                    beacon.step,
                    round(age_s, 3),
                    generation=beacon.generation,
                )
                case.stands_s[worker] = max(case.since_s, self._glance.wall_s() - age_s - _CLOCKS_S)
                case.logs[beacon.rank] = dict(self._logs(worker))
        return case

    def _new_case(self) -> _Case:
        return _Case(since_s=self._glance.wall_s() - limits.STACKS_FRESH_S)

    def _take_stacks(self, case: _Case, process: _Process, until_s: float) -> bytes:
        """Keep the stacks that a process has written, if it has written any. Return them."""
        text = self._stacks(case, process, until_s)
        if text:
            case.stacks[process.rank] = text
        return text

    def _stacks(self, case: _Case, process: _Process, until_s: float = math.inf) -> bytes:
        """Read as much of a process's stacks as can be read until `until_s`.

        Return none if what it has written is older than its present halt.
        """
        path, text = self._folder / f"stacks-{process.worker}.txt", b""
        if (
            self._glance.now_s() >= until_s
            or self._glance.written_s(path) < case.stands_s[process.worker]
        ):
            return b""
        for piece in self._glance.pieces(path, most_bytes=_STACKS_MAX_BYTES):
            text += piece
            if self._glance.now_s() >= until_s:
                break
        return text

    def _ask_for_stacks(self, case: _Case, process: _Process, until_s: float) -> float:
        """Ask a process that did not answer its ping for its stacks. Return the seconds it took.

        Something holds its interpreter lock, and its handler of the signal writes without it. It is
        asked only before `until_s`, but may then take STACKS_WAIT_S.
        """
        began_s, seen = self._glance.now_s(), b""
        if began_s >= until_s or not self._glance.catches(process.pid, limits.STACKS_SIGNAL):
            return 0.0
        until_s = began_s + limits.STACKS_WAIT_S
        self._glance.clear(self._folder / f"stacks-{process.worker}.txt")
        self._glance.signal(process.pid, limits.STACKS_SIGNAL)
        while self._glance.now_s() < until_s:
            before, seen = seen, self._take_stacks(case, process, until_s)
            # its file has not grown since the last look, so it is complete
            if seen and seen == before:
                break
            self._glance.pause(0.001)
        return self._glance.now_s() - began_s

    # --- once the interruption is over ---

    def close(self, interruption: Interruption) -> None:
        """Write the folder of an interruption that is over, and let its verdict be found."""
        if interruption.parent is not None:
            # it came during another interruption, and its evidence is in the folder of that one
            return
        if interruption.id in self._written:
            return
        case, self._case = self._case or self._new_case(), None
        folder = self._folder / f"interruption-{interruption.id}"
        try:
            self._write(folder, interruption, case)
        except OSError:
            return  # a disk that cannot store the evidence does not stop the run
        self._written.add(interruption.id)
        self.find_verdict(interruption.id, folder)

    def secure(self, folder: Path, *, node: str, since: int, before: int) -> None:
        """Write what this node knows of an interruption into `folder`. Raises OSError.

        It is sent to the node that leads, which knows the interruption. `since` and `before` are
        those of `AskEvidence`.
        """
        own, self._case = (self._case or self._new_case()).take(since=since, before=before)
        if not own.processes and self._earlier is not None:
            own, self._earlier = self._earlier.take(since=since, before=before)
        folder.mkdir(parents=True, exist_ok=True)
        record = {
            "schema": 1,
            "outlast": "processes",
            "node": node,
            "processes": [asdict(one) for one in own.processes.values()],
        }
        (folder / PROCESSES).write_text(json.dumps(record, indent=1) + "\n")
        self._write_files(folder, own)
        host = node_folder_name(node)
        said = kernel_log.read_since(
            own.since_s + limits.STACKS_FRESH_S - limits.KERNEL_LOG_BEFORE_S,
            host=host,
            most_bytes=limits.KERNEL_LOG_TAIL_BYTES,
        )
        if own.processes and said:
            (folder / f"dmesg-of-{host}.txt").write_bytes(said)

    def find_verdict(self, interruption: int, folder: Path) -> None:
        """Let the verdict on an interruption be found in its folder of evidence."""
        self._verdict_queue.ask(interruption, folder)

    def stop(self) -> None:
        """End all searches: this node leads no longer."""
        self._verdict_queue.stop()

    def finish(self, open_ones: Iterable[Interruption], *, within_s: float) -> None:
        """Close what is still open, and wait for the verdicts: the run is over."""
        for one in open_ones:
            self.close(one)
        self._verdict_queue.finish(within_s=within_s)

    def _write(self, folder: Path, interruption: Interruption, case: _Case) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        about = interruption.public(began_s=0.0)
        record = {
            "schema": 1,
            "outlast": "standing",
            "interruption": about,
            "processes": [asdict(one) for one in case.processes.values()],
        }
        (folder / "standing.json").write_text(json.dumps(record, indent=1) + "\n")
        self._write_files(folder, case)

    def _write_files(self, folder: Path, case: _Case) -> None:
        for one in case.processes.values():
            # A process that has ended cannot write its stacks again, so these show its end.
            if text := case.stacks.get(one.rank) or (
                self._stacks(case, one) if one.is_over else b""
            ):
                (folder / f"stacks-rank{one.rank}.txt").write_bytes(text)
            recorder = self._vault / f"recorder-{one.worker}"
            if text := self._glance.read(recorder, most_bytes=_RECORDER_MAX_BYTES):
                (folder / f"recorder-rank{one.rank}.json").write_bytes(text)
                recorder.unlink()
        for rank, paths in case.logs.items():
            for stream, path in paths.items():
                if text := self._tail(path):
                    (folder / f"{stream}-rank{rank}.log").write_bytes(text)

    def _tail(self, path: Path) -> bytes:
        """Return the last lines that a process printed."""
        text = self._glance.read(path, most_bytes=_TAIL_BYTES, end=True)
        return text if len(text) < _TAIL_BYTES else text.partition(b"\n")[2]


def innermost_place(stacks: str) -> str:
    """Return "file:line in function" of the innermost frame outside torch and outlast.

    stacks   as faulthandler writes them; the thread that has the interpreter counts, or the first
    """
    _, current, rest = stacks.partition("Current thread ")
    own = (rest if current else stacks).partition("\n\n")[0]
    frames = [match.groups() for match in _FRAME.finditer(own)]
    theirs = [one for one in frames if "/torch/" not in one[0] and "/outlast/" not in one[0]]
    if not frames:
        return ""
    file, line, function = (theirs or frames)[0]
    return f"{file}:{line} in {function}"


def _runs(kernel: Mapping[str, str]) -> bool:
    """Return whether a process can take a signal.

    It cannot if it is stopped, gone, or in the kernel for good.
    """
    fields = stat_fields(kernel.get("stat", "").encode())
    return bool(fields) and fields[0] in (b"R", b"S")
