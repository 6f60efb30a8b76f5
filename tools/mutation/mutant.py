"""Seeds in a package of which some modules are others: what tools/mutation starts.

    python tools/mutation/mutant.py FOLDER SEEDS LIVES
    python tools/mutation/mutant.py FOLDER --tests tests/engine

FOLDER: modules in place of those of the package, named as there (engine/restore.py). SEEDS: a file
with the seeds to live. LIVES: a file with a line for each seed of the package as it is: the digest
of its life, and which conditions it came to. Where it is not there, it is written. With --tests
these tests run instead of lives, up to the first that fails. Exit code 0: every life held every
rule; how many went another course is printed. 9: one did not, or did not end; which is printed. Any
other: an error.
"""

from __future__ import annotations

import builtins
import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

KILLED = 9
# of processor time: a life that takes longer does not end; those of the code as it is take up to a
# few seconds
SEED_S = 25
# in modules that say which conditions they come to: called with a condition's number and its value
PROBE = "__came_to__"


class Swapped(importlib.abc.MetaPathFinder):
    """Finds some modules elsewhere."""

    def __init__(self, folder: Path) -> None:
        self._paths = {
            "outlast." + str(path.relative_to(folder).with_suffix("")).replace(os.sep, "."): path
            for path in folder.rglob("*.py")
        }

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        return (
            importlib.util.spec_from_file_location(fullname, self._paths[fullname])
            if fullname in self._paths
            else None
        )


def live_through(seeds: list[int], lives: Path) -> int:
    came_to: set[int] = set()

    def probe(number: int, value: object) -> object:
        came_to.add(number)
        return value

    setattr(builtins, PROBE, probe)
    from outlast.sim.simulated_run import (
        simulate_seed,  # only now: modules are to be found elsewhere
    )

    seed = 0

    def late(*_: object) -> None:
        print(f"seed {seed}: does not end", flush=True)
        os._exit(KILLED)

    signal.signal(signal.SIGPROF, late)
    found: dict[int, tuple[str, list[int]]] = {}
    for seed in seeds:
        signal.setitimer(signal.ITIMER_PROF, SEED_S)
        came_to.clear()
        life = simulate_seed(seed=seed, given={})
        if life.result != "ok":
            print(f"seed {seed}: " + ", ".join(sorted({one.rule for one in life.violations})))
            return KILLED
        found[seed] = life.trace_digest, sorted(came_to)
    if not lives.exists():
        lives.write_text("\n".join(json.dumps([seed, *found[seed]]) for seed in found))
    before = {seed: digest for seed, digest, _ in map(json.loads, lives.read_text().splitlines())}
    print(sum(digest != before[seed] for seed, (digest, _) in found.items()))
    return 0


def test(path: str) -> int:
    import pytest

    failed: list[str] = []

    class Noting:
        def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
            if report.failed:
                failed.append(report.nodeid)

    ended = pytest.main(
        ["-x", "-q", "--no-header", "-p", "no:cacheprovider", "-p", "no:randomly", "--tb=no", path],
        plugins=[Noting()],
    )
    print("\n" + (failed[0] if failed else f"pytest ends with {ended}" if ended else ""))
    return KILLED if ended else 0


def main(folder: Path, what: str, which: str) -> int:
    sys.dont_write_bytecode = True
    sys.meta_path.insert(0, Swapped(folder))
    return (
        test(which)
        if what == "--tests"
        else live_through(json.loads(Path(what).read_text()), Path(which))
    )


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2], sys.argv[3]))
