"""Make live incidents: real torchrun jobs of four ranks that break, and the folders they leave.

    python -m benchmarks.live_incidents.make OUT --kinds held-back --seed 1 [--minutes 4]

A job that hangs is looked at with `outlast diagnose --collect`; of one that has ended, torchrun's
logs and what the recorder wrote are kept. Each incident is OUT/<seed>-<kind>/whole and truth.json.
Incidents that are there already are not made again, so that a long row can be made in parts.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path

from benchmarks.live_incidents.kinds import SETS, Kind
from outlast.errors import UsageError
from outlast.runtime.collect import collect, find_processes

LAYOUTS = ("ddp", "fsdp2", "mesh")
QUIET_S, START_S, END_S, APART_S = 5.0, 90.0, 60.0, 3.0
RANKS, STRUCK_AT_STEP = 4, 10
GROUP_NAME = "live-incident"  # of control groups that a fault makes, as recent_faults.py names them
HERE = Path(__file__).parent
KILLED_IN_LOG = {
    "oom_killed": r"exitcode\s*: -9\b.{0,60}?\(pid: (\d+)\)",
    "loader_oom": r"DataLoader worker \(pid\S* (\d+)\)",
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--kinds", choices=tuple(SETS), default="seen")
    parser.add_argument("--only", help="one kind")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=1e9)
    args = parser.parse_args()
    done = make_all(args.out, args.kinds, args.seed, minutes=args.minutes, only=args.only)
    return 0 if done else 1


def make_all(out: Path, kinds: str, seed: int, *, minutes: float, only: str | None = None) -> bool:
    """Make one incident of each kind, unless it is there. Return False if the time was up."""
    over_s = time.monotonic() + minutes * 60
    for number, kind in enumerate(SETS[kinds]):
        if only and kind.name != only:
            continue
        if time.monotonic() > over_s:
            return False
        make(out / f"{seed:03}-{kind.name}", kind, seed, number)
    return True


def make(folder: Path, kind: Kind, seed: int, number: int) -> None:
    if (folder / "truth.json").exists():
        return
    shutil.rmtree(folder, ignore_errors=True)
    chance = random.Random(f"live {seed} {kind.name}")
    struck, step = chance.randrange(RANKS), chance.randrange(3, 40)
    layout = kind.layout or LAYOUTS[(number + seed) % len(LAYOUTS)]
    recipe = chance.choice(("pipe", "second"))
    work = Path(tempfile.mkdtemp(prefix="job-"))
    struck_ranks = [(struck + more) % RANKS for more in range(max(1, kind.guilty))]
    lay_out(
        work, kind=kind.name, struck_ranks=struck_ranks, step=step, layout=layout, recipe=recipe
    )
    began_s = time.time()
    job = started(work)
    whole = folder / "whole"
    whole.parent.mkdir(parents=True)
    try:
        hangs = _wait(job, work, kind)
        if hangs and not any(steps_of(path) for path in work.rglob("stdout.log")):
            # The machine has too much to do: that is no incident, and it is made another time.
            print(f"{folder.name}: no step in {START_S + END_S:g} s", flush=True)
            return
        if hangs:
            with suppress(UsageError):
                collect(whole, pids=[job.pid], apart_s=APART_S)
            if recipe == "second" and (work / "fr").exists():
                shutil.copytree(work / "fr", whole / "dumps", dirs_exist_ok=True, ignore=_no_parts)
            for path in whole.glob("dmesg-of-*"):
                path.unlink()
        else:
            whole.mkdir()
            shutil.copytree(work / "logs", whole / "logs")
            shutil.copy2(work / "torchrun.log", whole / "logs" / "launcher.log")
            if recipe == "second" and (work / "fr").exists():
                shutil.copytree(work / "fr", whole / "dumps", ignore=_no_parts)
    finally:
        end_all(job)
        for group in Path("/sys/fs/cgroup").glob(f"*/{GROUP_NAME}-*"):
            with suppress(OSError):
                group.rmdir()
        shutil.rmtree(work, ignore_errors=True)
    _kernel_log(whole, kind, began_s)
    truth = {
        "kind": kind.name,
        "struck": struck,
        "layout": layout,
        "recipe": recipe,
        "seed": seed,
        "ended": not hangs,
        "step": step,
        "at_s": time.time(),
    }
    (folder / "truth.json").write_text(json.dumps(truth) + "\n")
    print(f"{folder.name}: {layout}, rank {struck}, {'hangs' if hangs else 'ended'}", flush=True)


def lay_out(work: Path, **plan: object) -> None:
    """Copy the job's code into its folder, beside the plan."""
    code = work / "code"
    code.mkdir()
    for name in ("train.py", "faults.py", "later_faults.py", "recent_faults.py"):
        shutil.copy2(HERE / name, code / name)
    (code / "plan.json").write_text(json.dumps({**plan, "folder": str(work / "fr")}))


