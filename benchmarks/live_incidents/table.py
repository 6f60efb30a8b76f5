"""Print one table: what a diagnosis is right about, beside the goals for it.

    python -m benchmarks.live_incidents.table OUT --logs FOLDER [--kinds last] [--seed 1]

Incidents, healthy folders and damaged ones are made below OUT, unless they are there already. An
incident of a kind takes about half a minute. FOLDER holds labelled excerpts of logs, as for
`score_logs.py`. The exit code is 1 if a goal is missed.

The time of a diagnosis of 16,384 ranks is compared with that of older code by
`benchmarks/flight_recorder.py`.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.live_incidents import damage, healthy, make, score
from benchmarks.live_incidents.kinds import SETS
from benchmarks.live_incidents.score import Mark

HERE = Path(__file__).parent
STRANGERS = ("other's kill", "echo", "older")
Row = tuple[str, str, str, bool]  # a set, its goal, what was found, and whether the goal is kept


def of_excerpts(logs: Path) -> list[Row]:
    """Score the labelled excerpts."""
    command = [sys.executable, str(HERE.parent / "score_logs.py"), "--json", "--data", str(logs)]
    said = subprocess.run(command, capture_output=True, text=True, check=True)
    result = json.loads(said.stdout)
    right, count, sure = result["right"], result["count"], len(result["wrong_and_sure"])
    name = f"{count} labelled excerpts"
    return [
        (name, "right >= 90 %", f"{right} of {count}", right >= 0.9 * count),
        (name, "wrong and sure: none", str(sure), not sure),
    ]


def of_incidents(name: str, marks: Sequence[Mark]) -> list[Row]:
    """Hold the marks of one row of the table against its goals."""
    can = [mark for mark in marks if mark.can_be_exact]

    def share(
        goal: str, of: Sequence[Mark], counts: Callable[[Mark], bool], least: float, most: float
    ) -> Row:
        found = sum(map(counts, of))
        part = found / len(of) if of else 0.0
        said = f"{found} of {len(of)} ({part:.1%})"
        return name, goal, said, bool(of) and least <= part <= most

    return [
        share("right >= 85 %", marks, lambda mark: mark.right, 0.85, 1.0),
        share("wrong <= 3 %", marks, lambda mark: mark.wrong, 0.0, 0.03),
        share("wrong and sure: none", marks, lambda mark: mark.sure, 0.0, 0.0),
        share("ranks exact >= 95 %", can, lambda mark: mark.exact, 0.95, 1.0),
        share("innocents <= 1 %", marks, lambda mark: mark.innocent, 0.0, 0.01),
    ]


def of_healthy(out: Path) -> Row:
    """Look at healthy folders: neither a class nor a rank may be named."""
    healthy.make_all(out, 24, 1)
    folders, bad = healthy.judge_all(out)
    return f"{folders} healthy folders", "no class, no rank", f"{bad} with one", not bad


def of_damaged(incidents: Path, count: int) -> list[Row]:
    """Damage copies of the incidents."""
    found = damage.damage_all(incidents, count, 1)
    name, memory_mb = f"{count} damaged folders", found.memory_mb()
    slowest = f"slowest {found.slowest_s:.1f} s"
    return [
        (name, f"an answer within {damage.LIMIT_S:g} s", slowest, not found.late),
        (name, f"memory < {damage.LIMIT_MB} MB", f"{memory_mb} MB", memory_mb < damage.LIMIT_MB),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--logs", type=Path, help="the folder of labelled excerpts; without: none")
    parser.add_argument("--kinds", choices=tuple(SETS), default="held-back")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=1e9, help="for making incidents")
    parser.add_argument("--damaged", type=int, default=1000)
    args = parser.parse_args()
    incidents = args.out / "incidents"
    make.make_all(incidents, args.kinds, args.seed, minutes=args.minutes)
    marks = score.judge_all(incidents, args.kinds)
    plain = [mark for mark in marks if mark.part not in STRANGERS]
    rows = of_excerpts(args.logs) if args.logs else []
    rows += of_incidents(f"live incidents ({args.kinds}), parts left out", plain)
    for part in STRANGERS:
        rows += of_incidents(f"the same, {part}", [one for one in marks if one.part == part])
    worse, lost = score.worse(marks), score.lost(marks)
    rows.append(("whole beside its parts", "made worse: none", str(len(worse)), not worse))
    rows.append(("whole beside its parts", "class lost: counted", str(len(lost)), True))
    for one in (*worse, *lost):
        print("worse or lost:", one)
    rows += [of_healthy(args.out / "healthy"), *of_damaged(incidents, args.damaged)]
    wide = [max(len(row[at]) for row in rows) for at in range(3)]
    for *texts, kept in rows:
        line = "  ".join(f"{text:{width}}" for text, width in zip(texts, wide, strict=True))
        print(line + ("" if kept else "  MISSED"))
    return 0 if all(row[3] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
