"""How well `outlast diagnose` does on made incidents: a table for each kind, with all evidence and
with some of it lost.

    python benchmarks/incidents/score.py                     makes 200 with judging seeds in a
                                                             temporary folder, and scores them
    python benchmarks/incidents/score.py DIR                 scores those that `make.py DIR` made
    python benchmarks/incidents/score.py DIR --in-process    the same diagnosis without starting the
                                                             command for each

suspects   incidents in which somebody is suspected whose evidence was there
innocents  incidents in which somebody is named who did nothing
Exit code 1 where less is reached than `judge.py` wants.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))
from benchmarks.incidents.judge import (
    EXACT_WANTED,
    SOUND_WANTED,
    Mark,
    judge,
    missing_of,
    reached,
    share,
    table,
)
from benchmarks.incidents.make import make_all
from benchmarks.incidents.plan import KINDS, draw, seeds

OUTLAST = str(Path(sys.executable).with_name("outlast"))
COUNT = 200
ANSWER_WITHIN_S = 120.0
Asked = Callable[[Path], dict[str, Any]]


def by_command(folder: Path) -> dict[str, Any]:
    """Diagnose a folder by the command, as a person does."""
    command = [OUTLAST, "diagnose", str(folder), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=ANSWER_WITHIN_S)
    if done.returncode not in (0, 3):
        raise SystemExit(f"{' '.join(command)}: exit code {done.returncode}\n{done.stderr}")
    answer: dict[str, Any] = json.loads(done.stdout)
    assert (done.returncode == 3) == (answer["class"] == "unknown"), (
        f"{folder}: exit code {done.returncode} with class {answer['class']}"
    )
    return answer


def in_process(folder: Path) -> dict[str, Any]:
    from outlast.runtime.evidence.reading import diagnose

    return diagnose([str(folder)]).verdict.public()


def score(folder: Path, ask: Asked, *, at_once: int = 1) -> tuple[list[Mark], list[Mark]]:
    """Return the marks of all incidents in this folder, with all evidence and with some of it."""
    told = {
        path.parent: json.loads(path.read_text()) for path in sorted(folder.glob("*/truth.json"))
    }
    if not told:
        raise SystemExit(f"{folder}: no incidents")
    with ThreadPoolExecutor(at_once) as pool:
        kept = list(pool.map(lambda at: judge(at.name, told[at], ask(at / "evidence")), told))
        damaged = list(
            pool.map(
                lambda at: judge(
                    at.name, told[at], ask(at / "damaged"), missing=missing_of(told[at])
                ),
                told,
            )
        )
    return kept, damaged


def report(kept: Sequence[Mark], damaged: Sequence[Mark]) -> str:
    parts = [
        (
            f"All evidence kept: exact ranks wanted in {EXACT_WANTED:.0%}, reached"
            f" {share(m.exact for m in kept):.1%}"
        ),
        table(kept, damaged=False),
        "",
        (
            f"Dumps removed, cut or renamed: sound wanted in {SOUND_WANTED:.0%}, reached"
            f" {share(m.sound for m in damaged):.1%}"
        ),
        table(damaged, damaged=True),
    ]
    wrong = [
        ("kept", mark)
        for mark in kept
        if not (mark.exact and mark.class_right and mark.mechanism_right)
    ]
    wrong += [
        ("damaged", mark)
        for mark in damaged
        if not (mark.sound and mark.class_right and mark.mechanism_right)
    ]
    return "\n".join(
        [*parts, "", *(f"{which:8}{mark.name:28}{mark.said}" for which, mark in wrong)]
    )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "folder", type=Path, nargs="?", help="made before; without it they are made now"
    )
    parser.add_argument("--count", type=int, default=COUNT)
    parser.add_argument(
        "--development",
        action="store_true",
        help="make those that rules may be tried on, not those that judge them",
    )
    parser.add_argument("--in-process", action="store_true")
    parser.add_argument("--json", type=Path, help="also write shares here")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="made-") as temporary:
        folder = args.folder or Path(temporary)
        if args.folder is None:
            began_s = time.monotonic()
            plans = [draw(seed) for seed in seeds(args.count, judging=not args.development)]
            failed = make_all(plans, folder)
            spent = f"made in {time.monotonic() - began_s:.0f} s; not made: {failed or 'none'}"
            print(f"{len(plans) - len(failed)} incidents of {len(KINDS)} kinds {spent}", flush=True)
        kept, damaged = score(
            folder,
            in_process if args.in_process else by_command,
            at_once=1 if args.in_process else 2,
        )
    print(report(kept, damaged))
    if args.json:
        args.json.write_text(
            json.dumps(
                {
                    "exact": share(m.exact for m in kept),
                    "sound": share(m.sound for m in damaged),
                    "count": len(kept),
                }
            )
        )
    return 0 if reached(kept, damaged) else 1


if __name__ == "__main__":
    raise SystemExit(main())
