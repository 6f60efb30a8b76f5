"""Gather on this node what a diagnosis needs of a job that hangs or has just failed.

    dumps/       the flight recorder of each rank, asked for by a byte into its pipe: NCCL's where
                 TORCH_NCCL_DEBUG_INFO_PIPE_FILE was set, and that of `outlast.record_collectives`
    stacks/      two stacks of each process, some seconds apart, by py-spy where it is installed
    logs/        what the ranks and their launcher print, where that goes to files; of torchrun's
                 `--log-dir` all ranks of the newest attempt, also of those that have ended
    dmesg-of-HOST.txt    the kernel's log since the job's start
    node/        what each process does (state, channel, moves); for people memory and its limits,
                 disks, the holder of the master port, GPUs, versions of packages

No process is stopped, and nothing is written outside of OUT. Each command has a time limit.
Evidence that could not be gathered is named with the reason, and the rest is gathered anyway.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import stat
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path

from outlast.errors import UsageError, message_of
from outlast.model.texts import cut_at_word, some
from outlast.runtime import kernel_log
from outlast.runtime.collect.ports import holder_of
from outlast.runtime.collect.processes import (
    JobProcess,
    activity_of,
    environment_of,
    find_processes,
    uses_gpu,
)

STACKS_APART_S = 5.0
# a share of the time between the looks; it is low because the machine may be shared
RAN_SHARE = 0.2
DUMP_WAIT_S = 15.0
COMMAND_S = 30.0
LOG_MAX_BYTES = 64 << 20  # of a longer log, the end is kept
PIPES = ("TORCH_FR_DEBUG_INFO_PIPE_FILE", "TORCH_NCCL_DEBUG_INFO_PIPE_FILE", "OUTLAST_RECORD_PIPE")
DUMPS = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
RECORDED_NAME = "trace_rank_"  # as runtime/worker/communication/flight_recorder.py names its files
PY_SPY_MISSING = "py-spy is not installed (pip install py-spy): no stacks of Python"


@dataclass(slots=True)
class Collected:
    """The evidence that was gathered, counted by kind, and sentences about what is missing."""

    folder: Path
    at_s: float = field(default_factory=time.time)
    processes: list[JobProcess] = field(default_factory=list)
    got: dict[str, int] = field(default_factory=dict)
    lacking: list[str] = field(default_factory=list)

    def lack(self, sentence: str) -> None:
        if sentence not in self.lacking:
            self.lacking.append(sentence)


def collect(
    folder: Path,
    *,
    pids: Sequence[int] = (),
    job: str = "",
    apart_s: float = STACKS_APART_S,
    dump_wait_s: float = DUMP_WAIT_S,
    on_step: Callable[[str], None] = lambda what: None,
) -> Collected:
    """Collect all available evidence into a new folder. Raises UsageError.

    Stacks are taken twice, `apart_s` apart. A flight recorder may answer within `dump_wait_s`.
    """
    processes = find_processes(pids=pids, job=job)
    if not processes:
        raise UsageError(
            "no process of a training job was found on this node"
            + (
                f" for {', '.join(map(str, pids))}"
                if pids
                else f" for the job {job}"
                if job
                else ""
            ),
            hint=(
                "run it on the node and as the user of the job; name the launcher or a rank with"
                " --pid, or the run with --job (torchrun's --rdzv-id, or Slurm's job id)"
            ),
        )
    if not pids and not job:
        refuse_several_jobs(processes)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise UsageError(
                f"{folder} is not empty", hint="name a new folder: two incidents do not mix"
            )
    except OSError as error:
        raise UsageError(
            f"{folder} cannot be written: {error.strerror}", hint="name a folder that can be made"
        ) from None
    out = Collected(folder, processes=processes)
    on_step(f"{len([one for one in processes if one.is_rank])} ranks found")
    if gone := ended_here(processes):
        ranks = some([str(rank) for rank in gone])
        out.lack(f"no process of rank {ranks}: it has ended, or belongs to another user")
    # What changes comes first: stacks of this moment, then dumps, then stacks of a later moment.
    before = {one.pid: _activity(one) for one in processes}
    _stacks(out, "first")
    began_s = time.monotonic()
    on_step("asking for the flight recorders")
    _dumps(out, dump_wait_s)
    time.sleep(max(0.0, apart_s - (time.monotonic() - began_s)))
    processes_text = _processes(out, before, time.monotonic() - began_s)
    on_step("taking stacks once more")
    _stacks(out, "second")
    on_step("copying logs")
    _logs(out)
    on_step("asking the node")
    _kernel_log(out)
    _node(out, processes_text)
    (folder / "node" / "collected.json").write_text(json.dumps(_record(out), indent=1) + "\n")
    return out


def refuse_several_jobs(processes: Sequence[JobProcess]) -> None:
    """Raise UsageError for two jobs in one folder, because they would be diagnosed as one."""
    launchers: dict[int, JobProcess] = {}
    for one in processes:
        if one.is_rank:
            launchers.setdefault(one.parent, one)
    if len(launchers) > 1:
        named = "".join(
            # If the launcher of a process is gone, its parent is init, which adopts all orphans.
            f"\n  --pid {pid if pid > 1 else one.pid}"
            f"  rank {one.rank}: {cut_at_word(one.command, 80)}"
            for pid, one in sorted(launchers.items())
        )
        raise UsageError(
            f"processes of {len(launchers)} jobs run on this node", hint=f"name yours:{named}"
        )


def ended_here(processes: Sequence[JobProcess]) -> list[int]:
    """Return the ranks of this node that have no process any more, if their numbers are known.

    A launcher gives consecutive numbers to the ranks of a node.
    """
    here = {one.rank for one in processes if one.is_rank}
    for one in processes:
        local = one.environment.get("LOCAL_RANK", "")
        if one.is_rank and one.local_world_size and local.isdecimal():
            first = one.rank - int(local)
            return sorted(set(range(first, first + one.local_world_size)) - here)
    return []


def _record(out: Collected) -> dict[str, object]:
    """Record what was gathered, when, and what was not, for people who get the folder."""
    return {
        "collected_at_s": out.at_s,
        "ranks": {one.pid: one.rank for one in out.processes if one.is_rank},
        "got": out.got,
        "lacking": out.lacking,
    }


# --- stacks ---------------------------------------------------------------------------------------


def _stacks(out: Collected, when: str) -> None:
    spy = shutil.which("py-spy")
    if spy is None:
        out.lack(PY_SPY_MISSING)
        return
    (out.folder / "stacks").mkdir(exist_ok=True)
    running = [
        (
            one,
            subprocess.Popen(
                [spy, "dump", "--nonblocking", "--pid", str(one.pid)],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            ),
        )
        for one in out.processes
    ]
    for one, process in running:
        try:
            said, why = process.communicate(timeout=COMMAND_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            out.lack(f"py-spy got no stack of pid {one.pid} (rank {one.rank}) in {COMMAND_S:g} s")
            continue
        if process.returncode or not said:
            reason = why.decode("utf-8", "replace").strip().partition("\n")[0]
            out.lack(f"py-spy got no stack of pid {one.pid} (rank {one.rank}): {reason}")
            continue
        with (out.folder / "stacks" / f"stack_rank_{one.rank}.txt").open("ab") as file:
            file.write(f"# the {when} look\n".encode() + said + b"\n")
        out.got[f"{when} stacks"] = out.got.get(f"{when} stacks", 0) + 1


# --- dumps ----------------------------------------------------------------------------------------


def _dumps(out: Collected, wait_s: float) -> None:
    asked_s = time.time()
    wanted: dict[Path, JobProcess] = {}
    for one in out.processes:
        if not one.is_rank:
            continue
        pipe = _pipe_of(one)
        if pipe is None:
            out.lack(
                "no pipe of a flight recorder: set TORCH_NCCL_DEBUG_INFO_PIPE_FILE before the start"
                " (NCCL), or call outlast.record_collectives(folder) in the script (gloo)"
            )
            continue
        why = _ask(pipe)
        if why:
            out.lack(f"the flight recorder of rank {one.rank} was not asked ({pipe}: {why})")
            continue
        wanted.update((path, one) for path in _dump_paths(one, pipe))
    if not wanted:
        return
    (out.folder / "dumps").mkdir(exist_ok=True)
    answered: set[int] = set()
    over_s = time.monotonic() + wait_s
    ranks = {one.rank for one in wanted.values()}
    while ranks - answered and time.monotonic() < over_s:
        for path, one in wanted.items():
            with suppress(OSError):
                if one.rank not in answered and path.stat().st_mtime >= asked_s - 0.1:
                    time.sleep(0.05)  # NCCL writes the file in place, so give it time to finish
                    shutil.copy2(path, out.folder / "dumps" / f"trace_rank_{one.rank}")
                    answered.add(one.rank)
        time.sleep(0.1)
    out.got["dumps"] = len(answered)
    for rank in sorted(ranks - answered):
        out.lack(
            f"rank {rank} did not answer with its flight recorder in {wait_s:g} s: it is"
            " stopped, or holds the interpreter lock"
        )


def _pipe_of(one: JobProcess) -> Path | None:
    """Return the FIFO of the rank's recorder, by its environment or its open files."""
    named = [one.environment[name] for name in PIPES if one.environment.get(name)]
    for stem in named:
        path = Path(f"{stem}{one.rank}.pipe")
        if _is_fifo(path):
            return path
    with suppress(OSError):
        for entry in Path(f"/proc/{one.pid}/fd").iterdir():
            target = Path(os.readlink(entry))
            if target.name.endswith(f"_{one.rank}.pipe") and _is_fifo(target):
                return target
    return None


