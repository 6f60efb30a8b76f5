"""What a user of torchrun has after an incident, and the same with some of it lost.

torchrun.log                      what the launcher printed
logs/<run>/attempt_0/<rank>/      torchrun's own: stdout.log, stderr.log, error.json
fr/..., flight/..., traces/...    flight-recorder dumps, JSON or pickle, a file for each rank
stacks/                           faulthandler's, of a step that took too long; or the same stacks
                                  as py-spy prints them
progress/rank_<rank>.json         step and phase that the script wrote down
processes.txt                     pid, state and wait channel of each rank, where the job was looked
                                  at while it hung

Times of files are kept as they were written. faulthandler's files may hold stacks of earlier steps
that were slow; py-spy shows a rank as it stands when it is looked at: of one that has written no
stack since the job stands still (it was stopped), there is none.
"""

from __future__ import annotations

import json
import os
import random
import re
import shutil
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from benchmarks.incidents.plan import Plan

WAYS = ("removed", "cut", "anonymous", "renamed")
CULPRIT_AMONG_LOST = 0.6
ALL_OF_A_RANK = 0.5  # how often its stack and progress are lost with its dump
FRAME = re.compile(r'  File "(?P<file>.+)", line (?P<line>\d+) in (?P<name>.+)')


def dump_of(folder: Path, plan: Plan, rank: int) -> Path | None:
    """Return the dump of a rank, or None. Some names hold the host's, and there is one host."""
    pattern = plan.dump_name.format(rank=rank, host="*")
    return next(iter(sorted(folder.glob(pattern))), None)


def marks_of_life(kept: Path, plan: Plan) -> dict[int, float]:
    """Return when each rank last saved its flight recorder, in seconds since 1970."""
    found = {}
    for rank in range(plan.world):
        with suppress(OSError):
            if path := dump_of(kept, plan, rank):
                found[rank] = path.stat().st_mtime
    return found


def gather(
    plan: Plan,
    kept: Path,
    places: Mapping[int, Mapping[str, Any]],
    to: Path,
    *,
    stands_since_s: float | None,
) -> None:
    """Lay out what the job's user has.

    `stands_since_s` is since when the job stands still, if it is looked at while it hangs; None
    after its end.
    """
    running = stands_since_s is not None
    to.mkdir(parents=True)
    shutil.copy2(kept / "torchrun.log", to)
    shutil.copytree(kept / "logs", to / "logs")
    dumps = Path(plan.dump_name).parent
    shutil.copytree(kept / dumps, to / dumps, ignore=shutil.ignore_patterns(".*"))
    if plan.kept["stacks"] != "none":
        _stacks(
            kept / "stacks",
            to / "stacks",
            places,
            spied_from_s=stands_since_s if plan.kept["stacks"] == "py-spy" else None,
        )
    if plan.kept["places"]:
        (to / "progress").mkdir()
        for rank, place in places.items():
            (to / "progress" / f"rank_{rank}.json").write_text(json.dumps(dict(place)) + "\n")
    if plan.kept["processes"] and running:
        (to / "processes.txt").write_text(_processes(places))


def _stacks(
    of: Path, to: Path, places: Mapping[int, Mapping[str, Any]], *, spied_from_s: float | None
) -> None:
    """Copy the stacks.

    With `spied_from_s` those that were written since then are copied as py-spy prints them; None:
    all, as they are.
    """
    to.mkdir()
    for path in sorted(of.glob("rank_*.txt")):
        text, written = path.read_text(), path.stat()
        if not text or (spied_from_s is not None and written.st_mtime < spied_from_s):
            continue
        rank = int(path.stem.rpartition("_")[2])
        (to / path.name).write_text(
            text if spied_from_s is None else _py_spy(text, places[rank]["pid"])
        )
        os.utime(to / path.name, ns=(written.st_atime_ns, written.st_mtime_ns))


def _py_spy(text: str, pid: int) -> str:
    """Write faulthandler's newest stacks as `py-spy dump` prints them.

    faulthandler has no names of threads, and prints the main one last.
    """
    blocks = [block.splitlines() for block in text.split("Timeout (")[-1].split("\n\n")]
    threads = [[FRAME.match(line) for line in block] for block in blocks]
    frames = [[found for found in block if found] for block in threads]
    frames = [block for block in frames if block]
    lines = [f"Process {pid}: python -u train.py", "Python v3.11.7 (python3.11)", ""]
    for number, block in enumerate(reversed(frames)):
        lines.append(
            f"Thread {pid + number} ({_activity(pid)}): "
            + ('"MainThread"' if number == 0 else '"recorder"')
        )
        lines += [
            f"    {frame['name']} ({_short(frame['file'])}:{frame['line']})" for frame in block
        ]
    return "\n".join(lines) + "\n"


def _short(file: str) -> str:
    """Cut off the folder that packages lie in, as py-spy does."""
    return file.rpartition("site-packages/")[2]


def _stat(pid: int) -> list[str]:
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return ["?"]


def _activity(pid: int) -> str:
    return "active" if _stat(pid)[0] == "R" else "idle"


def _processes(places: Mapping[int, Mapping[str, Any]]) -> str:
    """Return the processes as `ps -o pid,stat,wchan:24,args` prints them."""
    lines = ["    PID STAT WCHAN                    COMMAND"]
    for _, place in sorted(places.items()):
        channel = ""
        with suppress(OSError):
            channel = Path(f"/proc/{place['pid']}/wchan").read_text()
        state = _stat(place["pid"])[0]
        if state != "?":
            lines.append(
                f"{place['pid']:>7} {state + 'sl':4}"
                f" {channel if channel not in ('', '0') else '-':24} python -u train.py"
            )
    return "\n".join(lines) + "\n"


# --- some of it lost ------------------------------------------------------------------------------


def damage(plan: Plan, evidence: Path, to: Path) -> dict[str, str]:
    """Copy the evidence, and lose some of its dumps.

    Return what became of the dumps that were changed, by rank. A `renamed` one still says its rank;
    all others are as good as missing.
    """
    chance = random.Random(f"damage {plan.seed}")
    shutil.copytree(evidence, to)
    innocent = [rank for rank in range(plan.world) if rank not in plan.ranks]
    lost = chance.sample(innocent, chance.randint(0, 2))
    if chance.random() < CULPRIT_AMONG_LOST or not lost:
        lost += chance.sample(plan.ranks, chance.randint(1, len(plan.ranks)))
    done = {}
    for rank in sorted(lost):
        way, number = chance.choice(WAYS), chance.randrange(1 << 20)
        if path := dump_of(to, plan, rank):
            _lose(path, way, rank, chance.uniform(0.05, 0.9), number)
        done[str(rank)] = way
        if way != "renamed" and chance.random() < ALL_OF_A_RANK:
            for other in (
                to / "stacks" / f"rank_{rank}.txt",
                to / "progress" / f"rank_{rank}.json",
            ):
                other.unlink(missing_ok=True)
    return done


def _lose(path: Path, way: str, rank: int, share: float, number: int) -> None:
    if way == "removed":
        path.unlink()
    elif way == "cut":
        path.write_bytes(path.read_bytes()[: int(path.stat().st_size * share)])
    elif way == "anonymous":
        path.rename(path.with_name(f"copy-of-{number:05x}-dump"))
    else:
        path.rename(path.with_name(f"node0_{rank}"))
