"""A training under another launcher, which a drill starts, watches and disturbs.

    run = run_peer(folder, "torchrun", command, watch, faults=faults)

The launcher is a child of this process. Each rank is a child of the launcher, with the title that
`worker/adapters/against/rank.py` gives it. So a fault goes only to a process of this run
(striking.py). If the launcher ends, its ranks end with it.

The training is observed through lines that begin with `step 12`, which one rank alone prints for
each step, and through a line `digest 0a1b...` at the end. Each line counts from the time at which
it was read.
"""

from __future__ import annotations

import math
import os
import re
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from outlast.errors import UsageError
from outlast.model.drills.drill_sides import FIRST_STEPS, SeenStep
from outlast.model.limits import TRIAL_STOP_S
from outlast.runtime import clock, linux, stop_signals
from outlast.runtime.drill.drill_memory import MemoryGroups
from outlast.runtime.drill.drill_runs import RUN_WORD, TICK_S, DrillFolder, DrillView
from outlast.runtime.drill.drill_strikes import DrillStrikes, Due, Fired, Means
from outlast.runtime.drill.striking import RunProcess, Target, still_there

AGAINST = Path(__file__).parents[1] / "worker" / "adapters" / "against"
OUTLASTS_OWN = str(AGAINST / "with_outlast.py")
EVERY_WORD, STEPS_WORD, RESTARTS_WORD = "{every}", "{steps}", "{restarts}"
CHILDREN_EACH_S = 1.0
FIND_LIMIT_S = 120.0  # the limit for an interpreter to report what it has

# after the text that a launcher puts before a line, as in `[rank0]: step 12`
_BEGIN = rb"(?i)^(?:\[[^]]*\]:?\s*)?"
_STEP = re.compile(_BEGIN + rb"step[ :=#]*(\d+)(?:.*\bmembers (\d+))?")
_DIGEST = re.compile(_BEGIN + rb"digest[ :=]+(\S+)")
_STALLED = re.compile(rb"^stalled ([0-9.]+) s to save")
_WROTE = re.compile(rb"^wrote for ([0-9.]+) s")


@dataclass(slots=True)
class PeerRun:
    """A run that is over.

    code      the exit code of the launcher
    seen      the steps in the order in which they were printed, those that were repeated too
    digest    the last one printed; "": none was
    stalls_s  how long each save stalled the training;  writes_s: how long it went on beside it
    stood_still_s  how long there was no new step when it was stopped; 0.0: it was not
    """

    began_s: float
    ended_s: float = 0.0
    code: int = -1
    seen: list[SeenStep] = field(default_factory=list)
    fired: tuple[Fired, ...] = ()
    digest: str = ""
    stalls_s: list[float] = field(default_factory=list)
    writes_s: list[float] = field(default_factory=list)
    stood_still_s: float = 0.0

    @property
    def step(self) -> int:
        return max((one.step for one in self.seen), default=0)

    @property
    def stall_s(self) -> float:
        return statistics.median(self.stalls_s) if self.stalls_s else 0.0

    @property
    def write_s(self) -> float:
        return statistics.median(self.writes_s) if self.writes_s else 0.0


def torchrun_command(
    script: Sequence[str], *, ranks: int, python: str = sys.executable
) -> tuple[str, ...]:
    """Return the command of a script under torchrun. `{restarts}` in it is to be replaced."""
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks))
    budget = ("--max-restarts", RESTARTS_WORD)
    return (python, *launcher, *budget, str(AGAINST / "rank.py"), *script)


def shipped_command(name: str, *, ranks: int, python: str) -> tuple[str, ...]:
    """Return the command of the shipped training under `torchrun`, `dcp` or `torchft`.

    `{steps}`, `{every}`, `{restarts}` and `{run}` in it are to be replaced.
    """
    steps = ("--steps", STEPS_WORD)
    if name == "torchft":
        replicas = (python, str(AGAINST / "torchft_replicas.py"), str(ranks))
        return (*replicas, str(AGAINST / "with_torchft.py"), *steps)
    by = "dcp" if name == "dcp" else "own"
    saving = (RUN_WORD, by, "--every", EVERY_WORD)
    script = (str(AGAINST / "with_torchrun.py"), *steps, *saving)
    return torchrun_command(script, ranks=ranks, python=python)


