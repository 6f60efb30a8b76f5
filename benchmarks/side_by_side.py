"""Start a contestant, follow its commits, strike one of its workers, and time its return.

MTTR here is from the signal to the first step committed by the next membership, by whichever of its
workers is first, less one undisturbed step (the median of the steps before the signal). The clock
is CLOCK_MONOTONIC in all processes.
"""

from __future__ import annotations

import itertools
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Protocol

HERE = Path(__file__).resolve().parent
HOME = HERE.parent
PEERS = HERE / "peers"
WORKERS = 4
# steps of a membership before it is struck; the first two are not counted into the step time
SETTLED_STEPS = 12


@dataclass(frozen=True)
class Commit:
    """A step that a worker has committed: a line of the file that all workers append to.

    ended_s   when the block of the step was left; None: that was not written down
    """

    rank: int
    pid: int
    step: int
    generation: int
    members: int
    at_s: float
    host: str
    ended_s: float | None = None


@dataclass(frozen=True)
class Contestant:
    """Something that trains.

    command   starts it in a folder of its own, which takes the place of {folder}
    ready     says by that folder whether it may be struck again
    source    where outlast is imported from; None: from this checkout
    most      how many strikes it gets; few where each takes minutes
    limit_s   how long it has to settle, and to come back
    workers   how many ranks it has
    """

    name: str
    command: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    ready: Callable[[Path], bool] = lambda folder: True
    source: Path | None = None
    most: int = 1_000
    limit_s: float = 120.0
    workers: int = WORKERS


@dataclass(frozen=True)
class Strike:
    """One signal, and how long it held the training up.

    step_s    the median of the undisturbed steps before
    seconds   until the first new commit, less one step; None: it did not come back in time
    """

    name: str
    rank: int
    step_s: float
    seconds: float | None


class CommitLog:
    """The commits of all workers, as the file tells that they append to."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.commits: list[Commit] = []
        self._read_bytes = 0

    def follow(self) -> list[Commit]:
        """Read what has been committed since the last call. Return all commits so far."""
        if self.path.exists():
            with self.path.open("rb") as file:
                file.seek(self._read_bytes)
                whole = file.read().rpartition(b"\n")[0]
            self._read_bytes += len(whole) + 1 if whole else 0
            self.commits += [Commit(**json.loads(line)) for line in whole.splitlines()]
        return self.commits

    def wait_for(
        self,
        condition: Callable[[], bool],
        limit_s: float,
        *,
        is_over: Callable[[], bool] = lambda: False,
    ) -> bool:
        """Follow until `condition` holds. Return False if the time or the contestant ends first."""
        over_s = time.monotonic() + limit_s
        while time.monotonic() < over_s:
            self.follow()
            if condition():
                return True
            if is_over():
                return False
            time.sleep(0.01)
        return False

    def environment(self, more: Mapping[str, str], *, source: Path | None = None) -> dict[str, str]:
        """Return the environment of workers that append to this file.

        `source` is where outlast is imported from; None: from this checkout.
        """
        paths = os.pathsep.join([str(source or HOME / "src"), str(HOME / "examples"), str(PEERS)])
        ours = {"OMP_NUM_THREADS": "1", "COMMITS": str(self.path), "PYTHONPATH": paths}
        return {**os.environ, **ours, **more}


class Trial:
    """A contestant at work. On leaving, it and all workers that ever committed are ended."""

    def __init__(self, contestant: Contestant) -> None:
        self.contestant = contestant
        self._scratch = tempfile.TemporaryDirectory(
            prefix="outlast-bench-", ignore_cleanup_errors=True
        )
        self.folder = Path(self._scratch.name)
        self._log = CommitLog(self.folder / "commits")
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that __exit__ runs

    def __enter__(self) -> Trial:
        environment = self._log.environment(
            self.contestant.environment, source=self.contestant.source
        )
        command = [word.replace("{folder}", str(self.folder)) for word in self.contestant.command]
        with (self.folder / "output").open("wb") as output:
            self._process = subprocess.Popen(
                command,
                env=environment,
                cwd=self.folder,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        self._process.terminate()
        try:
            self._process.wait(timeout=40)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        for pid in {commit.pid for commit in self.commits}:
            if b"COMMITS=" + str(self._log.path).encode() in environment_of(pid):
                os.kill(pid, signal.SIGKILL)
        self._scratch.cleanup()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        return self._process.poll()

    def output(self) -> str:
        return (self.folder / "output").read_text(errors="replace")[-3000:]

    @property
    def commits(self) -> list[Commit]:
        return self._log.commits

    def follow(self) -> list[Commit]:
        return self._log.follow()

    def wait_for(self, condition: Callable[[], bool], limit_s: float) -> bool:
        """Return whether `condition` holds before the time is over and the contestant ends."""
        return self._log.wait_for(condition, limit_s, is_over=lambda: self.exit_code is not None)

    def latest(self) -> list[Commit]:
        """Return the commits of the newest membership, or none while a worker has not committed."""
        newest = max((commit.generation for commit in self.commits), default=0)
        workers = self.contestant.workers
        latest = [
            commit
            for commit in self.commits
            if commit.generation == newest and commit.members == workers
        ]
        return latest if len({commit.rank for commit in latest}) == workers else []

    def is_settled(self) -> bool:
        """Return whether all workers have trained for long enough to be struck."""
        latest = self.latest()
        return (
            bool(latest)
            and min(
                sum(one.rank == rank for one in latest) for rank in range(self.contestant.workers)
            )
            >= SETTLED_STEPS
            and self.contestant.ready(self.folder)
        )

    def step_s(self) -> float:
        """Return the median of one rank's undisturbed steps in the newest membership."""
        at_s = [commit.at_s for commit in self.latest() if commit.rank == 0][2:]
        return statistics.median(after - before for before, after in itertools.pairwise(at_s))

    def strike(self, rank: int, how: signal.Signals) -> Strike | None:
        """Signal the worker that holds `rank` and wait for the next membership's first commit.

        Return None if the contestant never settled.
        """
        if not self.wait_for(self.is_settled, self.contestant.limit_s):
            return None
        step_s, before = self.step_s(), self.latest()[-1].generation
        struck_pid = next(commit.pid for commit in reversed(self.latest()) if commit.rank == rank)
        at_s = time.clock_gettime(time.CLOCK_MONOTONIC)
        os.kill(struck_pid, how)

        def back() -> bool:
            return any(commit.generation > before for commit in self.commits)

        seconds = None
        if self.wait_for(back, self.contestant.limit_s):
            seconds = (
                min(commit.at_s for commit in self.commits if commit.generation > before)
                - at_s
                - step_s
            )
        if how == signal.SIGSTOP and b"COMMITS=" in environment_of(struck_pid):
            # A contestant may leave a stopped process alone. The next strike has to find four.
            os.kill(struck_pid, signal.SIGKILL)
        return Strike(self.contestant.name, rank, step_s, seconds)


