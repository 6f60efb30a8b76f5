"""A script that knows nothing of outlast, and keeps its own progress: each rank counts in a file of
its own.

Its places: begin, count (at each number). It prints a line for each number, unless --quiet, and
`done RANK RESTARTS NUMBER` at its end.

--record    under torch's @record, so that an error leaves an error file
--group     in a process group that all-reduces each number
--on-term   what SIGTERM does: "end" (the kernel's default), "clean" (prints that, and ends with 0),
            "ignore"
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from pathlib import Path

import strikes


def count(args: argparse.Namespace, rank: int, restarts: int) -> None:
    place = Path(args.folder) / f"count-{rank}"
    number = int(place.read_text()) if place.exists() else 0
    if args.group:
        import torch
        import torch.distributed as dist

        dist.init_process_group("gloo")
    while number < args.numbers:
        strikes.strike("count", rank=rank, step=number + 1)
        time.sleep(args.each_s)
        if args.group:
            box = torch.tensor([number], dtype=torch.int64)
            dist.all_reduce(box, op=dist.ReduceOp.MIN)
            number = int(box)
        number += 1
        part = place.with_suffix(".part")
        part.write_text(str(number))
        part.replace(place)
        if not args.quiet:
            print(f"number {number}", flush=True)
    print(f"done {rank} {restarts} {number}", flush=True)


def on_term(what: str) -> None:
    def clean(*_: object) -> None:
        print("told to end", flush=True)
        sys.exit(0)

    if what != "end":
        signal.signal(signal.SIGTERM, signal.SIG_IGN if what == "ignore" else clean)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("--numbers", type=int, default=10)
    parser.add_argument("--each-s", type=float, default=0.02)
    parser.add_argument("--quiet", action="store_true")
    parser.add_argument("--record", action="store_true")
    parser.add_argument("--group", action="store_true")
    parser.add_argument("--on-term", choices=["end", "clean", "ignore"], default="end")
    args = parser.parse_args()
    on_term(args.on_term)
    rank, restarts = int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    strikes.strike("begin", rank=rank, step=restarts)
    if args.record:
        from torch.distributed.elastic.multiprocessing.errors import record

        record(count)(args, rank, restarts)
    else:
        count(args, rank, restarts)


if __name__ == "__main__":
    main()
