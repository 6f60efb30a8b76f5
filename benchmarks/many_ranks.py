"""How much processor time a diagnosis of all files of many ranks takes, beside older code.

    python benchmarks/many_ranks.py [--ranks 16384] [--beside FOLDER] [--rounds 2]

Workload   One folder with a flight-recorder dump of each rank (those of `flight_recorder.py`, 60
           entries, one rank does not come) and a log of each rank: 40 steps, and for ranks that
           wait the words of the watchdog.
Beside     the package below FOLDER, the `src` of another commit (`git archive COMMIT src`), turn
           by turn with this one, same files
Measured   Processor seconds of `outlast diagnose --json` with a time limit that is not reached, of
           all its processes, start of the interpreter included; so the machine may be busy. The
           verdict must name the guilty rank, else it is an error.
Goal       1.1 times the processor time of the older code at most: exit code 1 if it is missed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import mean

from flight_recorder import HOME, dump_of, guilty_of

from tests.diagnose.collectives.torch_pickle import torch_pickle

ENTRIES, STEPS = 60, 40
GOAL = 1.1
WATCHDOG = (
    "[rank{0}]:[E302 11:58:12.118 ProcessGroupNCCL.cpp:616] [Rank {0}] Watchdog caught collective"
    " operation timeout: WorkNCCL(SeqNum=61, OpType=ALLREDUCE, NumelIn=4096, NumelOut=4096,"
    " Timeout(ms)=600000) ran for 600043 milliseconds before timing out.\n"
)


def write(folder: Path, ranks: int) -> None:
    """Write the dumps and the logs."""
    (folder / "dumps").mkdir()
    (folder / "logs").mkdir()
    world = json.dumps(list(range(ranks)))
    for rank in range(ranks):
        dp = json.dumps(list(range(rank % 8, ranks, 8)))
        dump = dump_of(rank, ranks, ENTRIES, world, dp)
        (folder / "dumps" / f"nccl_trace_rank_{rank}").write_bytes(torch_pickle(dump))
        lines = [
            f"2026-03-02 11:{step:02}:{rank % 60:02},123 INFO [trainer] iteration {step} loss"
            f" 2.{step} grad norm 0.{rank % 97}\n"
            for step in range(STEPS)
        ]
        if rank != guilty_of(ranks):
            lines.append(WATCHDOG.format(rank))
        (folder / "logs" / f"rank_{rank}.log").write_text("".join(lines))


def diagnosed(source: Path, folder: Path) -> tuple[float, list[int]]:
    """Return the processor seconds of one diagnosis by the package in `source`, and its ranks."""
    command = [sys.executable, "-m", "outlast", "diagnose", str(folder), "--json"]
    process = subprocess.Popen(
        [*command, "--time-limit", "9999"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(source)},
    )
    assert process.stdout is not None
    verdict = json.loads(process.stdout.read())
    used = os.wait4(process.pid, 0)[2]
    return used.ru_utime + used.ru_stime, [one["rank"] for one in verdict["ranks"]]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--ranks", type=int, default=16_384)
    parser.add_argument("--beside", type=Path)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--folder", help="where the files go (default: the temporary folder)")
    args = parser.parse_args()
    sides = {"this code": HOME / "src", **({"beside": args.beside} if args.beside else {})}
    took: dict[str, list[float]] = {name: [] for name in sides}
    with tempfile.TemporaryDirectory(dir=args.folder) as work:
        write(Path(work), args.ranks)
        for _ in range(args.rounds):
            for name, source in sides.items():
                seconds, ranks = diagnosed(source, Path(work))
                assert ranks == [guilty_of(args.ranks)], (name, ranks)
                took[name].append(seconds)
    for name, some in took.items():
        print(f"{name}: {', '.join(f'{one:.1f}' for one in some)} s of processor time")
    if "beside" not in took:
        return 0
    ratio = mean(took["this code"]) / mean(took["beside"])
    print(f"{ratio:.2f} times the processor time of the code beside it (goal: at most {GOAL})")
    return int(ratio > GOAL)


if __name__ == "__main__":
    sys.exit(main())
