"""What it costs that a hang can be told later: one run with a witness beside one without.

    python benchmarks/witness.py --pairs 40 [--workers N] [--batch N]

With       as `outlast run` is: faulthandler's handler and its file are ready, and torch's flight
           recorder keeps the last 512 operations, for the copy that the witness makes when it is
           asked (runtime/worker/process/witness.py)
Without    the same run, its witness replaced by one that does nothing, and a recorder of no entries
           (torch's own default is 2,000)
Beacon     cannot be left out, since hangs are found by it: how often a rank writes it for a step,
           times what one writing takes here

Turns and pairs as in overhead.py, whose head says why. The figure is the ratio of processor seconds
of the ranks for a step, which hardly depends on what else the machine does; that of mean steps is
printed too. Not measured: what a copy takes, since it is made only when a rank is asked. Exit code
0 if the whole interval of processor seconds keeps the goal of 1 %, 1 if none of it does, else 3:
more pairs would tell.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import sys
import tempfile
import time
from pathlib import Path

from _timing import paired_ratio
from overhead import Turns
from side_by_side import HOME, PEERS, WORKERS, outlast, write_result

from outlast.model.beacon import BEACON_BYTES, Beacon, pack_into, unpack

GOAL = 0.01
WRITINGS = 20_000
NOBODY = """
import outlast.runtime.worker.process.witness as witness

witness.Witness.begin = witness.Witness.testify = lambda self: None
"""  # for an interpreter's start: sitecustomize.py


def beats_of(turns: Turns) -> int:
    """Return how often the ranks of that run have written their beacons so far."""
    found = [
        unpack(memoryview(path.read_bytes()))
        for path in Path("/dev/shm").glob("outlast-*/beacon-*")
    ]
    return sum(
        one.beats for one in found if one is not None and one.rank >= 0 and one.pid in turns.pids()
    )


def writing_s() -> float:
    """Return the processor seconds of one writing of a beacon.

    The tables of seconds are written every third time, which is more often than in a step.
    """
    page, beacon = memoryview(bytearray(BEACON_BYTES)), Beacon()
    began_s = time.process_time()
    for number in range(WRITINGS):
        pack_into(page, beacon, seconds=number % 3 == 0)
    return (time.process_time() - began_s) / WRITINGS


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--pairs", type=int, default=40)
    parser.add_argument(
        "--turn",
        type=int,
        default=8,
        help="steps of a turn; the first is not counted into its time",
    )
    parser.add_argument("--workers", type=int, default=WORKERS)
    parser.add_argument(
        "--batch", type=int, default=16, help="sequences per step, over all ranks together"
    )
    return parser.parse_args()


def main() -> int:
    args = arguments()
    command = outlast(
        "--spares", "0", script=("--steps", str(args.turn * (args.pairs + 2))), workers=args.workers
    )
    with contextlib.ExitStack() as until:
        folder = until.enter_context(tempfile.TemporaryDirectory(prefix="outlast-bench-"))
        (Path(folder) / "sitecustomize.py").write_text(NOBODY)
        paths = ":".join(map(str, (folder, HOME / "src", HOME / "examples", PEERS)))
        blind = Turns(
            "without",
            command,
            args.turn,
            args.workers,
            args.batch,
            until,
            {"PYTHONPATH": paths, "TORCH_FR_BUFFER_SIZE": "0"},
        )
        blind.wait()
        seeing = Turns("with", command, args.turn, args.workers, args.batch, until)
        seeing.wait()
        pairs = []
        for number in range(args.pairs):
            took_s = {
                one.name: one.turn() for one in ((seeing, blind) if number % 2 else (blind, seeing))
            }
            pairs.append((took_s["with"], took_s["without"]))
            if number == 0:
                began = beats_of(seeing)
            worked_s = seeing.ranks_s[-1] / blind.ranks_s[-1] - 1
            print(
                f"  pair {number + 1:>2}  with {pairs[-1][0]:.4f} s  without {pairs[-1][1]:.4f} s "
                f" processor seconds {worked_s:+.2%}",
                flush=True,
            )
        beats = (beats_of(seeing) - began) / ((args.pairs - 1) * args.turn * args.workers)
    return judge(args, pairs, seeing, blind, beats)


def judge(
    args: argparse.Namespace,
    pairs: list[tuple[float, float]],
    seeing: Turns,
    blind: Turns,
    beats: float,
) -> int:
    """Say what was measured, write it down, and return 0, 1 or 3: kept, missed, undetermined."""
    worked = paired_ratio(seeing.ranks_s, blind.ranks_s)
    took = paired_ratio(*([pair[side] for pair in pairs] for side in (0, 1)))
    step_s, each_s = statistics.median(seeing.ranks_s) / args.workers, writing_s()
    code = 0 if worked.high - 1 <= GOAL else 1 if worked.low - 1 > GOAL else 3
    print(
        f"\nprocessor seconds of the ranks for a step: {worked.median - 1:+.2%}, 95 % interval"
        f" {worked.low - 1:+.2%} to {worked.high - 1:+.2%}"
    )
    print(
        f"mean step: {took.median - 1:+.2%}, 95 % interval {took.low - 1:+.2%} to"
        f" {took.high - 1:+.2%}"
    )
    print(
        f"beacon: written {beats:.1f} times a step, {each_s * 1e6:.1f} us each,"
        f" {beats * each_s / step_s:.3%} of the {step_s * 1e3:.0f} ms that a rank works"
    )
    result = {
        "worked": worked.as_dict(),
        "took": took.as_dict(),
        "beats_per_step": beats,
        "writing_us": each_s * 1e6,
        "step_worked_s": step_s,
        "pairs": len(pairs),
        "workers": args.workers,
        "batch": args.batch,
        "goal": {0: "kept", 1: "missed", 3: "undetermined"}[code],
    }
    print(f"written to {write_result(f'witness-{args.workers}', result)}")
    return code


if __name__ == "__main__":
    sys.exit(main())
