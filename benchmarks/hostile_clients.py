"""Whether `outlast serve` can harm the run beside it: ten hostile clients, a full disk, SIGKILL.

    python benchmarks/hostile_clients.py [--rounds 8] [--seconds 10]

One run of two ranks trains all the time (the model of examples/train_gpt.py). In each round it is
measured in these phases, of which each round begins with another one:

alone     nothing else works
busy      a process at nice 19 computes without a pause
watched   `outlast serve` shows the run to one reader, who follows the events and loads the page
hostile   the same, and ten clients (_hostile.py) read slowly, send half of a request, send a
          header of a megabyte, ask for a page of 845 kB without a pause, or open streams of events
          that they do not read
killed    the same with the server's disk full; after a third of the phase the server is killed, and
          the clients go on

Printed are steps, as ratios to the phase `alone` of the same round; how much later than
LEDGER_FLUSH_S after the one before each write of the ledger came (from the times of ledger.db-wal,
exact to one tick of the kernel); and how long the reader waited for the page. Exit code 0 if all
goals are kept, else 1. `killed` needs root, to mount a small file system.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import itertools
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from _timing import alternate, paired_ratio, summarise
from page import make
from side_by_side import HERE, HOME, Contestant, Trial, machine, outlast

from outlast.model.limits import LEDGER_FLUSH_S

LATER_GOAL_S = 0.050
ALIKE = 0.01  # steps that differ by less count as equally fast
SETTLE_S = 1.5
LOAD_EVERY_S = 2.0
PATIENCE_S = 60.0
DISK_BYTES = 256 * 1024
RUN, WIDE = "run", "wide"
KINDS = 5  # of hostile clients
PHASES = ("alone", "busy", "watched", "hostile", "killed")


@dataclass(slots=True)
class Measured:
    """The measurements of one phase, over all rounds.

    steps_s   the median step of each round
    late_s    of each write of the ledger
    pages_s   how long each load of the page took; PATIENCE_S where it did not come
    starts_s  from the start of each server until its first page was there
    """

    steps_s: list[float] = field(default_factory=list)
    late_s: list[float] = field(default_factory=list)
    pages_s: list[float] = field(default_factory=list)
    starts_s: list[float] = field(default_factory=list)


class LedgerWatch:
    """Notes when the ledger is written, by the time that its newest write left on the file."""

    def __init__(self, ledger: Path) -> None:
        self._log = Path(f"{ledger}-wal")
        self._written_s: list[float] = []  # on the wall clock
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        while True:
            with contextlib.suppress(OSError):
                at_s = self._log.stat().st_mtime_ns / 1e9
                if not self._written_s or at_s > self._written_s[-1]:
                    self._written_s.append(at_s)
            time.sleep(0.02)

    def late_s(self, from_s: float, to_s: float) -> list[float]:
        """Return how much later than due each flush between two times of the wall clock came."""
        flushes: list[float] = []
        for at_s in self._written_s:
            if flushes and at_s < flushes[-1] + LEDGER_FLUSH_S / 2:
                flushes[-1] = at_s  # one more write of the same flush
            elif from_s <= at_s <= to_s:
                flushes.append(at_s)
        return [after - before - LEDGER_FLUSH_S for before, after in itertools.pairwise(flushes)]


@contextlib.contextmanager
def busy() -> Iterator[None]:
    """Let a process at the lowest priority compute without a pause."""
    code = "import os; os.nice(19)\nwhile True: pass"
    with subprocess.Popen([sys.executable, "-c", code]) as process:
        try:
            yield
        finally:
            process.kill()


@contextlib.contextmanager
def serving(root: Path, disk: Path) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """Serve the runs under `root`. Yield the server and its port. What it writes is on `disk`."""
    environment = os.environ | {"PYTHONPATH": str(HOME / "src"), "TMPDIR": str(disk)}
    environment |= {"HOME": str(disk)}
    command = [sys.executable, "-m", "outlast", "serve", str(root), "--port", "0"]
    said = disk / "said"
    with (
        said.open("wb") as output,
        subprocess.Popen(
            command, stdout=output, stderr=output, cwd=disk, env=environment
        ) as server,
    ):
        try:
            over_s = time.monotonic() + PATIENCE_S
            while not (found := re.search(r":(\d+)/\n", said.read_text())):
                assert time.monotonic() < over_s, said.read_text()
                assert server.poll() is None, said.read_text()
                time.sleep(0.02)
            yield server, int(found[1])
        finally:
            server.kill()


@contextlib.contextmanager
def hostile(port: int, seen: Counter[str]) -> Iterator[None]:
    """Let ten clients trouble the server, and add what they did to `seen`."""
    command = [sys.executable, str(HERE / "_hostile.py"), str(port), RUN, WIDE]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as clients:
        try:
            yield
            said, _ = clients.communicate(timeout=PATIENCE_S)  # it closes their standard input
            seen.update(json.loads(said))
        finally:
            clients.kill()


def load(port: int) -> float:
    """Load the page of the run. Return how long it took, or PATIENCE_S if it did not come."""
    began_s = time.monotonic()
    try:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S / 4)
        with contextlib.closing(connection):
            connection.request("GET", f"/runs/{RUN}/")
            answer = connection.getresponse()
            answer.read()
            return time.monotonic() - began_s if answer.status == 200 else PATIENCE_S
    except OSError:
        return PATIENCE_S


@contextlib.contextmanager
def following(port: int) -> Iterator[None]:
    """Follow the events of the run, as its page does."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
    connection.request("GET", f"/runs/{RUN}/events")
    answer = connection.getresponse()

    def read() -> None:
        with contextlib.suppress(OSError, http.client.HTTPException, ValueError, AttributeError):
            while answer.readline():
                pass

    threading.Thread(target=read, daemon=True).start()
    try:
        yield
    finally:
        connection.close()


