"""What becomes of each mutant: which seed kills it, or which unit test notices it."""

from __future__ import annotations

import json
import operator
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tools.mutation.files import FLIPPED
from tools.mutation.flips import conditions, probed
from tools.mutation.named import NAMED
from tools.mutation.planted import SOURCE, Mutant

MUTANT = Path(__file__).with_name("mutant.py")
UNITS = "tests/engine"  # which of these tests notices a mutant that lives
KILLED = 9  # as in mutant.py
# name of a mutant -> the seed that killed it last, which is tried first
KILLERS = Path(__file__).with_name("killers.json")
LIMIT_S = 3_600.0


@dataclass(frozen=True)
class Fate:
    mutant: Mutant
    killed: bool
    how: str

    @property
    def held(self) -> bool:
        """Return True if the mutant lives, and a unit test fails."""
        return not self.killed and "; fails " in self.how


def lived(
    changed: dict[str, str], seeds: list[int], lives: Path
) -> subprocess.CompletedProcess[str]:
    """Let runs of these seeds live with changed files. Raises subprocess.TimeoutExpired."""
    with tempfile.NamedTemporaryFile("w", suffix=".json") as chosen:
        json.dump(seeds, chosen)
        chosen.flush()
        return _in_mutant(changed, chosen.name, str(lives))


def _in_mutant(changed: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    with tempfile.TemporaryDirectory(prefix="outlast-mutant-") as folder:
        for file, text in changed.items():
            path = Path(folder) / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        command = [sys.executable, str(MUTANT), folder, *arguments]
        return subprocess.run(
            command,
            cwd=SOURCE.parents[1],
            env=os.environ | {"PYTHONPATH": str(SOURCE.parent)},
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
        )


def fate_of(mutant: Mutant, *, seeds: list[int], count: int, lives: Path) -> Fate:
    """Find the seed that kills a mutant, among those of the first `count` that come to its place.

    If it lives, its fate says which unit test it does not pass.
    """
    changed = {mutant.file: mutant.changed()}
    try:
        done = lived(changed, seeds, lives)
        if done.returncode:
            return Fate(mutant, True, _how(done))
        tested = _in_mutant(changed, "--tests", UNITS)
    except subprocess.TimeoutExpired:
        return Fate(mutant, True, "does not end")
    held = f"fails {tested.stdout.split()[-1]}" if tested.returncode else f"passes {UNITS}"
    return Fate(
        mutant,
        False,
        f"lives through {count:,} seeds; {len(seeds):,} come to it, {done.stdout.strip()} of these"
        f" go another course; {held}",
    )


def _how(done: subprocess.CompletedProcess[str]) -> str:
    """Return what killed the mutant: a rule, or an error."""
    return (
        done.stdout.strip() if done.returncode == KILLED else done.stderr.strip().splitlines()[-1]
    )


def fates_of(mutants: list[Mutant], *, seeds: int, kept: Path | None) -> Iterator[Fate]:
    """Yield the fate of each mutant as soon as it is known, first those that `kept` knows."""
    known = (
        dict(json.loads(line) for line in kept.read_text().splitlines())
        if kept is not None and kept.exists()
        else {}
    )
    yield from (Fate(one, *known[one.name]) for one in mutants if one.name in known)
    with (
        tempfile.TemporaryDirectory(prefix="outlast-mutation-") as folder,
        ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool,
    ):
        lives = Path(folder) / "lives"
        as_it_is = lived(probed(), list(range(seeds)), lives)
        assert as_it_is.returncode == 0, f"without any mutant: {as_it_is.stdout}{as_it_is.stderr}"
        came_to = [
            (seed, frozenset(numbers))
            for seed, _, numbers in map(json.loads, lives.read_text().splitlines())
        ]
        killers = remembered()
        doing = set()
        for one in mutants:
            if one.name not in known:
                there = [seed for seed, numbers in came_to if one.number in {-1, *numbers}]
                killer = killers.get(one.name)  # what killed it last is tried first
                there.sort(key=partial(operator.ne, killer))
                doing.add(pool.submit(fate_of, one, seeds=there, count=seeds, lives=lives))
        for done in as_completed(doing):
            fate = done.result()
            if kept is not None:
                with kept.open("a") as file:
                    file.write(json.dumps([fate.mutant.name, [fate.killed, fate.how]]) + "\n")
            yield fate


def remembered() -> dict[str, int]:
    known: dict[str, int] = json.loads(KILLERS.read_text())
    return known


def remember(fates: list[Fate]) -> None:
    """Write the fates down, and forget those of mutants that are no more."""
    seeds = {fate.mutant.name: re.match(r"seed (\d+):", fate.how) for fate in fates if fate.killed}
    known = remembered() | {name: int(seed[1]) for name, seed in seeds.items() if seed is not None}
    there = {one.name for one in NAMED}.union(*map(conditions, FLIPPED))
    KILLERS.write_text(
        json.dumps({name: known[name] for name in sorted(known) if name in there}, indent=0) + "\n"
    )


def fate_again(mutant: Mutant, killer: int) -> Fate:
    """Find the fate of a mutant by the seed that killed it last."""
    with tempfile.TemporaryDirectory(prefix="outlast-lives-") as folder:
        try:
            done = lived({mutant.file: mutant.changed()}, [killer], Path(folder) / "lives")
        except subprocess.TimeoutExpired:
            return Fate(mutant, True, f"seed {killer}: does not end")
    if not done.returncode:
        return Fate(mutant, False, f"seed {killer} kills it no more")
    return Fate(mutant, True, _how(done))


def fates_again(mutants: list[Mutant]) -> Iterator[Fate]:
    killers = remembered()
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        doing = [
            pool.submit(fate_again, one, killers[one.name])
            for one in mutants
            if one.name in killers
        ]
        yield from (done.result() for done in as_completed(doing))
