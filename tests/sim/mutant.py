"""Seeds in a package of which one module is another: what mutation.py starts.

    python tests/sim/mutant.py engine/restore.py CHANGED.py 2000 DIGESTS

Exit code 0: every life held every rule. 9: one did not, or did not end; which is printed. Any other: an error ended it.
DIGESTS: a file with the digests of the same lives as they are; how many went another course is printed. Where it is not there, it is written.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

KILLED = 9
SEED_S = 25  # of processor time: a life that takes longer does not end; those of the code as it is take up to a few seconds


class Swapped(importlib.abc.MetaPathFinder):
    """Finds one module elsewhere."""

    def __init__(self, name: str, path: str) -> None:
        self._name, self._path = name, path

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> importlib.machinery.ModuleSpec | None:
        return importlib.util.spec_from_file_location(fullname, self._path) if fullname == self._name else None


def main(file: str, changed: str, seeds: int, digests: Path) -> int:
    sys.dont_write_bytecode = True
    sys.meta_path.insert(0, Swapped("outlast." + file.removesuffix(".py").replace("/", "."), changed))
    from outlast.sim.life import live  # only now: the module is to be found elsewhere

    seed = 0

    def late(*_: object) -> None:
        print(f"seed {seed}: does not end", flush=True)
        os._exit(KILLED)

    signal.signal(signal.SIGPROF, late)
    found: list[str] = []
    for seed in range(seeds):
        signal.setitimer(signal.ITIMER_PROF, SEED_S)
        life = live(seed=seed, given={})
        if life.result != "ok":
            print(f"seed {seed}: " + ", ".join(sorted({one.rule for one in life.violations})))
            return KILLED
        found.append(life.trace_digest)
    if not digests.exists():
        digests.write_text("\n".join(found))
    print(sum(one != other for one, other in zip(found, digests.read_text().split(), strict=False)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), Path(sys.argv[4])))
