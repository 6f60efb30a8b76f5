"""How fast one core makes parity of parts, and rebuilds lost parts from it.

    python benchmarks/parity.py [--bytes N] [--repeats N]

Workload   k = 4 parts of `--bytes` each, with one row of parity (XOR) and with two (GF(256)). One
           thread; nothing else runs.
Measured   encode   processor seconds until all rows of all parts are there
           rebuild  the same until as many parts as there are rows are rebuilt from the others
           The rate is that of the data: 4 parts, in GB for each second of one core. A copy moves
           the same 4 parts. Processor seconds, as other work on the machine takes none of them.
Variants   copy     each part into memory that was touched before, by one call of memmove
           outlast  `parity.fold` in pieces of a megabyte, one part after the other, as a holder of
                    parity receives them (4+1 and 4+2)
           tables   the same without the compiled part (parity.plain_fold)
           zfec     zfec's Encoder and Decoder, whole parts at once. Left out where it is missing
Method     All variants in one process, alternating, each round beginning with another one. Medians
           with 95 % intervals. What was rebuilt is compared with the parts once, before the clock.
Goals      4+1 at least at 50 % of the rate of the copy; 4+2 at least 1 GB a second. Reached or
           missed when the whole interval says so, else undetermined. Exit code 0, 1 or 3.
Limits     Other work still shares the caches and the memory with the core that is measured.
           zfec returns new memory for what it makes, and outlast sums into memory that is there.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from _timing import Summary, alternate, paired_ratio, summarise

from outlast.model.limits import IMAGE_PIECE_BYTES
from outlast.runtime.tiers import parity

try:
    import zfec
except ImportError:
    zfec = None

DATA = 4
GOAL_COPY, GOAL_BYTES_PER_S = 0.5, 1e9
Fold = Callable[[memoryview, memoryview, int], None]


def add(by: Fold, target: memoryview, source: memoryview, weight: int) -> None:
    """Add a part to a sum, in the pieces in which it would arrive."""
    for at in range(0, len(source), IMAGE_PIECE_BYTES):
        end = min(at + IMAGE_PIECE_BYTES, len(source))
        by(target[at:end], source[at:end], weight)


class Group:
    """The parts of one group, and memory for its rows and for what is rebuilt."""

    def __init__(self, part_bytes: int, rows: int) -> None:
        self.part_bytes = part_bytes
        self.parts = [memoryview(random.Random(at).randbytes(part_bytes)) for at in range(DATA)]
        self.rows = [memoryview(bytearray(part_bytes)) for _ in range(rows)]
        self.found = [memoryview(bytearray(part_bytes)) for _ in range(rows)]
        self._zeros = memoryview(bytes(IMAGE_PIECE_BYTES))

    def encode(self, by: Fold) -> None:
        for row, sums in enumerate(self.rows):
            self._clear(sums)
            for place, part in enumerate(self.parts):
                add(by, sums, part, parity.weight(row, place))

    def rebuild(self, by: Fold) -> None:
        """Rebuild the first parts, as many as there are rows."""
        lost = tuple(range(len(self.rows)))
        left = range(len(self.rows), DATA)
        for place, target in zip(lost, self.found, strict=True):
            self._clear(target)
            of_part, of_row = parity.weights_to_rebuild(place, lost=lost, left=left, rows=lost)
            for one, factor in of_part.items():
                add(by, target, self.parts[one], factor)
            for row, factor in of_row.items():
                add(by, target, self.rows[row], factor)

    def copy(self) -> None:
        for part in self.parts:
            self.found[0][:] = part

    def encode_by_zfec(self) -> Sequence[bytes]:
        made: Sequence[bytes] = zfec.Encoder(DATA, DATA + len(self.rows)).encode(self.parts)
        return made

    def rebuild_by_zfec(self, made: Sequence[bytes]) -> Sequence[bytes]:
        numbers = [*range(len(self.rows), DATA + len(self.rows))]
        found: Sequence[bytes] = zfec.Decoder(DATA, DATA + len(self.rows)).decode(
            [made[number] for number in numbers], numbers
        )
        return found

    def check(self) -> None:
        """Compare what was rebuilt. Raises AssertionError."""
        for target, part in zip(self.found, self.parts, strict=False):
            assert target == part, "a part was not rebuilt as it was"

    def _clear(self, target: memoryview) -> None:
        for at in range(0, len(target), IMAGE_PIECE_BYTES):
            end = min(at + IMAGE_PIECE_BYTES, len(target))
            target[at:end] = self._zeros[: end - at]


def variants_of(group: Group) -> dict[str, Callable[[], object]]:
    """Return what is timed, by name. Each has run once, and its result was compared."""
    out: dict[str, Callable[[], object]] = {"copy": group.copy}
    for name, by in (("outlast", parity.fold), ("tables", parity.plain_fold)):
        group.encode(by)
        group.rebuild(by)
        group.check()
        out[f"encode {name}"] = lambda by=by: group.encode(by)
        out[f"rebuild {name}"] = lambda by=by: group.rebuild(by)
    if zfec is not None:
        made = group.encode_by_zfec()
        assert list(group.rebuild_by_zfec(made)) == [bytes(part) for part in group.parts]
        out["encode zfec"] = group.encode_by_zfec
        out["rebuild zfec"] = lambda: group.rebuild_by_zfec(made)
    return out


def measure(group: Group, *, repeats: int) -> dict[str, list[float]]:
    """Return the seconds of each variant, round by round."""
    found: dict[str, list[float]] = {}

    def timed(name: str, go: Callable[[], object]) -> Callable[[], None]:
        def run() -> None:
            began_s = time.thread_time()
            go()
            found.setdefault(name, []).append(time.thread_time() - began_s)

        return run

    alternate(repeats, [timed(name, go) for name, go in variants_of(group).items()])
    return found


def verdict(value: Summary, goal: float) -> str:
    """Say whether the whole interval is at or above the goal."""
    return "reached" if value.low >= goal else "missed" if value.high < goal else "undetermined"


def report(rows: int, seconds: dict[str, list[float]], data_bytes: int) -> list[str]:
    """Print the rates, and return what is said of the goals."""
    verdicts = []
    for name, taken in seconds.items():
        rate = summarise([data_bytes / one for one in taken])
        beside = paired_ratio(seconds["copy"], taken)
        said = ""
        if name.endswith(" outlast"):
            reached = verdict(beside, GOAL_COPY) if rows == 1 else verdict(rate, GOAL_BYTES_PER_S)
            goal = "50 % of the copy" if rows == 1 else "1 GB/s"
            said = f"; goal {goal}: {reached}"
            verdicts.append(reached)
        print(
            f"{DATA}+{rows} {name}: {rate.text(scale=1e-9, unit=' GB/s')},"
            f" {beside.text(scale=100, unit=' %', digits=0)} of the copy{said}"
        )
    return verdicts


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--bytes", type=int, default=64 << 20, help="of one part")
    parser.add_argument("--repeats", type=int, default=15)
    args = parser.parse_args()
    how = "compiled" if parity.IS_COMPILED else "not compiled"
    print(f"parts of {args.bytes:,} bytes; {args.repeats} rounds; outlast's fold is {how}")
    if zfec is None:
        print("zfec is not installed, and is left out")
    verdicts = []
    for rows in (1, 2):
        group = Group(args.bytes, rows)
        seconds = measure(group, repeats=args.repeats)
        verdicts += report(rows, seconds, DATA * args.bytes)
    return 1 if "missed" in verdicts else 3 if "undetermined" in verdicts else 0


if __name__ == "__main__":
    sys.exit(main())