class Struck(Protocol):
    """One strike, with the two figures that every summary has."""

    @property
    def step_s(self) -> float: ...

    @property
    def seconds(self) -> float | None: ...


def summary(strikes: Sequence[Struck]) -> dict:
    """Return how many came back, after what time, and how long a step took before."""
    back_s = [strike.seconds for strike in strikes if strike.seconds is not None]
    return {
        "strikes": len(strikes),
        "came_back": len(back_s),
        "median_s": round(statistics.median(back_s), 4) if back_s else None,
        "max_s": round(max(back_s), 4) if back_s else None,
        "step_s": (
            round(statistics.median(strike.step_s for strike in strikes), 4) if strikes else None
        ),
        "all_s": [round(one, 4) for one in back_s],
    }


def environment_of(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return b""


def torchrun(*flags: str, script: tuple[str, ...], workers: int = WORKERS) -> tuple[str, ...]:
    return (
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nproc-per-node",
        str(workers),
        *flags,
        str(PEERS / "with_torchrun.py"),
        *script,
    )


def outlast(*flags: str, script: tuple[str, ...], workers: int = WORKERS) -> tuple[str, ...]:
    run = (
        str(Path(sys.executable).with_name("outlast")),
        "run",
        "--nproc-per-node",
        str(workers),
        "--run-dir",
        "{folder}/run",
    )
    return (*run, *flags, str(PEERS / "with_outlast.py"), *script)


def machine() -> str:
    import torch

    gpus = torch.cuda.device_count()
    devices = f", {gpus} x {torch.cuda.get_device_name()}" if gpus else ", gloo"
    return (
        f"{os.cpu_count()} cores, {platform.system()} {platform.release()}, Python"
        f" {platform.python_version()}, torch {torch.__version__}{devices}"
    )


def write_result(name: str, value: object) -> Path:
    """Keep the numbers of one benchmark for RESULTS.md (see all.py)."""
    path = HERE / "results" / f"{name}.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(
        json.dumps(
            {
                "machine": machine(),
                "at": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
                "result": value,
            },
            indent=1,
        )
        + "\n"
    )
    return path
