"""After many faults a run holds no more than after ten: descriptors, sockets, threads, memory.

There are 60 faults here. For more: `OUTLAST_FAULTS=1000 pytest tests/drills/test_leaks.py -m drill
-s`, which prints what was measured. The test looks at the launcher, at rank 0, and at the zygote
and the store host of that moment. Rank 0 is never struck, but about once in fifty faults gloo
blocks it for ever, and then it is replaced (docs/explanation/assumptions.md). Its next process is
not compared.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.drills._pids import below, zombies_of
from tests.drills._run import Drill

FAULTS = int(os.environ.get("OUTLAST_FAULTS", "60"))
EARLY = 10
STEPS_BETWEEN = 12  # committed steps: the budgets of replacements refill by ten
SECONDS_EACH = 4.0
SHOWN_EACH = 50
# what a fault may cost permanently: its records in the launcher's books, and a page of an allocator
BYTES_EACH = {"launcher": 48 << 10, "rank 0": 48 << 10}
BYTES_ONCE = 12 << 20
# made once, by the first fault that needs a second hand-over of one step
MADE_LATE = "transfer-beside"


@dataclass(frozen=True)
class Held:
    """What one process holds."""

    descriptors: int
    sockets: int
    threads: int
    resident_bytes: int

    @classmethod
    def of(cls, pid: int) -> Held:
        links = []
        for name in os.listdir(f"/proc/{pid}/fd"):
            try:
                link = os.readlink(f"/proc/{pid}/fd/{name}")
            except OSError:
                continue  # it was closed meanwhile
            if MADE_LATE not in link:
                links.append(link)
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        return cls(
            len(links),
            sum(link.startswith("socket:") for link in links),
            len(os.listdir(f"/proc/{pid}/task")),
            pages * os.sysconf("SC_PAGE_SIZE"),
        )


@dataclass(frozen=True)
class Look:
    """All that a run holds at one moment."""

    held: dict[str, Held]
    rank_0: int  # its process
    processes: int
    zombies: int
    vault_files: int
    vault_bytes: int

    def __str__(self) -> str:
        lines = [
            f"  {name:9} {one.descriptors:4} descriptors {one.sockets:4} sockets"
            f" {one.threads:3} threads {one.resident_bytes / 2**20:7.1f} MiB"
            for name, one in self.held.items()
        ]
        rest = (
            f"  {self.processes} processes, {self.zombies} zombies;"
            f" vault: {self.vault_files} files,"
            f" {self.vault_bytes / 2**20:.1f} MiB"
        )
        return "\n".join([*lines, rest])


def look(drill: Drill) -> Look:
    """Look at all processes. If a helper is being replaced at that moment, wait for it."""
    found: list[Look] = []

    def looks() -> bool:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError, AssertionError):
            found.append(_look(drill))
        return bool(found)

    drill.until(looks, "a look at processes that all live")
    return found[0]


def _look(drill: Drill) -> Look:
    launcher = drill.process.pid
    pids = {
        "launcher": launcher,
        "rank 0": drill.pid_of(0),
        "zygote": drill.zygote(),
        "store": drill.store(),
    }
    paths = [path for path in drill.vault().rglob("*") if MADE_LATE not in path.parts]
    files = [path.stat() for path in paths if path.is_file()]
    return Look(
        {name: Held.of(pid) for name, pid in pids.items()},
        pids["rank 0"],
        len(below(launcher)),
        len(zombies_of(launcher)),
        len(files),
        sum(one.st_blocks * 512 for one in files),
    )


def settled(drill: Drill) -> Look:
    """Return a look at a run that has recovered from the newest fault."""
    at = drill.step
    drill.until(lambda: drill.step >= at + 100, "a hundred steps in peace")
    return look(drill)


def strike(drill: Drill, number: int) -> int:
    """Kill rank 1, and each tenth time the zygote or the store host as well.

    Returns how many processes were killed.
    """
    newest, killed = drill.pid_of(1), 1
    if number % 10 in (4, 9):
        os.kill(drill.zygote() if number % 10 == 4 else drill.store(), signal.SIGKILL)
        killed += 1
    os.kill(newest, signal.SIGKILL)
    at = drill.step
    drill.until(
        lambda: drill.pid_of(1) != newest and drill.step >= at + STEPS_BETWEEN,
        f"training after strike {number}",
    )
    return killed


@pytest.mark.drill
@pytest.mark.timeout(120 + int(FAULTS * SECONDS_EACH))
def test_no_resource_is_held_per_past_fault(tmp_path: Path) -> None:
    """Method: compare the looks after ten faults and after all of them."""
    arguments = ("--steps", 10_000_000, "--step-s", 0.005)
    within_s = 100 + FAULTS * SECONDS_EACH
    begun_s = time.monotonic()
    with Drill(tmp_path, "quick.py", *arguments, workers=2, within_s=within_s) as drill:
        drill.until(lambda: drill.step >= 20 and drill.oldest_of(2) >= 20, "step 20")
        faults = strikes = 0
        while faults < EARLY:
            faults, strikes = faults + strike(drill, strikes), strikes + 1
        early = settled(drill)
        print(f"\nafter {faults} faults\n{early}", flush=True)
        while faults < FAULTS:
            faults, strikes = faults + strike(drill, strikes), strikes + 1
            if strikes % SHOWN_EACH == 0:
                lasted_s = time.monotonic() - begun_s
                print(f"after {faults} faults, {lasted_s:.0f} s\n{look(drill)}", flush=True)
        late = [settled(drill)]

        rested = drill.step

        def is_over() -> bool:
            late.append(look(drill))
            return not grown(early, late[-1]) or drill.step >= rested + 2_000

        # what is held for a moment is no leak: for example a thread that copies the state at that
        # moment
        drill.until(is_over, "a moment in which no more is held than before")
        lasted_s = time.monotonic() - begun_s
        print(f"after {faults} faults, {lasted_s:.0f} s\n{late[-1]}", flush=True)
        assert not grown(early, late[-1]), grown(early, late[-1])


def grown(early: Look, late: Look) -> list[str]:
    """Say what has grown since the early look by more than the faults between them explain."""
    more = FAULTS - EARLY
    said = []
    for name, after in late.held.items():
        if name == "rank 0" and early.rank_0 != late.rank_0:
            continue  # it is another process
        before = early.held[name]
        if after.descriptors > before.descriptors + 1 or after.sockets > before.sockets + 1:
            said.append(f"{name}: descriptors or sockets: {before}, then {after}")
        if after.threads > before.threads:
            said.append(f"{name}: threads: {before}, then {after}")
        bytes_more = after.resident_bytes - before.resident_bytes
        if bytes_more > BYTES_ONCE + BYTES_EACH.get(name, 0) * more:
            said.append(f"{name}: {bytes_more:,} bytes more after {more} faults")
    if (late.processes, late.zombies) != (early.processes, 0):
        said.append(f"processes: {early}, then {late}")
    if late.vault_files > early.vault_files + 1 or late.vault_bytes > early.vault_bytes + (1 << 20):
        said.append(f"the vault: {early}, then {late}")
    return said
