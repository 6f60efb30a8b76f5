"""How long the page of a large run takes, and how large it is.

    python benchmarks/page.py [--times 5]

long   10 million steps and 10,000 interruptions on 8 ranks; its steps are in buckets as the ledger
       merges them (LONG_BUCKETS)
wide   16,384 ranks on 2,048 nodes, 300 interruptions

Each is opened `--times` times in a process of its own: the ledger is read, the page is computed
and written as `outlast report --html` does. Medians with the least and the most. Processor
seconds stand beside the seconds, because the machine may be busy.
"""

from __future__ import annotations

import argparse
import random
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from outlast.model.records import Event, Interruption, Life, Meta, StepsBucket
from outlast.model.terms import Cause, Mechanism, Rung
from outlast.runtime.folders.run_folder import RunFolder
from outlast.runtime.ledger.store import Ledger

BEGAN_WALL_S = 1.767e9
LONG_BUCKETS = 4_200  # a second each for the last hour, a minute for a day, then half an hour
PER_NODE = 8
OPEN = """
import sys, time
began, cpu = time.perf_counter(), time.process_time()
from outlast.app.page.page_html import report_page
from outlast.app.page.page_model import page_of
from outlast.runtime.ledger.view import look
html = report_page(page_of(look(sys.argv[1]), wall_s=1.8e9))
print(time.perf_counter() - began, time.process_time() - cpu, len(html.encode()))
"""


def make(path: Path, **how: Any) -> None:
    """Write a run that lost ranks evenly over its time. Its launcher is gone."""
    folder, ledger, _ = begin(path, **how)
    ledger.close()
    folder.close()


def begin(
    path: Path, *, ranks: int, steps: int, interruptions: int, span_s: float, buckets: int
) -> tuple[RunFolder, Ledger, dict[str, Any]]:
    """Write a run that lost ranks evenly over its time, and still trains.

    Return its folder and its ledger, which the caller closes, and its snapshot.
    """
    folder = RunFolder.create(path, name=path.name, version="0.1.0", options={})
    meta = Meta(path.name, path.name, ranks, "0.1.0", 0.0, BEGAN_WALL_S)
    ledger = Ledger.create(folder.ledger, meta, pid=1)
    ledger.add(Event(5.0, BEGAN_WALL_S + 5, "script", {"sharded": False}))
    held = {rank: (rank, 10.0) for rank in range(ranks)}  # by which worker, and since when
    chance = random.Random(1)
    for number in range(interruptions):
        at_s = 20 + number * (span_s - 40) / interruptions
        rank = chance.randrange(ranks)
        lose(ledger, number, rank, at_s, held[rank], step=int(steps * at_s / span_s))
        held[rank] = (ranks + number, at_s + 0.1)
        if number % 500 == 0:
            ledger.flush()
    for rank, (worker, since_s) in held.items():
        ledger.add(life(worker, rank, since_s, span_s))
    for at in range(buckets):
        from_s, to_s = (10 + end * (span_s - 10) / buckets for end in (at, at + 1))
        first, last = at * steps // buckets, (at + 1) * steps // buckets
        ledger.add(StepsBucket(from_s, to_s, first, last, 0.09, 0.1, 0.2))
    workers = [
        {"rank": rank, "pid": 1000 + worker, "node": node(rank), "state": "training"}
        for rank, (worker, _) in held.items()
    ]
    snapshot = {"state": "training", "step": steps, "steps_per_s": 10.0, "workers": workers}
    ledger.set_snapshot(snapshot, now_s=span_s)
    ledger.flush()
    return folder, ledger, snapshot


def node(rank: int) -> str:
    return f"node-{rank // PER_NODE:04d}"


def life(worker: int, rank: int, from_s: float, to_s: float, **more: object) -> Life:
    seconds = {Cause.PRODUCTIVE: max(0.0, to_s - from_s - 1)}
    return Life(
        worker,
        1000 + worker,
        node(rank),
        rank,
        "rank",
        from_s,
        opened_s=from_s,
        seconds=seconds,
        cause=Cause.PRODUCTIVE,
        **more,
    )


def lose(
    ledger: Ledger, number: int, rank: int, at_s: float, held: tuple[int, float], *, step: int
) -> None:
    """Kill the process that holds a rank; a spare takes it."""
    ledger.add(life(held[0], rank, held[1], at_s, ended_s=at_s, end="signal 9"))
    ledger.add(
        Interruption(
            id=number,
            mechanism=Mechanism.SIGNAL,
            detected_s=at_s + 0.01,
            ranks=(rank,),
            pids=(1000 + held[0],),
            nodes=(node(rank),),
            rung=Rung.SPARE,
            generation=number,
            step=step,
            fault_s=at_s,
            left_s=at_s + 0.02,
            regrouped_s=at_s + 0.1,
            restored_s=at_s + 0.15,
            resumed_s=at_s + 0.3,
            steps_repeated=1,
            reason=f"rank {rank} ended: signal 9; a hot spare takes it",
            error="signal 9",
        )
    )
    evidence = {"file": "standing.json", "line": None, "text": "signal 9", "role": "messenger"}
    verdict = {
        "class": "unknown",
        "confidence": 0.0,
        "reason": f"Rank {rank} was killed by signal 9 (SIGKILL).",
        "action": "no restart is needed",
        "evidence": [evidence],
    }
    about = {"interruption": number, "verdict": verdict}
    ledger.add(Event(at_s + 1, BEGAN_WALL_S + at_s + 1, "verdict", about))


def opened(path: Path) -> tuple[float, float, int]:
    """Open a run in a fresh process. Return seconds, processor seconds and bytes of the page."""
    done = subprocess.run(
        [sys.executable, "-c", OPEN, str(path)], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    seconds, cpu_s, size_bytes = done.stdout.split()
    return float(seconds), float(cpu_s), int(size_bytes)


def main() -> None:
    parser = argparse.ArgumentParser(description="How long the page of a large run takes.")
    parser.add_argument("--times", type=int, default=5)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as root:
        long, wide = Path(root) / "long", Path(root) / "wide"
        make(
            long,
            ranks=8,
            steps=10_000_000,
            interruptions=10_000,
            span_s=1e6,
            buckets=LONG_BUCKETS,
        )
        make(wide, ranks=16_384, steps=100_000, interruptions=300, span_s=1e5, buckets=1_000)
        for path in (long, wide):
            found = [opened(path) for _ in range(args.times)]
            said = []
            for at, name in enumerate(("opens in", "of a processor")):
                values = [one[at] for one in found]
                most, least = max(values), min(values)
                said.append(f"{name} {statistics.median(values):.2f} s ({least:.2f} to {most:.2f})")
            print(f"{path.name}: {'; '.join(said)}; {found[0][2]:,} bytes", flush=True)


if __name__ == "__main__":
    main()