def _is_fifo(path: Path) -> bool:
    try:
        return stat.S_ISFIFO(path.stat().st_mode)
    except OSError:
        return False


def _ask(pipe: Path) -> str:
    """Write one byte, without waiting for a reader. Return why this failed, or ""."""
    try:
        descriptor = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        return message_of(error)
    try:
        os.write(descriptor, b"1")
    except OSError as error:
        return message_of(error)
    finally:
        os.close(descriptor)
    return ""


def _dump_paths(one: JobProcess, pipe: Path) -> list[Path]:
    stems = [one.environment[name] for name in DUMPS if one.environment.get(name)]
    cache = one.environment.get("XDG_CACHE_HOME") or f"{one.environment.get('HOME', '')}/.cache"
    return [
        pipe.parent / f"{RECORDED_NAME}{one.rank}",
        *(Path(f"{stem}{one.rank}") for stem in stems),
        Path(cache) / "torch" / f"comm_lib_trace_rank_{one.rank}",
        Path("/tmp") / f"nccl_trace_rank_{one.rank}",
    ]


# --- logs -----------------------------------------------------------------------------------------


def _logs(out: Collected) -> None:
    """Copy the files to which ranks and launchers print.

    This includes torchrun's folder of the newest attempt.
    """
    target = out.folder / "logs"
    seen: set[tuple[int, int] | Path] = set()
    for one in out.processes:
        error_file = one.environment.get("TORCHELASTIC_ERROR_FILE", "")
        attempt = Path(error_file).parents[1] if error_file.count("/") > 2 else None
        if attempt is not None and attempt.name.startswith("attempt_") and attempt not in seen:
            seen.add(attempt)
            for path in sorted(attempt.rglob("*")):
                if path.is_file() and not path.is_symlink():
                    name = f"{attempt.parent.name}/{attempt.name}/{path.relative_to(attempt)}"
                    _copy_log(out, path, target / name, seen)
    launchers = {one.parent for one in out.processes if one.is_rank and one.parent > 1}
    for pid, name in [
        *((pid, "launcher") for pid in sorted(launchers)),
        *((one.pid, f"rank_{one.rank}") for one in out.processes if one.is_rank),
    ]:
        for number, stream in ((1, "stdout"), (2, "stderr")):
            with suppress(OSError):
                path = Path(os.readlink(f"/proc/{pid}/fd/{number}"))
                if path.is_file():
                    _copy_log(out, path, target / f"{name}.{stream}.log", seen)
    if not out.got.get("logs"):
        out.lack("no logs: the ranks print to a terminal or a pipe; add their log files yourself")


