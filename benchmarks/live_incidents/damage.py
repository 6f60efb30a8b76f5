"""Damage made incidents in drawn ways, and check that each is answered in time and in memory.

    python -m benchmarks.live_incidents.damage OUT [--count 1000] [--seed 1]

Files are cut, overwritten, renamed, removed, repeated, made empty, and given to one another's name.
An answer is a verdict, or the error that nothing could be read. Largest memory is that of this
process and of the largest of those that read dumps for it, together.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import resource
import shutil
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from outlast.errors import UsageError
from outlast.runtime.evidence.reading import diagnose

LIMIT_S, LIMIT_MB = 10.0, 500


def damage(folder: Path, chance: random.Random) -> None:
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    for path in chance.sample(files, chance.randint(1, max(1, len(files) // 2))):
        if not path.exists():
            continue
        raw = bytearray(path.read_bytes())
        match chance.randrange(7):
            case 0:
                path.write_bytes(raw[: chance.randint(0, len(raw))])
            case 1:
                for _ in range(chance.randint(1, 200)):
                    if raw:
                        raw[chance.randrange(len(raw))] = chance.randrange(256)
                path.write_bytes(raw)
            case 2:
                path.rename(path.with_name(f"file{chance.randrange(99)}-{path.name[-4:]}"))
            case 3:
                path.unlink()
            case 4:
                path.write_bytes(bytes(raw) * chance.randint(2, 40))
            case 5:
                path.write_bytes(b"")
            case _:
                path.write_bytes(chance.choice(files).read_bytes() if files[0].exists() else b"\0")


@dataclass
class Damaged:
    """How damaged folders were answered: how many with a verdict, and with nothing to read."""

    verdicts: int = 0
    refused: int = 0
    late: int = 0
    slowest_s: float = 0.0

    @staticmethod
    def memory_mb() -> int:
        """Return the largest memory of this process and of the largest reader, together."""
        kinds = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
        return sum(resource.getrusage(kind).ru_maxrss for kind in kinds) // 1024


def damage_all(out: Path, count: int, seed: int) -> Damaged:
    """Damage so many copies of the incidents in `out`, and ask for a verdict on each."""
    found = Damaged()
    incidents = sorted(path.parent / "whole" for path in out.glob("*/truth.json"))
    for number in range(count):
        chance = random.Random(f"damage {seed} {number}")
        with tempfile.TemporaryDirectory() as work:
            copy = Path(work) / "incident"
            shutil.copytree(chance.choice(incidents), copy)
            with contextlib.suppress(OSError):  # one damage meets a file that another removed
                damage(copy, chance)
            began_s = time.monotonic()
            try:
                diagnose([str(copy)])
                found.verdicts += 1
            except UsageError:
                found.refused += 1
            took_s = time.monotonic() - began_s
        found.slowest_s = max(found.slowest_s, took_s)
        found.late += took_s > LIMIT_S
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    found = damage_all(args.out, args.count, args.seed)
    print(
        f"{args.count} folders: {found.verdicts} verdicts, {found.refused} with nothing to read,"
        f" slowest {found.slowest_s:.1f} s, {found.late} over {LIMIT_S:g} s, memory"
        f" {found.memory_mb()} MB"
    )
    return 1 if found.late or found.memory_mb() > LIMIT_MB else 0


if __name__ == "__main__":
    raise SystemExit(main())
