"""Try cells of the table: `python -m tests.drills.surroundings --only vault --jobs 2`.

--list           print the numbers and names of all cells
--cells 10:40    try the cells with these numbers (from 1)
--only WORDS     try the cells whose name contains these words
--page           print docs/explanation/what-survives-what.md
"""

from __future__ import annotations

import argparse
import math
import random
import sys
import tempfile
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.drills.surroundings.page import page
from tests.drills.surroundings.run import Digests, calm, judged
from tests.drills.surroundings.table import Cell, cells


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--page", action="store_true")
    parser.add_argument("--cells", default="1:")
    parser.add_argument("--only", default="")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--within-s", type=float, default=math.inf)
    args = parser.parse_args()
    if args.page:
        print(page(), end="")
        return 0
    numbered = list(enumerate(cells(), 1))
    some = [
        (number, cell)
        for number, cell in numbered
        if is_among(number, args.cells) and args.only in cell.name
    ]
    some.sort(key=lambda one: turn(one[1]))
    if args.list:
        for number, cell in some:
            print(number, cell.name)
        return 0
    end_s = time.monotonic() + args.within_s
    with tempfile.TemporaryDirectory() as scratch:
        expected = calm(Path(scratch))
    with ThreadPoolExecutor(args.jobs) as pool:
        found = list(pool.map(lambda one: tried(*one, expected, end_s), some))
    good = [one for one in found if one is not None]
    print(f"{sum(good)} of {len(good)} cells are as the table says")
    late = [number for (number, _), one in zip(some, found, strict=True) if one is None]
    if late:
        print(f"not begun, for the time was over: {late}")
    return 0 if all(good) else 1


def is_among(number: int, words: str) -> bool:
    """Return whether a number is among `10:40`, `10:`, or `3,7,12`."""
    if ":" not in words:
        return str(number) in words.split(",")
    first, _, last = words.partition(":")
    return int(first or 1) <= number <= int(last or number)


def turn(cell: Cell) -> tuple[int, float]:
    """Return a sort key: one cell of each row comes first, drawn by seed, then a second one of
    each, and so on.
    """
    mine = [one for one in cells() if one.row is cell.row]
    random.Random(cell.row.name).shuffle(mine)
    return mine.index(cell), random.Random(cell.name).random()


def tried(number: int, cell: Cell, expected: Digests, end_s: float) -> bool | None:
    """Return whether the cell is as the table says, or None if it was too late to begin."""
    if time.monotonic() > end_s:
        return None
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as scratch:
        try:
            found = judged(cell, Path(scratch), expected)
        except pytest.skip.Exception as skipped:
            print(f"SKIP {number} {cell.name}: {skipped}", flush=True)
            return True
        except Exception:
            print(f"BAD  {number} {cell.name}\n{traceback.format_exc()}", flush=True)
            return False
    if found.problems:
        print(f"BAD  {number} {cell.name}\n{found}\n", flush=True)
    else:
        print(
            f"good {number} {cell.name}: waited {found.waited_s:.1f} s of {found.lasted_s:.1f} s",
            flush=True,
        )
    return not found.problems


if __name__ == "__main__":
    sys.exit(main())