def _copy_log(out: Collected, path: Path, to: Path, seen: set[tuple[int, int] | Path]) -> None:
    try:
        status = path.stat()
        if not status.st_size or (status.st_dev, status.st_ino) in seen:
            return
        seen.add((status.st_dev, status.st_ino))
        to.parent.mkdir(parents=True, exist_ok=True)
        with path.open("rb") as source, to.open("xb") as file:
            source.seek(max(0, status.st_size - LOG_MAX_BYTES))
            shutil.copyfileobj(source, file)
        os.utime(to, ns=(status.st_atime_ns, status.st_mtime_ns))
        out.got["logs"] = out.got.get("logs", 0) + 1
    except OSError as error:
        out.lack(f"{path} could not be copied: {error.strerror}")


# --- the node -------------------------------------------------------------------------------------


def _kernel_log(out: Collected) -> None:
    """Write the kernel log since the job's start to a file.

    The file begins a minute earlier, because the clocks of boot and of the day drift apart. Times
    are in UTC with their zone and with the host, which `dmesg -T` leaves out.
    """
    started_s = min(one.started_s for one in out.processes) - 60.0
    host = socket.gethostname()
    target = out.folder / f"dmesg-of-{host}.txt"
    said, why = _said_by(["dmesg", "--raw"])
    if said:
        lines = kernel_log.stamped(said, started_s, host)
        if lines:  # a file with nothing in it would be listed as evidence that was not read
            target.write_text("\n".join(lines) + "\n")
        out.got["lines of the kernel's log"] = len(lines)
        return
    since = datetime.fromtimestamp(started_s, timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC")
    said, other = _said_by(
        ["journalctl", "-k", "--no-pager", "-o", "short-iso-precise", "--since", since]
    )
    if said and b"No journal files" not in said:
        target.write_bytes(said)
        out.got["lines of the kernel's log"] = said.count(b"\n")
        return
    out.lack(
        f"no kernel log (dmesg: {why}; journalctl: {other or 'no entries'}); as root:"
        f" dmesg -T > {target}"
    )


def _said_by(command: Sequence[str]) -> tuple[bytes, str]:
    """Return what a command printed, and the reason if it printed nothing."""
    if shutil.which(command[0]) is None:
        return b"", "it is not installed"
    try:
        done = subprocess.run(command, capture_output=True, timeout=COMMAND_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return b"", str(error)
    reason = done.stderr.decode("utf-8", "replace").strip().partition("\n")[0]
    return (done.stdout, reason) if done.returncode == 0 else (b"", reason)


def _node(out: Collected, processes: str) -> None:
    folder = out.folder / "node"
    folder.mkdir(exist_ok=True)
    (folder / "processes.txt").write_text(processes)
    (folder / "memory.txt").write_text(_memory(out))
    for name, command in (("disks.txt", ["df", "-h"]), ("gpus.txt", ["nvidia-smi", "-q"])):
        said, why = _said_by(command)
        if said:
            (folder / name).write_bytes(said)
            out.got[name.removesuffix(".txt")] = 1
        elif name == "gpus.txt":
            out.lack(f"no state of GPUs (nvidia-smi: {why})")
    (folder / "versions.txt").write_text(_versions(out))
    port = next(
        (
            one.environment["MASTER_PORT"]
            for one in out.processes
            if "MASTER_PORT" in one.environment
        ),
        "",
    )
    if port.isdecimal():
        (folder / "port.txt").write_text(f"port {port}: {holder_of(int(port))}\n")


def _activity(one: JobProcess) -> tuple[int, int] | None:
    with suppress(OSError, ValueError, IndexError):
        return activity_of(one.pid)
    return None


def _moved(one: JobProcess, before: tuple[int, int] | None, apart_s: float) -> str:
    """Return how the main thread moved since `before`, which is `apart_s` seconds ago.

    "still": it was never switched. "ran": it computed most of the time. "moved": anything else. But
    "polls" if the process uses a GPU, because waiting for a GPU looks like that.
    """
    now = _activity(one)
    if before is None or now is None:
        return "?"
    if now == before:
        return "still"
    ticks = os.sysconf("SC_CLK_TCK") * apart_s
    if now[1] - before[1] > RAN_SHARE * ticks:
        return "ran"
    return "polls" if uses_gpu(one.pid) else "moved"


def _processes(out: Collected, before: Mapping[int, tuple[int, int] | None], apart_s: float) -> str:
    """Return what `ps -o pid,stat,wchan:24,args` prints, with the rank in front, and what moved."""
    lines = [" RANK     PID STAT WCHAN                    MOVED COMMAND"]
    for one in out.processes:
        state, channel = "?", ""
        with suppress(OSError, IndexError):
            state = Path(f"/proc/{one.pid}/stat").read_text().rpartition(")")[2].split()[0]
            channel = Path(f"/proc/{one.pid}/wchan").read_text()
        shown = channel if channel not in ("", "0") else "-"
        lines.append(
            f"{one.rank:>5} {one.pid:>7} {state:4} {shown:24}"
            f" {_moved(one, before.get(one.pid), apart_s):5} {cut_at_word(one.command, 300)}"
        )
    lines += [f"{rank:>5} {0:>7} X    {'-':24} ended" for rank in ended_here(out.processes)]
    return "\n".join(lines) + "\n"


def _memory(out: Collected) -> str:
    parts = []
    with suppress(OSError):
        parts.append(Path("/proc/meminfo").read_text())
    with suppress(OSError):
        group = Path(f"/proc/{out.processes[0].pid}/cgroup").read_text().rpartition("::")[2].strip()
        for name in ("memory.max", "memory.current", "memory.peak", "memory.events"):
            with suppress(OSError):
                said = Path(f"/sys/fs/cgroup{group}/{name}").read_text()
                parts.append(f"{name}\n{said}")
    return "\n".join(parts)


def _versions(out: Collected) -> str:
    """Return the distributions beside the torch that the first rank has loaded."""
    with suppress(OSError):
        for row in Path(f"/proc/{out.processes[0].pid}/maps").read_text().splitlines():
            head, mark, _ = row.partition("/torch/lib/")
            if mark:
                site = Path(head[head.index("/") :])
                names = sorted(path.stem for path in site.glob("*.dist-info"))
                return "\n".join(names) + "\n"
    return "no process has torch loaded\n"


# --- other nodes ----------------------------------------------------------------------------------


def lines_for_other_nodes(out: Collected) -> list[str]:
    """Return commands that do the same on the job's other nodes.

    There are none if all ranks are here.
    """
    here = {one.rank for one in out.processes if one.is_rank}
    world = max((one.world_size for one in out.processes), default=0)
    # Ranks of this node that have ended are not on another node.
    started_here = max((one.local_world_size for one in out.processes), default=0)
    if max(len(here), started_here) >= world:
        return []
    environment: dict[str, str] = {}
    with suppress(OSError):
        environment = environment_of(out.processes[0].pid)
    again = f"outlast diagnose --collect {out.folder}/$(hostname)"
    if job := environment.get("SLURM_JOB_ID"):
        return [f"srun --jobid {job} --overlap --ntasks-per-node 1 sh -c '{again}'"]
    if "KUBERNETES_SERVICE_HOST" in environment:
        return [
            "kubectl get pods -o name -l YOUR-JOB-LABEL | xargs -I{} kubectl exec {} -- sh -c"
            f" '{again}'"
        ]
    return [f"for host in HOST1 HOST2; do ssh $host '{again}'; done"]