def check_interpreter(python: str, module: str) -> None:
    """Raise UsageError if an interpreter cannot import this module and outlast."""
    for one, package in ((module, _PACKAGES.get(module, module)), ("outlast", "outlast[torch]")):
        try:
            done = subprocess.run(
                [python, "-c", f"import {one}"],
                capture_output=True,
                timeout=FIND_LIMIT_S,
                env=_environment(python),
                text=True,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise UsageError(
                f"{python} cannot be started: {error}", hint="name an interpreter of Python"
            ) from None
        if done.returncode:
            reason = done.stderr.strip().splitlines()[-1:]
            raise UsageError(
                f"{python} cannot import {one}: {' '.join(reason)}",
                hint=f"`{python} -m pip install '{package}'`, or name an interpreter that has it"
                " by --against-python",
            )


_PACKAGES = {"torchft": "torchft-nightly"}


def run_peer(
    folder: DrillFolder,
    name: str,
    command: Sequence[str],
    watch: Callable[[DrillView], None],
    *,
    ranks: int,
    faults: Sequence[Due] = (),
    patience_s: float = math.inf,
) -> PeerRun:
    """Run a command to its end, under faults if there are any.

    A run that makes no new step for `patience_s` is stopped. In the command, `{run}` stands for the
    folder of files of this run.
    """
    orders, files = folder.path / f"{name}.orders", folder.path / f"{name}.files"
    for one in (orders, files):
        one.mkdir()
    environment = _environment(command[0]) | {
        "OUTLAST_DRILL_FOLDER": str(orders.resolve()),
        "PYTHONHASHSEED": "0",
        "PYTHONUNBUFFERED": "1",
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",  # in torchrun's favour: it restarts sooner
    }
    mine, log = os.getpid(), folder.path / f"{name}.log"
    out = PeerRun(clock.now_s())
    with log.open("wb") as file:
        process = subprocess.Popen(
            [word.replace(RUN_WORD, str(files.resolve())) for word in command],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            start_new_session=True,
            preexec_fn=lambda: linux.stop_with(mine),
        )
    target = Target(process.pid)
    seen = set[RunProcess]()
    truth = folder.path / f"{name}.jsonl"
    with MemoryGroups() as memory:
        try:
            means = Means(memory=memory)
            strikes = DrillStrikes(target, faults, orders=orders, truth=truth, means=means)
            _PeerWatch(process, target, strikes, _Lines(log, out, ranks), seen).until_over(
                watch, patience_s
            )
        finally:
            with stop_signals.masked(signal.SIG_BLOCK):
                _end(process, target, seen)
    out.ended_s, out.code, out.fired = clock.now_s(), process.returncode, tuple(strikes.fired)
    return out


def _environment(python: str) -> dict[str, str]:
    """Return the environment. Our own interpreter finds in it the same outlast as this process."""
    out = {"OMP_NUM_THREADS": "1", **os.environ}
    if python == sys.executable:
        root = str(Path(__file__).resolve().parents[3])
        out["PYTHONPATH"] = os.pathsep.join(filter(None, (out.get("PYTHONPATH"), root)))
    return out


def digest_in(log: Path) -> str:
    """Return the last digest that a run has printed; "" if it has printed none."""
    found = [one for line in log.read_bytes().splitlines() if (one := _DIGEST.search(line))]
    return found[-1][1].decode(errors="replace") if found else ""


class _Lines:
    """The lines that a run prints, which are read while it goes on."""

    def __init__(self, path: Path, out: PeerRun, ranks: int) -> None:
        self.out = out
        self._path = path
        self._ranks = ranks
        self._read_bytes = 0

    def follow(self, now_s: float) -> None:
        """Read what is new, up to its last complete line."""
        with self._path.open("rb") as file:
            file.seek(self._read_bytes)
            text = file.read()
        whole = text[: text.rfind(b"\n") + 1]
        self._read_bytes += len(whole)
        for line in whole.splitlines():
            self._take(line, now_s)

    def _take(self, line: bytes, now_s: float) -> None:
        out = self.out
        if found := _STALLED.search(line):
            out.stalls_s.append(float(found[1]))
        elif found := _WROTE.search(line):
            out.writes_s.append(float(found[1]))
        elif found := _DIGEST.search(line):
            out.digest = found[1].decode(errors="replace")
        elif found := _STEP.search(line):
            members = int(found[2]) if found[2] else self._ranks
            out.seen.append(SeenStep(now_s, int(found[1]), members / self._ranks))


class _PeerWatch:
    """Watches one run: its steps and its faults."""

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        target: Target,
        strikes: DrillStrikes,
        lines: _Lines,
        seen: set[RunProcess],
    ) -> None:
        self._process = process
        self._target = target
        self._strikes = strikes
        self._lines = lines
        self._seen = seen  # the ranks that there have been so far

    def until_over(self, watch: Callable[[DrillView], None], patience_s: float) -> None:
        """Look at the run until it has ended, or makes no progress for too long."""
        out, step, looked_s = self._lines.out, 0, 0.0
        began_s, last_s = None, clock.now_s()
        while self._process.poll() is None:
            now_s = clock.now_s()
            self._lines.follow(now_s)
            if out.step > step:
                step, last_s = out.step, now_s
            if began_s is None and step >= FIRST_STEPS:
                began_s = now_s
            if now_s - looked_s >= CHILDREN_EACH_S:
                looked_s = now_s
                self._seen.update(self._target.children())
            if began_s is not None:
                self._strikes.look(now_s, since_s=began_s, step=step)
                fired, left = len(self._strikes.fired), self._strikes.left_count
                watch(DrillView(step, now_s - began_s, fired, left))
            if now_s - last_s > patience_s:
                out.stood_still_s = now_s - last_s
                return
            time.sleep(TICK_S)
        self._lines.follow(clock.now_s())
        self._strikes.close()


def _end(process: subprocess.Popen[bytes], target: Target, seen: set[RunProcess]) -> None:
    """End a run that is not over. Its ranks die with the launcher, also those that are stopped."""
    if process.poll() is None:
        seen.update(target.children())
        process.kill()
    process.wait()
    until_s = clock.now_s() + TRIAL_STOP_S
    while still_there(seen) and clock.now_s() < until_s:
        time.sleep(TICK_S)
