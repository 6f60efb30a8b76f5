"""What outlast costs while nothing goes wrong: the step time of one model under `outlast run` and under torchrun.

    python benchmarks/overhead.py --pairs 10

The two run in turn, the first of a pair changing, so that a machine that warms up or is busy for a while touches both alike. The
figure is the ratio of their median steps: the median over pairs, with a 95 % interval. Exit code 0 if all of the interval keeps the goal
of 2 %, 1 if none of it does, else 3: more pairs would tell.
Each pair's steps before the 20th are left out: allocator, caches and outlast's own learning.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import sys

from _timing import paired_ratio
from side_by_side import Contestant, Trial, outlast, torchrun, write_result

WARM_UP_STEPS = 20
GOAL = 0.02


def median_step_s(contestant: Contestant) -> float:
    """Median time between rank 0's commits."""
    with Trial(contestant) as trial:
        trial.wait_for(lambda: trial.exit_code is not None, contestant.limit_s)
        if trial.follow() and trial.exit_code == 0:
            at_s = [commit.at_s for commit in trial.commits if commit.rank == 0][WARM_UP_STEPS:]
            return statistics.median(after - before for before, after in itertools.pairwise(at_s))
        raise SystemExit(f"{contestant.name} ended with {trial.exit_code}:\n{trial.output()}")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--steps", type=int, default=140)
    parser.add_argument("--spares", type=int, default=0, help="with so many hot spares standing by")
    args = parser.parse_args()

    script = ("--steps", str(args.steps))
    ours = Contestant("outlast", outlast("--spares", str(args.spares), script=script), limit_s=300)
    theirs = Contestant("torchrun", torchrun("--standalone", script=script), limit_s=300)
    pairs = []
    for number in range(args.pairs):
        order = (ours, theirs) if number % 2 else (theirs, ours)
        took_s = {contestant.name: median_step_s(contestant) for contestant in order}
        pairs.append((took_s["outlast"], took_s["torchrun"]))
        print(f"  pair {number + 1:>2}  outlast {pairs[-1][0]:.4f} s  torchrun {pairs[-1][1]:.4f} s  {pairs[-1][0] / pairs[-1][1] - 1:+.2%}", flush=True)

    ours_s, theirs_s = ([pair[index] for pair in pairs] for index in (0, 1))
    ratio = paired_ratio(ours_s, theirs_s)
    code = 0 if ratio.high - 1 <= GOAL else 1 if ratio.low - 1 > GOAL else 3
    word = {0: "kept", 1: "missed", 3: "undetermined"}[code]
    print(f"\noverhead {ratio.median - 1:+.2%}, 95 % interval {ratio.low - 1:+.2%} to {ratio.high - 1:+.2%}; goal of {GOAL:.0%}: {word}")
    result = {
        "overhead": round(ratio.median - 1, 5), "low": round(ratio.low - 1, 5), "high": round(ratio.high - 1, 5), "goal": word,
        "pairs": len(pairs), "steps": args.steps, "spares": args.spares,
        "outlast_step_s": round(statistics.median(ours_s), 5), "torchrun_step_s": round(statistics.median(theirs_s), 5),
        "all": [[round(one, 5) for one in pair] for pair in pairs],
    }  # fmt: skip
    print(f"written to {write_result('overhead', result)}")
    return code


if __name__ == "__main__":
    sys.exit(main())
