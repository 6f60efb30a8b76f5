"""Draw healthy folders, take others from real jobs that run, and ask for a class or a rank.

    python -m benchmarks.live_incidents.healthy OUT [--drawn 24] [--seed 1] [--no-jobs] [--verbose]

Drawn folders hold the logs of training that goes well, with warnings, skipped steps, retries,
echoes of source and tracebacks that the program handled; some have a kernel's log beside them, with
another job's OOM kill. Folders of running jobs are what `outlast diagnose --collect` makes of
torchrun jobs of four ranks that train, one of them slowly, or save, or load: one folder for each
look.

A folder is judged healthy if no class and no rank is named. The exit code is 1 if one is not.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
import time
from datetime import datetime, timedelta, timezone
from pathlib import Path

from benchmarks.live_incidents.calm_lines import KERNEL, LOOPS, NOISE, PARAGRAPHS
from benchmarks.live_incidents.make import (
    end_all,
    kernel_line,
    lay_out,
    oom_kill,
    started,
    steps_of,
)
from outlast.runtime.collect import collect
from outlast.runtime.evidence.reading import diagnose

JOBS = (
    ("calm", "ddp", "pipe"),
    ("calm_slow", "fsdp2", "pipe"),
    ("calm_saves", "ddp", "second"),
    ("calm_loads", "mesh", "second"),
)
LOOKS, START_S, APART_S = 4, 120.0, 3.0


def draw(folder: Path, chance: random.Random) -> None:
    """Write one drawn folder: logs of one to four ranks, and perhaps a kernel's log."""
    folder.mkdir(parents=True)
    ranks = chance.choice((1, 1, 2, 4))
    loop = chance.choice(LOOPS)
    began = datetime(2026, 11, 24, 3, tzinfo=timezone.utc) + timedelta(hours=chance.randrange(20))
    for rank in range(ranks):
        lines = list(_log(loop, chance, began))
        name = f"rank_{rank}.log" if ranks > 1 else chance.choice(("train.log", "slurm-41.out"))
        (folder / name).write_text("".join(lines))
    if chance.random() < 0.4:
        told = [(began.timestamp() + at * 40.0, text) for at, text in enumerate(KERNEL)]
        if chance.random() < 0.5:
            told += oom_kill(990_123, "jupyter-lab", began.timestamp() + 500.0, "/user.slice")
        (folder / "dmesg-of-node1.txt").write_text("".join(map(kernel_line, told)))


def _log(loop: str, chance: random.Random, began: datetime) -> list[str]:
    """Return the lines of one rank: steps, and between them what tools print."""
    lines = [f"{text}\n" for text in chance.sample(NOISE, 6)]
    if chance.random() < 0.6:
        lines.insert(0, chance.choice(PARAGRAPHS[3:]))
    first = chance.randrange(1, 5_000)
    for step in range(first, first + chance.randrange(60, 400)):
        now = began + timedelta(seconds=(step - first) * 0.9)
        lines.append(
            loop.format(
                step=step,
                day=now.strftime("%Y-%m-%d"),
                clock=now.strftime("%H:%M:%S"),
                loss=9.0 / (1.0 + step / 900.0) + chance.random() * 0.05,
                norm=0.8 + chance.random(),
                epoch=step / 900.0,
                samples=step * 512,
                ms=step * 97,
                percent=step // 90,
            )
            + "\n"
        )
        if chance.random() < 0.04:
            lines.append(chance.choice(NOISE).replace("{step}", str(step)) + "\n")
        if chance.random() < 0.01 and step < first + 50:
            lines.append(chance.choice(PARAGRAPHS[:3]))
    return lines


def look_at_job(out: Path, kind: str, layout: str, recipe: str) -> None:
    """Run one job, look at it several times while it trains, and end it."""
    work = Path(tempfile.mkdtemp(prefix="job-"))
    lay_out(work, kind=kind, struck_ranks=[1], step=0, layout=layout, recipe=recipe)
    job = started(work)
    try:
        over_s = time.monotonic() + START_S
        done = 0
        while time.monotonic() < over_s and done < LOOKS:
            steps = max((steps_of(path) for path in work.rglob("stdout.log")), default=0)
            if steps < 10 * (done + 1):
                time.sleep(0.2)
                continue
            folder = out / f"job-{kind}-{done}"
            collect(folder, pids=[job.pid], apart_s=APART_S)
            if recipe == "second":
                shutil.copytree(work / "fr", folder / "dumps", dirs_exist_ok=True)
            done += 1
        if done < LOOKS:
            raise SystemExit(f"the job {kind} was looked at {done} times only")
    finally:
        end_all(job)
        shutil.rmtree(work, ignore_errors=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--drawn", type=int, default=24)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--no-jobs", action="store_true")
    parser.add_argument("--verbose", action="store_true")
    args = parser.parse_args()
    make_all(args.out, args.drawn, args.seed, jobs=not args.no_jobs)
    folders, bad = judge_all(args.out, verbose=args.verbose)
    print(f"{folders} healthy folders, {bad} with a class or a rank")
    return 1 if bad else 0


def make_all(out: Path, drawn: int, seed: int, *, jobs: bool = True) -> None:
    """Draw the logs and look at the running jobs, unless they are there."""
    for number in range(drawn):
        folder = out / f"drawn-{seed}-{number}"
        if not folder.exists():
            draw(folder, random.Random(f"healthy {seed} {number}"))
    for kind, layout, recipe in JOBS if jobs else ():
        if not (out / f"job-{kind}-{LOOKS - 1}").exists():
            look_at_job(out, kind, layout, recipe)


def judge_all(out: Path, *, verbose: bool = False) -> tuple[int, int]:
    """Return how many folders there are, and for how many a class or a rank is named."""
    folders = sorted(path for path in out.iterdir() if path.is_dir())
    bad = 0
    for folder in folders:
        verdict = diagnose([str(folder)]).verdict.public()
        named = verdict["class"] != "unknown" or bool(verdict["ranks"])
        bad += named
        if named or verbose:
            ranks = verdict["ranks"]
            print(f"{folder.name:24} {verdict['class']}, ranks {ranks}: {verdict['reason']}")
    return len(folders), bad


if __name__ == "__main__":
    sys.exit(main())
