"""Judge the made incidents, whole and with parts left out, and print one table.

    python -m benchmarks.live_incidents.score OUT [--set held-back] [--json FILE] [--verbose]

whole           all that was collected
no kernel       without the kernel's log
no dumps        without the flight recorders
logs only       without dumps, stacks and the kernel's log
other's kill    whole, and the kernel's log of another job's OOM kill a second before the end
echo            whole, and rank 0's log begins with source code that names failures
older           whole, and beside it dumps of an attempt an hour earlier, in which another rank
                slept; pickled dumps do not serve, because their times cannot be moved by hand

right       the class is one of those that the evidence allows (`kinds.py`); unknown is right only
            where no part that was left in tells the class
wrong       another class is named; unknown is never wrong
sure        wrong with confidence 0.8 or more
exact       the ranks are the guilty ones, where the parts left in show them
innocent    a rank is named that is not guilty; where all fail alike, any of them may be named
worse       less evidence gave a right class and the whole a wrong one, or the whole names an
            innocent that a part does not
lost        less evidence told a right class, and the whole says unknown
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.live_incidents.calm_lines import RULE, SOURCE
from benchmarks.live_incidents.kinds import KINDS, SETS, UNKNOWN, Kind
from benchmarks.live_incidents.make import RANKS, kernel_line, oom_kill
from outlast.runtime.evidence.reading import diagnose

SURE = 0.8
ECHO = f"{SOURCE}{RULE}step:1 train_time:51ms step_avg:nanms\n"


@dataclass(frozen=True, slots=True)
class Mark:
    """Hold how one verdict compares with the truth."""

    name: str
    kind: str
    part: str
    right: bool
    wrong: bool
    sure: bool
    can_be_exact: bool
    exact: bool
    innocent: bool
    said: str
    took_s: float


def _struck(truth: dict[str, Any]) -> int:
    """Return the rank that the fault was put into. Older folders have it under another key."""
    return int(truth["struck"] if "struck" in truth else truth["victim"])


def _without(*names: str) -> Callable[[Path, dict[str, Any]], None]:
    def change(folder: Path, truth: dict[str, Any]) -> None:
        for name in names:
            for path in folder.glob(name):
                shutil.rmtree(path) if path.is_dir() else path.unlink()

    return change


def _other_kill(folder: Path, truth: dict[str, Any]) -> None:
    ends_s = max(path.stat().st_mtime for path in folder.rglob("*") if path.is_file())
    with (folder / "dmesg-of-node1.txt").open("a") as file:
        kill = oom_kill(990_123, "python3", ends_s - 2.0, "/user.slice/session-4.scope")
        file.write("".join(map(kernel_line, kill)))


def _echo(folder: Path, truth: dict[str, Any]) -> None:
    ends_s = max(path.stat().st_mtime for path in folder.rglob("*") if path.is_file())
    log = next(iter(sorted(folder.glob("logs/*/attempt_0/0/stdout.log"))), None)
    path = log or folder / "logs" / "rank_0.log"
    path.parent.mkdir(parents=True, exist_ok=True)
    written_s = path.stat().st_mtime if log else ends_s
    path.write_text(ECHO + (path.read_text() if log else ""))
    os.utime(path, (written_s, written_s))  # an echo is printed at the start


def _older(folder: Path, truth: dict[str, Any]) -> None:
    """Add the dumps of an hour before, when another rank slept.

    Where the incident left none in JSON, the newest of the same layout in the row lends its own.
    """
    ends_s = max(path.stat().st_mtime for path in folder.rglob("*") if path.is_file())
    lent = _dumps_of(folder) or _dumps_of(Path(truth["lender"]))
    target = folder / "earlier"
    for path in lent:
        dump = json.loads(path.read_bytes())
        entries = dump.get("entries", [])
        newest_ns = max((entry["time_created_ns"] for entry in entries), default=0)
        for entry in entries:
            entry["time_created_ns"] += int((ends_s - 3_600) * 1e9) - newest_ns
        if path.name.endswith(str((_struck(truth) + 1) % RANKS)):
            dump["entries"] = entries[:-3]
        target.mkdir(exist_ok=True)
        to = target / path.name
        to.write_text(json.dumps(dump))
        os.utime(to, (ends_s - 3_600, ends_s - 3_600))


def _dumps_of(folder: Path) -> list[Path]:
    """Return the folder's dumps in JSON."""
    dumps = sorted((folder / "dumps").glob("*rank_*"))
    return [path for path in dumps if path.read_bytes()[:1] == b"{"]


PARTS: dict[str, tuple[Callable[[Path, dict[str, Any]], None], frozenset[str]]] = {
    "whole": (_without(), frozenset({"logs", "stacks", "dumps", "kernel"})),
    "no kernel": (_without("dmesg*"), frozenset({"logs", "stacks", "dumps"})),
    "no dumps": (_without("dumps"), frozenset({"logs", "stacks", "kernel"})),
    "logs only": (_without("dmesg*", "dumps", "stacks"), frozenset({"logs"})),
    "other's kill": (_other_kill, frozenset({"logs", "stacks", "dumps", "kernel"})),
    "echo": (_echo, frozenset({"logs", "stacks", "dumps", "kernel"})),
    "older": (_older, frozenset({"logs", "stacks", "dumps", "kernel"})),
}


