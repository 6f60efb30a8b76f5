"""What a long run costs its ledger: the writes while it lives, and the report once it is long.

    python benchmarks/long_run.py                                  10 million steps, 10,000
                                                                   interruptions, 8 ranks
    python benchmarks/long_run.py --steps 100000 --interruptions 100

report   A ledger is filled through the store as the launcher fills it: a bucket of steps and all
         lives each second of the run, merged as they grow old, and for each interruption its
         records, a verdict, evidence and a policy decision. Then `outlast report --json` runs in a
         fresh interpreter, start included.
writes   The launcher's flush of one second (a bucket, all lives, a snapshot, one transaction), in
         processor seconds of this process and all its threads, over a minute's worth of them; as a
         share of one core, at one flush a second. The merge of a minute is among them.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from outlast.model.records import Event, Interruption, Life, Meta, StepsBucket
from outlast.model.terms import Cause, Mechanism, Rung, Tier
from outlast.runtime.folders.run_folder import RunFolder
from outlast.runtime.ledger.store import Ledger

STEP_S = 0.5
ROUNDS = 5
FLUSHES = 120


def lives_at(ranks: int, now_s: float) -> list[Life]:
    """Return the lives of all ranks, as they stand at `now_s`."""
    seconds = {Cause.PRODUCTIVE: now_s - 20.0, Cause.STARTUP: 5.0, Cause.DATA_WAIT: 1.25}
    return [
        Life(
            rank + 1,
            1000 + rank,
            f"node-{rank // 8}",
            rank,
            "rank",
            10.0,
            11.0,
            None,
            seconds,
            Cause.PRODUCTIVE,
        )
        for rank in range(ranks)
    ]


def interruption(number: int, at_s: float, ranks: int) -> Interruption:
    return Interruption(
        id=number,
        mechanism=Mechanism.SIGNAL,
        detected_s=at_s + 0.01,
        ranks=(number % ranks,),
        pids=(1,),
        nodes=(f"node-{number % ranks // 8}",),
        rung=Rung.SPARE,
        generation=number,
        step=int(at_s / STEP_S),
        fault_s=at_s,
        left_s=at_s + 0.05,
        regrouped_s=at_s + 0.1,
        restored_s=at_s + 0.2,
        resumed_s=at_s + 0.9,
        steps_repeated=1,
        reason="signal 9 (SIGKILL); a hot spare was parked",
        tier=Tier.PEER,
    )


def events(number: int, at_s: float) -> list[Event]:
    said = {"class": "gpu", "confidence": 0.9, "reason": "Xid 79 " * 10, "nodes": ["node-0"]}
    verdict = {"interruption": number, "verdict": said}
    policy = {"interruption": number, "rule": "go on", "action": "none", "nodes": []}
    return [
        Event(at_s + 1, at_s, "evidence", {"interruption": number, "folder": f"evidence/{number}"}),
        Event(at_s + 2, at_s, "verdict", verdict),
        Event(at_s + 2, at_s, "policy", policy),
    ]


def fill(folder: Path, *, steps: int, interruptions: int, ranks: int) -> Path:
    """Write the ledger of a run of so many steps, a second at a time."""
    run = RunFolder.create(folder / "long", name="long", version="0.1.0", options={})
    ledger = Ledger.create(run.ledger, Meta("long", "long", ranks, "0.1.0", 0.0, 0.0), pid=1)
    over_s = steps * STEP_S
    every_s = over_s / (interruptions + 1)
    ledger.add(Event(5.0, 5.0, "script", {}))
    worker, hits = ranks, 0
    holder = {life.rank: life for life in lives_at(ranks, 30.0)}
    for second in range(1, int(over_s)):
        done = int(second / STEP_S)
        ledger.add(StepsBucket(second - 1, second, done - 2, done, STEP_S, STEP_S, STEP_S * 1.1))
        while hits < interruptions and second >= (hits + 1) * every_s:
            hits += 1
            at_s, rank = hits * every_s, hits % ranks
            ledger.add(interruption(hits, at_s, ranks))
            for event in events(hits, at_s):
                ledger.add(event)
            old, worker = holder[rank], worker + 1
            lived_s = at_s - (old.opened_s or 0.0)
            spent = {Cause.PRODUCTIVE: lived_s - 0.3, Cause.REGROUP: 0.1}
            ledger.add(replace(old, ended_s=at_s + 0.01, seconds=spent, end="signal 9"))
            holder[rank] = replace(
                old, worker=worker, assigned_s=at_s + 0.1, opened_s=at_s + 0.1, seconds={}
            )
        if second % 3600 == 0 or second == int(over_s) - 1:
            for life in holder.values():
                ledger.add(life)
            ledger.set_snapshot({"state": "training", "step": done}, now_s=float(second))
            ledger.flush()
    ledger.end_session(ended_s=over_s, state="ended", exit_code=0, reason="")
    ledger.close()
    run.close()
    return run.path


def time_report(path: Path) -> list[float]:
    took_s = []
    for _ in range(ROUNDS):
        began_s = time.perf_counter()
        subprocess.run(
            [sys.executable, "-m", "outlast", "report", str(path), "--json"],
            stdout=subprocess.DEVNULL,
            check=True,
        )
        took_s.append(time.perf_counter() - began_s)
    return sorted(took_s)


def time_writes(folder: Path, ranks: int) -> list[float]:
    """Return the processor seconds of each flush, in a run that is an hour old."""
    path = folder / f"writes-{ranks}.db"
    meta = Meta("writes", "writes", ranks, "0.1.0", 0.0, 0.0)
    with closing(Ledger.create(path, meta, pid=os.getpid())) as ledger:
        for second in range(3600):
            ledger.add(StepsBucket(second, second + 1, second, second + 1, 1.0, 1.0, 1.0))
        ledger.set_snapshot({}, now_s=3600.0)
        ledger.flush()
        took_s = []
        for second in range(3600, 3600 + FLUSHES):
            lives = lives_at(ranks, float(second))
            workers = [
                {"rank": rank, "pid": 1, "node": "n", "state": "training"} for rank in range(ranks)
            ]
            snapshot = {"state": "training", "step": second, "workers": workers}
            began_s = time.process_time()
            ledger.add(StepsBucket(second, second + 1, second, second + 1, 1.0, 1.0, 1.0))
            for life in lives:
                ledger.add(life)
            ledger.set_snapshot(snapshot, now_s=float(second))
            ledger.flush()
            took_s.append(time.process_time() - began_s)
    return took_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=10_000_000)
    parser.add_argument("--interruptions", type=int, default=10_000)
    parser.add_argument("--ranks", type=int, default=8)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for ranks in (args.ranks, 8 * args.ranks):
            took_s = time_writes(folder, ranks)
            share = statistics.fmean(took_s)
            print(
                f"writes, {ranks} ranks: {1000 * share:.2f} ms of a core a second"
                f" ({100 * share:.3f} %; goal 0.2 %), median {1000 * statistics.median(took_s):.2f}"
                f" ms, greatest {1000 * max(took_s):.1f} ms",
                flush=True,
            )
        path = fill(folder, steps=args.steps, interruptions=args.interruptions, ranks=args.ranks)
        took_s = time_report(path)
        size_mb = sum(one.stat().st_size for one in path.glob("ledger.db*")) / 1e6
        print(
            f"report: {statistics.median(took_s):.2f} s [{took_s[0]:.2f}, {took_s[-1]:.2f}] (goal"
            f" 5 s), {args.steps:,} steps, {args.interruptions:,} interruptions, {size_mb:.1f} MB"
        )


if __name__ == "__main__":
    main()