def started(work: Path) -> subprocess.Popen[bytes]:
    command = [
        *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
        *("--nproc-per-node", str(RANKS), "--log-dir", str(work / "logs"), "--redirects", "3"),
        str(work / "code" / "train.py"),
    ]
    with (work / "torchrun.log").open("wb") as log:
        return subprocess.Popen(
            command,
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=work,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )


def _no_parts(folder: str, names: list[str]) -> list[str]:
    return [name for name in names if not re.fullmatch(r"(fr|trace)_rank_\d+", name)]


def _wait(job: subprocess.Popen[bytes], work: Path, kind: Kind) -> bool:
    """Return True once the job hangs: no rank prints for a while. False once it has ended."""
    began_s = time.monotonic()
    size, changed_s = 0, time.monotonic()
    while time.monotonic() - began_s < START_S + END_S:
        if job.poll() is not None:
            return False
        now = sum(path.stat().st_size for path in work.rglob("*.log"))
        if now != size:
            size, changed_s = now, time.monotonic()
        steps = max((steps_of(path) for path in work.rglob("stdout.log")), default=0)
        if steps and kind.is_hang and time.monotonic() - changed_s > QUIET_S:
            return True
        if kind.from_outside and steps >= STRUCK_AT_STEP:
            job.terminate()
        time.sleep(0.2)
    return True


def steps_of(path: Path) -> int:
    return path.read_text(errors="replace").count(" done\n")


def end_all(job: subprocess.Popen[bytes]) -> None:
    """Kill all: torchrun does not end ranks that are stopped or hold the interpreter lock."""
    pids = [one.pid for one in find_processes(pids=[job.pid])]  # loaders' workers too
    for pid in [job.pid, *pids]:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    job.wait()


def _kernel_log(whole: Path, kind: Kind, began_s: float) -> None:
    """Write a quiet kernel log of the job's minutes.

    Where the job was killed for memory, the lines that say so are in it.
    """
    lines = [(began_s - 30, "usb 1-1: new high-speed USB device number 4 using xhci_hcd")]
    said = "".join(path.read_text(errors="replace") for path in (whole / "logs").rglob("*.log"))
    pattern = KILLED_IN_LOG.get(kind.name)
    if pattern and (found := re.search(pattern, said)):
        command = "pt_data_worker" if kind.name == "loader_oom" else "python"
        lines += oom_kill(int(found[1]), command, _failed_s(whole))
    if kind.name == "cgroup_oom":
        lines += _real_kernel_lines(began_s)
    (whole / "dmesg-of-node1.txt").write_text("".join(map(kernel_line, lines)))


def _real_kernel_lines(began_s: float) -> list[tuple[float, str]]:
    """Return what this machine's kernel has said since then, if it may be read."""
    said = subprocess.run(["dmesg", "--raw"], capture_output=True, check=False).stdout
    booted_s = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
    found = re.findall(r"<\d+>\[ *(\d+\.\d+)\] (.*)", said.decode("utf-8", "replace"))
    return [
        (booted_s + float(at), text) for at, text in found if booted_s + float(at) >= began_s - 1.0
    ]


def _failed_s(whole: Path) -> float:
    times = [path.stat().st_mtime for path in (whole / "logs").rglob("*") if path.is_file()]
    return max(times) - 1.0


def oom_kill(pid: int, command: str, at_s: float, group: str = "/") -> list[tuple[float, str]]:
    return [
        (
            at_s,
            f"{command} invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=0",
        ),
        (at_s, "Call Trace:"),
        (
            at_s,
            "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,"
            f"oom_memcg={group},task_memcg={group},task={command},pid={pid},uid=0",
        ),
        (
            at_s,
            f"Memory cgroup out of memory: Killed process {pid} ({command}) total-vm:150248kB,"
            " anon-rss:749948kB, file-rss:48036kB, shmem-rss:512kB, UID:0 pgtables:1900kB",
        ),
    ]


def kernel_line(one: tuple[float, str]) -> str:
    stamp = datetime.fromtimestamp(one[0], timezone.utc).isoformat(timespec="milliseconds")
    return f"{stamp} node1 kernel: {one[1]}\n"


if __name__ == "__main__":
    raise SystemExit(main())
