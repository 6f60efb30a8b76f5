"""How much memory and time a diagnosis of one very large log takes.

    python benchmarks/large_log.py [--gigabytes 10] [--folder FOLDER]

Workload   One file of so many gigabytes (1e9 bytes): lines of four ranks that train, each with its
           own time and numbers; two thirds down an Xid of a GPU, and the exceptions that follow
           from it.
Measured   Processor seconds and the largest resident memory of `outlast diagnose --json`. The
           verdict must name the Xid's class, else it is an error.
Goal       Memory that does not grow with the file: less than 200 MB. Exit code 0, or 1 where the
           goal is missed.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

GOAL_BYTES = 200e6
BLOCK_STEPS, BLOCKS_COUNT = 5_000, 20  # again and again: what a log says is read alike each time
OUTLAST = str(Path(sys.executable).with_name("outlast"))
XID = (
    b"[Sun Nov 22 08:11:03 2026] NVRM: Xid (PCI:0000:3b:00): 79, pid=4711, name=python, GPU has"
    b" fallen off the bus.\n"
)
AFTER = b"[rank2]: RuntimeError: CUDA error: unspecified launch failure\n"


def blocks(size_bytes: int) -> Iterator[bytes]:
    some = [block(number) for number in range(BLOCKS_COUNT)]
    written, has_failed = 0, False
    for healthy in itertools.cycle(some):
        if not has_failed and written > size_bytes * 2 / 3:
            has_failed = True
            yield XID + AFTER
        yield healthy
        written += len(healthy)
        if written >= size_bytes:
            return


def block(number: int) -> bytes:
    first = number * BLOCK_STEPS
    lines = [
        f"2026-11-22 {step // 3600 % 24:02}:{step // 60 % 60:02}:{step % 60:02},{rank:03} INFO rank"
        f" {rank} step {step} loss {2 + step % 977 / 977:.4f} grad_norm {step % 613 / 613:.3f}"
        f" tokens/s {41_000 + step % 409} memory {60 + step % 7}.{rank} GiB\n"
        for step in range(first, first + BLOCK_STEPS)
        for rank in range(4)
    ]
    return "".join(lines).encode()


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--gigabytes", type=float, default=10.0)
    parser.add_argument(
        "--folder",
        help="where the file goes, until the end (default: the system's temporary folder)",
    )
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        path = Path(folder) / "train.log"
        with path.open("wb") as out:
            out.writelines(blocks(int(args.gigabytes * 1e9)))
        size_bytes = path.stat().st_size
        process = subprocess.Popen(
            [OUTLAST, "diagnose", str(path), "--json"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
        )
        assert process.stdout is not None
        verdict = json.loads(process.stdout.read())
        used = os.wait4(process.pid, 0)[2]
    assert verdict["class"] == "gpu", verdict["reason"]
    seconds, memory_bytes = used.ru_utime + used.ru_stime, used.ru_maxrss * 1024
    print(
        f"{size_bytes / 1e9:.2f} GB: {seconds:,.0f} processor seconds"
        f" ({size_bytes / 1e6 / seconds:,.0f} MB/s), {memory_bytes / 1e6:,.0f} MB at most"
    )
    return int(memory_bytes > GOAL_BYTES)


if __name__ == "__main__":
    sys.exit(main())
