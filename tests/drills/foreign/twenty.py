"""Twenty random faults in each script that promises equal bits.

    python -m tests.drills.foreign.twenty [--seed N] [NAME ...]

prints one line for each script: how many faults struck, what their effect was, and whether every
rank's whole state at the end is that of an undisturbed run. The scripts are those in which `outlast
check` must find nothing to change (tests/drills/checked/good), and those of scripts/ that have the
shape of well-known ones. Each is run unchanged by scripts/paced.py, in about a minute.

Faults are SIGKILL and SIGSTOP to a random rank at a random moment, from outside. The next one comes
once the last one is over. The exit code is 1 if a line is bad.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.drills._run import Drill, Outcome

HERE = Path(__file__).parent
GOOD = HERE.parent / "checked" / "good"
FAULTS = 20
SHAPES = (
    "callbacks",
    "critic",
    "distil",
    "draws",
    "gan",
    "gpt",
    "ppo",
    "recipe",
    "reference",
    "rollouts",
    "sharpness",
    "stages",
    "trainer_hooks",
)
SCRIPTS = {
    **{path.stem: path for path in sorted(GOOD.glob("*.py")) if path.stem != "tqdm_like"},
    **{name: HERE / "scripts" / f"{name}.py" for name in SHAPES},
}
# how much longer the short ones are made; the text of `recurrent` is used up at step 199
TIMES = {
    "recurrent": 4,
    "schedule": 2,
    "draws": 6,
    "evaluation": 12,
    "callbacks": 2,
    "gan": 4,
    "gpt": 2,
    "reference": 3,
    "running_loss": 2,
    "sharpness": 2,
    "stages": 3,
}
UNTIL, PACE_S = 240, 0.1
# the first one leaves its loop in step 60, and the second in step 84
SLOWER = {"early_stop": 0.3, "distil": 0.25, "recurrent": 0.15}
WITHIN_S = 240.0


@dataclass(frozen=True, slots=True)
class Row:
    """What twenty faults did to one script."""

    name: str
    seed: int
    faults: int
    wanted: int
    calm: Outcome
    hit: Outcome

    @property
    def well(self) -> bool:
        return (
            self.calm.code == self.hit.code == 0
            and self.hit.digests == self.calm.digests != {}
            and self.faults == self.wanted
            and not any(one["steps_lost"] for one in self.hit.interruptions)
        )

    def __str__(self) -> str:
        hit = self.hit
        times = [one["mttr_s"] for one in hit.interruptions if one["mttr_s"] is not None]
        equal = "equal" if hit.digests == self.calm.digests else "DIFFERENT"
        if not (hit.digests and self.calm.digests):
            equal = "MISSING"
        lost = sum(one["steps_lost"] or 0 for one in hit.interruptions)
        return (
            f"{'ok ' if self.well else 'BAD'} {self.name:16} {self.faults:2} faults"
            f"  {len(hit.interruptions):2} interruptions  digests {equal:9}  {lost} lost"
            f"  MTTR {statistics.median(times) if times else float('nan'):.2f} s"
            f"  exit {hit.code}  seed {self.seed}"
        )


def struck(name: str, seed: int, *, faults: int = FAULTS) -> Row:
    """Run a script undisturbed, and once more under faults."""
    chance = random.Random(f"{name} {seed}")
    with tempfile.TemporaryDirectory(prefix="twenty-") as folder:
        calm = _run(Path(folder) / "calm", name, None, 0)[0]
        hit, fired = _run(Path(folder) / "hit", name, chance, faults)
    return Row(name, seed, fired, faults, calm, hit)


def _run(folder: Path, name: str, chance: random.Random | None, faults: int) -> tuple[Outcome, int]:
    folder.mkdir()
    pace_s = SLOWER.get(name, PACE_S) if faults else 0.0
    env = {
        "PACED_S": str(pace_s),
        "PACED_UNTIL": str(UNTIL),
        "PACED_TIMES": str(TIMES.get(name, 1)),
    }
    fired = 0
    paced = str(HERE / "scripts" / "paced.py")
    with Drill(folder, paced, SCRIPTS[name], workers=2, env=env, within_s=WITHIN_S) as drill:
        while fired < faults and drill.process.poll() is None:
            assert chance is not None
            fired += _strike(drill, chance, fired)
        return drill.finish(), fired


def _strike(drill: Drill, chance: random.Random, before: int) -> bool:
    """Strike once, when all faults before are over. Return False if the run has ended first."""

    def ready() -> bool:
        status: dict[str, Any] = drill.status  # it lists only the newest interruptions
        over = drill.stderr.count(": back after ")
        training = [one["state"] for one in status.get("workers", ())] == ["training"] * 2
        return drill.process.poll() is not None or (
            training and over >= before and status.get("step", 0) > 0
        )

    drill.until(ready, f"recovery {before}")
    time.sleep(chance.uniform(0.0, 0.3))  # the moment is random, and this waits for nothing
    rank, number = chance.randrange(2), chance.choice((signal.SIGKILL, signal.SIGSTOP))
    pids = [one["pid"] for one in drill.status.get("workers", ()) if one["rank"] == rank]
    if drill.process.poll() is not None or not pids:
        return False
    try:
        os.kill(pids[0], number)
    except ProcessLookupError:
        return False
    return True


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(SCRIPTS))
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    well = True
    for name in given.names or SCRIPTS:
        row = struck(name, given.seed)
        print(row, flush=True)
        if not row.well:
            print(row.hit, flush=True)
        well = well and row.well
    return 0 if well else 1


if __name__ == "__main__":
    sys.exit(main())
