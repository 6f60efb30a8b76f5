"""Run feature drills for many seeds: `python -m tests.drills.features --seeds 1:300 --jobs 2`.

    --seeds 1:300            the seeds, both included; 17 is one
    --jobs 2                 how many run at once
    --only ddp               only seeds with a feature whose name contains this word ("kind=fsdp")
    --skip WORD ...          leave out seeds with such a feature
    --keep DIR               keep scripts, run folders and messages of bad seeds in this folder
    --show SEED              print the script and the faults, and run nothing
    --plain                  the plainest script in place of a drawn one; --set adds features to it
    --set FIELD=VALUE        another value in place of the drawn one; a Python literal or a word
    --faults PLACE@STEP:RANK ...   these faults in place of the drawn ones
    --reduce                 for each bad seed, remove features as long as it stays bad

It prints a line for each seed and a summary at the end. The exit code is 1 if any seed was bad.
"""

from __future__ import annotations

import argparse
import ast
import dataclasses
import os
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tests.drills.features.draw import Features, draw, plain, ruled
from tests.drills.features.faults import Fault, draw_faults, parse_fault
from tests.drills.features.reduce import reduced
from tests.drills.features.run import Found, drill
from tests.drills.features.script import script_of


def main() -> int:
    args = _arguments()
    if args.show is not None:
        features, faults = _wanted(args, args.show)
        print(script_of(features) + f"\n# faults: {' '.join(map(str, faults))}")
        return 0
    keep = Path(args.keep or tempfile.mkdtemp(prefix="features-"))
    wanted = [_wanted(args, seed) for seed in _seeds(args.seeds)]
    wanted = [pair for pair in wanted if _is_meant(args, pair[0])]
    with ThreadPoolExecutor(args.jobs) as pool:
        found = []
        for one in pool.map(lambda pair: _drilled(args, *pair, keep), wanted):
            print(one.line, flush=True)
            found.append(one)
    _summary(found, keep)
    if not args.keep and not any(one.problems for one in found):
        shutil.rmtree(keep, ignore_errors=True)
    return int(any(one.problems for one in found))


def _is_meant(args: argparse.Namespace, f: Features) -> bool:
    skipped = any(word in name for word in args.skip for name in f.names)
    return not skipped and any(args.only in name for name in f.names)


def _drilled(args: argparse.Namespace, f: Features, faults: tuple[Fault, ...], keep: Path) -> Found:
    folder = keep / f"seed-{f.seed}"
    shutil.rmtree(folder, ignore_errors=True)
    found = drill(f, faults, folder)
    if found.problems and args.reduce:
        found = reduced(found, keep / f"seed-{f.seed}-reduced")
    if found.problems:
        (folder / "message").write_text(str(found))
    else:
        shutil.rmtree(folder, ignore_errors=True)
    return found


def _wanted(args: argparse.Namespace, seed: int) -> tuple[Features, tuple[Fault, ...]]:
    changes = dict(_change(text) for text in args.set)
    if args.plain:
        features = plain(seed=seed, **changes)
    else:
        features = ruled(dataclasses.replace(draw(seed), **changes))
    if args.faults is not None:
        return features, tuple(map(parse_fault, args.faults))
    return features, draw_faults(features)


def _change(text: str) -> tuple[str, Any]:
    name, _, value = text.partition("=")
    if name not in {field.name for field in dataclasses.fields(Features)}:
        sys.exit(f"--set {text}: there is no feature {name!r}")
    try:
        return name, ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return name, value


def _seeds(text: str) -> Iterator[int]:
    first, _, last = text.partition(":")
    yield from range(int(first), int(last or first) + 1)


def _summary(found: list[Found], keep: Path) -> None:
    bad = [one for one in found if one.problems]
    kinds = Counter(kind for one in bad for kind in one.kinds)
    print(f"{len(found)} seeds, {len(bad)} bad {[one.features.seed for one in bad]}, {dict(kinds)}")
    if bad:
        print(f"scripts, run folders and messages: {keep}")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", default="1:10")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--only", default="")
    parser.add_argument("--skip", nargs="*", default=[])
    parser.add_argument("--keep")
    parser.add_argument("--show", type=int)
    parser.add_argument("--plain", action="store_true")
    parser.add_argument("--set", nargs="*", default=[])
    parser.add_argument("--faults", nargs="*")
    parser.add_argument("--reduce", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.exit(main())
