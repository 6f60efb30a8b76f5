"""Damage made incidents in drawn ways, and check that each is answered in time and in memory.

    python -m benchmarks.live_incidents.damage OUT [--count 1000] [--seed 1]

Files are cut, overwritten, renamed, removed, repeated, made empty, and given to one another's name.
An answer is a verdict, or the error that nothing could be read. Largest memory is that of this
process and of the largest of those that read dumps for it, together.
"""

from __future__ import annotations

import argparse
import random
import resource
import shutil
import tempfile
import time
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


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    incidents = sorted(path.parent / "whole" for path in args.out.glob("*/truth.json"))
    slowest_s, late, verdicts, refused = 0.0, [], 0, 0
    for number in range(args.count):
        chance = random.Random(f"damage {args.seed} {number}")
        with tempfile.TemporaryDirectory() as work:
            copy = Path(work) / "incident"
            shutil.copytree(chance.choice(incidents), copy)
            try:
                damage(copy, chance)
            except OSError:
                pass  # one kind of damage met a file that another had removed
            began_s = time.monotonic()
            try:
                diagnose([str(copy)])
                verdicts += 1
            except UsageError:
                refused += 1
            took_s = time.monotonic() - began_s
        slowest_s = max(slowest_s, took_s)
        if took_s > LIMIT_S:
            late.append((number, took_s))
    own, largest = (
        resource.getrusage(who).ru_maxrss
        for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    )
    memory_mb = (own + largest) // 1024
    print(
        f"{args.count} folders: {verdicts} verdicts, {refused} with nothing to read, slowest"
        f" {slowest_s:.1f} s, {len(late)} over {LIMIT_S:g} s, memory {memory_mb} MB"
    )
    return 1 if late or memory_mb > LIMIT_MB else 0


if __name__ == "__main__":
    raise SystemExit(main())
