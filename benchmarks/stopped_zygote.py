"""How long a stopped zygote and a killed worker hold up a run that has no spare.

    python benchmarks/stopped_zygote.py [--repeats N]

Replacements are forked from the zygote, so this is the dearest fault of one worker: a new zygote
has to start, import what the script imports, and fork. Each round starts a run of four workers
without a spare, stops its zygote with SIGSTOP, kills one worker at the same moment, and takes three
times:

    noticed     from the signals until the launcher says that the zygote is stopped
    back        from the signals to the first step of the next membership, less one step
    cold start  from the start of `outlast run` to the first step that all its workers committed

Goal: noticed within 2 s, and back within 2 s and one cold start. All times are by the clock, so the
machine should be quiet. Exit code 0, or 1 where a run did not come back or the goal is missed.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from _timing import summarise
from side_by_side import WORKERS, Contestant, Trial, outlast, write_result

NOTICED_GOAL_S = 2.0
NAME = "outlast-zygote"
NOTICE = "is stopped (SIGSTOP, or a debugger)"
CONTESTANT = Contestant("without a spare", outlast(script=("--steps", "1000000")))


@dataclass(frozen=True)
class Round:
    """The three times of one round, in seconds."""

    cold_start_s: float
    noticed_s: float
    back_s: float


def zygote_of(launcher: int) -> int:
    """Return the child of the launcher that replacements are forked from."""
    for task in Path(f"/proc/{launcher}/task").iterdir():
        for child in (task / "children").read_text().split():
            if Path(f"/proc/{child}/comm").read_text().strip() == NAME:
                return int(child)
    raise SystemExit(f"the launcher {launcher} has no child named {NAME}")


def one_round(rank: int) -> Round | None:
    """Start a run, strike it, and return its times, or None if it did not come back."""
    began_s = time.monotonic()
    with Trial(CONTESTANT) as trial:
        if not trial.wait_for(trial.is_settled, CONTESTANT.limit_s):
            print(f"the run never trained:\n{trial.output()}", file=sys.stderr)
            return None
        first_s = {}
        for commit in trial.commits:
            first_s.setdefault(commit.rank, commit.at_s)
        step_s, before = trial.step_s(), trial.latest()[-1].generation
        worker = next(one.pid for one in reversed(trial.latest()) if one.rank == rank)
        noticed_s: list[float] = []

        def is_back() -> bool:
            if not noticed_s and NOTICE in (trial.folder / "output").read_text(errors="replace"):
                noticed_s.append(time.monotonic())
            return any(one.generation > before for one in trial.commits)

        struck_s = time.monotonic()
        os.kill(zygote_of(trial.pid), signal.SIGSTOP)
        os.kill(worker, signal.SIGKILL)
        if not trial.wait_for(is_back, CONTESTANT.limit_s) or not noticed_s:
            print(f"the run did not come back:\n{trial.output()}", file=sys.stderr)
            return None
        back_s = min(one.at_s for one in trial.commits if one.generation > before)
        return Round(
            cold_start_s=max(first_s.values()) - began_s,
            noticed_s=noticed_s[0] - struck_s,
            back_s=back_s - struck_s - step_s,
        )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    draw = random.Random(args.seed)
    rounds = []
    for _ in range(args.repeats):
        one = one_round(draw.randrange(WORKERS))
        if one is None:
            return 1
        rounds.append(one)
        print(
            f"  noticed {one.noticed_s:.2f} s   back {one.back_s:.2f} s  "
            f" cold start {one.cold_start_s:.2f} s",
            flush=True,
        )
    noticed = summarise([one.noticed_s for one in rounds])
    over = summarise([one.back_s - one.cold_start_s for one in rounds])
    print(f"noticed after {noticed.text(unit=' s')}, goal {NOTICED_GOAL_S} s")
    print(f"back after {summarise([one.back_s for one in rounds]).text(unit=' s')}")
    print(f"cold start {summarise([one.cold_start_s for one in rounds]).text(unit=' s')}")
    print(f"back less cold start {over.text(unit=' s')}, goal {NOTICED_GOAL_S} s")
    print(f"written to {write_result('stopped-zygote', [vars(one) for one in rounds])}")
    return int(noticed.median > NOTICED_GOAL_S or over.median > NOTICED_GOAL_S)


if __name__ == "__main__":
    sys.exit(main())
