"""Does the swarm notice when the protocol is wrong?

Planted mutants by name, and every condition turned round, one at a time.

    python -m tools.mutation                         the named mutants
    python -m tools.mutation --flips                 each condition of the files in FLIPPED,
                                                         turned round
    python -m tools.mutation --only heals_nobody     some of them
    python -m tools.mutation --flips --sample 60     60 of them, spread evenly
    python -m tools.mutation --flips --again         only those that a seed is known to kill
                                                         (killers.json), by that seed alone

Each mutant is the package with one place changed; seeds run in it (mutant.py) until one breaks a
rule, ends with an error, or does not end: then it is killed. A life that never comes to a condition
is the same life when that is turned round, and is not lived again. A table is printed. Of a mutant
that lives it says which unit test of the engine fails, if one does; exit code 1 if none does and it
is not argued for in SURVIVORS.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tools.mutation.fates import KILLERS, fates_again, fates_of, remember
from tools.mutation.flips import flips
from tools.mutation.named import NAMED, SURVIVORS

SEEDS = 2_000


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--flips",
        action="store_true",
        help="each condition turned round, in place of the named mutants",
    )
    parser.add_argument(
        "--only", nargs="*", default=[], help="mutants whose name holds one of these words"
    )
    parser.add_argument("--sample", type=int, metavar="N", help="only N of them, spread evenly")
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument(
        "--keep",
        type=Path,
        metavar="FILE",
        help="what is known of each is written there, and is not looked for again",
    )
    parser.add_argument(
        "--again",
        action="store_true",
        help="only those that a seed is known to kill, by that seed alone",
    )
    parser.add_argument(
        "--remember",
        action="store_true",
        help=f"write down in {KILLERS.name} which seed killed which",
    )
    args = parser.parse_args()
    mutants = [
        one
        for one in (flips() if args.flips else NAMED)
        if not args.only or any(word in one.name for word in args.only)
    ]
    if args.sample is not None and args.sample < len(mutants):
        mutants = [mutants[number * len(mutants) // args.sample] for number in range(args.sample)]
    fates = []
    for fate in (
        fates_again(mutants) if args.again else fates_of(mutants, seeds=args.seeds, kept=args.keep)
    ):
        fates.append(fate)
        print(
            f"{'killed' if fate.killed else 'LIVES ':<7} {fate.mutant.name:<110} {fate.how}",
            flush=True,
        )
    if args.remember:
        remember(fates)
    alive = [fate for fate in fates if not fate.killed]
    unheld = [fate.mutant.name for fate in alive if not fate.held]
    argued = sum(name in SURVIVORS for name in unheld)
    noticed = len(alive) - len(unheld)
    print(
        f"{len(fates) - len(alive)} of {len(fates)} killed; of {len(alive)} that live a unit test"
        f" notices {noticed}, {argued} more are argued for"
    )
    return 1 if argued < len(unheld) else 0


if __name__ == "__main__":
    sys.exit(main())