class Subject:
    """The run that is measured, and what was found."""

    def __init__(self, trial: Trial, seconds: float) -> None:
        self.trial = trial
        self.found = {name: Measured() for name in PHASES}
        self.seen: dict[str, Counter[str]] = defaultdict(Counter)
        self._seconds = seconds
        self._ledger = LedgerWatch(trial.folder / RUN / "ledger.db")

    def alone(self) -> None:
        self._measure("alone")

    def busy(self) -> None:
        with busy():
            self._measure("busy")

    def watched(self) -> None:
        with self._server("watched") as (_, port), following(port):
            self._measure("watched", port=port)

    def hostile(self) -> None:
        with (
            self._server("hostile") as (_, port),
            following(port),
            hostile(port, self.seen["hostile"]),
        ):
            self._measure("hostile", port=port)

    def killed(self) -> None:
        with (
            small_disk() as disk,
            self._server("killed", disk) as (server, port),
            hostile(port, self.seen["killed"]),
        ):
            fill(disk)
            timer = threading.Timer(SETTLE_S + self._seconds / 3, server.kill)
            timer.start()
            self._measure("killed")
            assert server.wait(PATIENCE_S) == -9, "the server ended by itself"

    @contextlib.contextmanager
    def _server(
        self, phase: str, disk: Path | None = None
    ) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
        began_s = time.monotonic()
        with (
            tempfile.TemporaryDirectory(prefix="outlast-disk-") as scratch,
            serving(self.trial.folder, disk or Path(scratch)) as (server, port),
        ):
            load(port)
            self.found[phase].starts_s.append(time.monotonic() - began_s)
            yield server, port

    def _measure(self, phase: str, *, port: int | None = None) -> None:
        """Measure for `seconds`. With a port, the page is loaded now and then."""
        time.sleep(SETTLE_S)
        found = self.found[phase]
        wall_s, began_s = time.time(), time.clock_gettime(time.CLOCK_MONOTONIC)
        over_s = began_s + self._seconds
        while (left_s := over_s - time.clock_gettime(time.CLOCK_MONOTONIC)) > 0:
            if port is not None:
                found.pages_s.append(load(port))
            time.sleep(min(LOAD_EVERY_S, left_s))
        over_s = time.clock_gettime(time.CLOCK_MONOTONIC)
        at_s = [one.at_s for one in self.trial.follow() if one.rank == 0]
        at_s = [one for one in at_s if began_s <= one <= over_s]
        found.steps_s.append(statistics.median(b - a for a, b in itertools.pairwise(at_s)))
        found.late_s += self._ledger.late_s(wall_s, time.time())

    def repeated(self) -> list[int]:
        """Return the steps that rank 0 committed more than once."""
        counts = Counter(one.step for one in self.trial.follow() if one.rank == 0)
        return [step for step, count in counts.items() if count > 1]


@contextlib.contextmanager
def small_disk() -> Iterator[Path]:
    """Mount a file system of DISK_BYTES."""
    with tempfile.TemporaryDirectory(prefix="outlast-disk-") as name:
        size = f"size={DISK_BYTES}"
        subprocess.run(["mount", "-t", "tmpfs", "-o", size, "tmpfs", name], check=True)
        try:
            yield Path(name)
        finally:
            subprocess.run(["umount", "--lazy", name], check=True)