def judge_all(out: Path, set_name: str) -> list[Mark]:
    """Judge the incidents of one set of kinds, with each part left out or added."""
    wanted = {kind.name for kind in SETS[set_name]}
    truths = {path: json.loads(path.read_text()) for path in sorted(out.glob("*/truth.json"))}
    lenders = {
        truth["layout"]: path.parent / "whole"
        for path, truth in truths.items()
        if _dumps_of(path.parent / "whole")
    }
    return [
        judge(path.parent, part, lenders.get(truth["layout"], path.parent))
        for path, truth in truths.items()
        if truth["kind"] in wanted
        for part in PARTS
    ]


def judge(folder: Path, part: str, lender: Path) -> Mark:
    truth = json.loads((folder / "truth.json").read_text()) | {"lender": str(lender)}
    kind = KINDS[truth["kind"]]
    change, has = PARTS[part]
    with tempfile.TemporaryDirectory() as work:
        copy = Path(work) / "incident"
        shutil.copytree(folder / "whole", copy)
        change(copy, truth)
        has = has & _in(copy)
        began_s = time.monotonic()
        verdict = diagnose([str(copy)]).verdict
        took_s = time.monotonic() - began_s
    return _mark(folder.name, kind, part, truth, verdict.public(), has, took_s)


def _in(folder: Path) -> frozenset[str]:
    """Return the parts that the folder has: an ended job leaves no stacks, and not always dumps."""
    stands = {"logs": "logs", "stacks": "stacks", "dumps": "dumps", "kernel": "dmesg-of-node1.txt"}
    return frozenset(part for part, name in stands.items() if (folder / name).exists())


def _mark(
    name: str,
    kind: Kind,
    part: str,
    truth: dict[str, Any],
    verdict: dict[str, Any],
    has: frozenset[str],
    took_s: float,
) -> Mark:
    allowed = set(kind.classes)
    if not kind.class_in & has:
        allowed.add(UNKNOWN)
    said, confidence = str(verdict["class"]), float(verdict["confidence"])
    counts = said in allowed or (said in kind.hedged and confidence < SURE)
    wrong = not counts and said != UNKNOWN
    guilty = {(_struck(truth) + more) % RANKS for more in range(kind.guilty)}
    ranks = {one["rank"] for one in verdict["ranks"]}
    can = kind.guilty > 0 and bool(kind.rank_in & has)
    everybody = kind.guilty == 0 and not kind.from_outside
    return Mark(
        name,
        kind.name,
        part,
        right=counts,
        wrong=wrong,
        sure=wrong and confidence >= SURE,
        can_be_exact=can,
        exact=ranks == guilty,
        innocent=bool(ranks - guilty) and not everybody,
        said=f"{said} {confidence:.2f}, {verdict['mechanism']}, ranks {sorted(ranks)}",
        took_s=took_s,
    )


def table(marks: list[Mark]) -> list[str]:
    lines = [
        f"{'part':14}{'n':>5}{'right':>8}{'wrong':>7}{'sure':>6}{'exact':>14}{'innocent':>10}"
        f"{'slowest':>9}"
    ]
    for part in (*PARTS, "all"):
        of = [mark for mark in marks if part in (mark.part, "all")]
        can = [mark for mark in of if mark.can_be_exact]
        if of:
            exact = f"{sum(mark.exact for mark in can)} of {len(can)}"
            lines.append(
                f"{part:14}{len(of):5}{sum(mark.right for mark in of):8}"
                f"{sum(mark.wrong for mark in of):7}{sum(mark.sure for mark in of):6}{exact:>14}"
                f"{sum(mark.innocent for mark in of):10}{max(mark.took_s for mark in of):8.1f}s"
            )
    return lines


def worse(marks: list[Mark]) -> list[str]:
    """Return the incidents of which a part was judged better than the whole."""
    found = []
    for whole in (mark for mark in marks if mark.part == "whole"):
        for part in marks:
            if part.name != whole.name or part.part not in ("no kernel", "no dumps", "logs only"):
                continue
            if (part.right and whole.wrong) or (whole.innocent and not part.innocent):
                found.append(f"{whole.name}: {part.part} says {part.said}; whole {whole.said}")
    return found


def lost(marks: list[Mark]) -> list[str]:
    """Return the incidents of which a part told a right class, and the whole says unknown."""
    found = []
    for whole in (mark for mark in marks if mark.part == "whole" and _names_none(mark)):
        for part in marks:
            same = part.name == whole.name and part.part in ("no kernel", "no dumps", "logs only")
            if same and part.right and not _names_none(part):
                found.append(f"{whole.name}: {part.part} says {part.said}; whole {whole.said}")
    return found


def _names_none(mark: Mark) -> bool:
    return mark.said.startswith(f"{UNKNOWN} ")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--set", choices=tuple(SETS), default="all")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--verbose", action="store_true")
    args = parser.parse_args()
    marks = judge_all(args.out, args.set)
    print("\n".join(table(marks)))
    for one in worse(marks):
        print("worse:", one)
    for one in lost(marks):
        print("lost:", one)
    for mark in marks:
        if args.verbose or mark.wrong or mark.innocent:
            print(f"{mark.name:24} {mark.part:13} {mark.said}" + ("  WRONG" if mark.wrong else ""))
        elif mark.can_be_exact and not mark.exact:
            print(f"{mark.name:24} {mark.part:13} {mark.said}  (not exact)")
    if args.json:
        args.json.write_text(json.dumps([asdict(mark) for mark in marks], indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