def fill(disk: Path) -> None:
    """Write to a disk until it has no room for another byte."""
    with (disk / "rest").open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while file.write(b"x" * 512):
            pass


def percentile(values: list[float], share: float) -> float:
    return sorted(values)[round(share * (len(values) - 1))]


def show(name: str, subject: Subject) -> None:
    """Print what was found in a phase."""
    found, seen = subject.found[name], subject.seen[name]
    ratio = paired_ratio(found.steps_s, subject.found["alone"].steps_s)
    step = summarise(found.steps_s).text(scale=1000, unit=" ms", digits=1)
    print(f"{name:8} step {step}, {ratio.text(digits=3)} of alone", flush=True)
    late = [1000 * percentile(found.late_s, share) for share in (0.5, 0.95, 1.0)]
    print(
        f"         {len(found.late_s)} writes of the ledger, late by {late[0]:.1f} ms (median),"
        f" {late[1]:.1f} ms (95 %), {late[2]:.1f} ms (most)"
    )
    for what, values in (("a page", found.pages_s), ("the start", found.starts_s)):
        if values:
            text = f"{statistics.median(values):.2f} s (most {max(values):.2f} s)"
            print(f"         {what} takes {text}, {len(values)} times")
    for what, count in sorted(seen.items()):
        print(f"         {what} {count:,}")


def goals_of(name: str, subject: Subject) -> dict[str, bool]:
    """Return the goals of a phase in which the server has hostile clients, and which are kept."""
    found, kinds = subject.found[name], {what.partition(":")[0] for what in subject.seen[name]}
    later_s = max(found.late_s) - max(subject.found["alone"].late_s)
    later = f"the latest write comes {1000 * later_s:+.1f} ms after that of alone"
    beside = paired_ratio(found.steps_s, subject.found["busy"].steps_s)
    step = f"a step takes {beside.text(digits=3)} of one beside a busy process"
    return {
        f"{name}: {later} (goal {1000 * LATER_GOAL_S:.0f} ms)": later_s <= LATER_GOAL_S,
        f"{name}: {step} (goal {1 + ALIKE})": beside.median <= 1 + ALIKE,
        f"{name}: all {KINDS} kinds of clients were at work": len(kinds) == KINDS,
    }


def judge(subject: Subject, interruptions: int) -> int:
    """Print what was found, and which goals are kept. Return 0, or 1 if one is missed."""
    measured = [name for name in PHASES if subject.found[name].steps_s]
    for name in measured:
        show(name, subject)
    repeated = subject.repeated()
    goals = {
        f"{len(repeated)} steps repeated, {interruptions} interruptions": (
            not repeated and not interruptions
        )
    }
    for name in ("hostile", "killed"):
        goals |= goals_of(name, subject) if name in measured else {}
    print()
    for text, is_kept in goals.items():
        print(f"{'reached' if is_kept else 'missed ':8} {text}")
    return 0 if all(goals.values()) else 1


def interruptions_of(run: Path) -> int:
    command = [sys.executable, "-m", "outlast", "report", str(run), "--json"]
    said = subprocess.run(
        command, capture_output=True, check=True, env=os.environ | {"PYTHONPATH": str(HOME / "src")}
    )
    facts: dict[str, Any] = json.loads(said.stdout)
    return len(facts["interruptions"])


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=10.0, help="of each phase")
    args = parser.parse_args()
    command = outlast(script=("--steps", "100000000"), workers=2)
    with Trial(Contestant("outlast", command)) as trial:
        begun = trial.wait_for(lambda: any(one.step >= 20 for one in trial.commits), PATIENCE_S * 2)
        assert begun, trial.output()
        # The newest run: the server has its page ready, and sends it as fast as it can.
        wide = {"ranks": 16_384, "steps": 100_000, "interruptions": 300, "buckets": 1_000}
        make(trial.folder / WIDE, span_s=1e5, **wide)
        subject = Subject(trial, args.seconds)
        phases = [subject.alone, subject.busy, subject.watched, subject.hostile]
        phases += [subject.killed] if os.geteuid() == 0 else []
        alternate(args.rounds, phases)
        at = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
        load_1m = f"load {os.getloadavg()[0]:.1f}"
        print(f"{machine()}, {at}, {load_1m}, {args.rounds} rounds of {args.seconds:g} s")
        return judge(subject, interruptions_of(trial.folder / RUN))


if __name__ == "__main__":
    sys.exit(main())
