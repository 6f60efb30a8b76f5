"""The two runs of a drill: one undisturbed, and one under faults.

    folder = DrillFolder.make(None, name="smoke-7")
    calm = folder.run("undisturbed", words, watch)
    fire = folder.run("under-fire", words, watch, faults=faults)

Each is an `outlast run` in a session of its own, with a folder that `outlast report` reads. What it
prints goes to a file beside it. However a drill ends, no process and no shared memory of its runs
is left.
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from outlast.errors import OutlastError, RunFolderError
from outlast.model.limits import TRIAL_STOP_S
from outlast.runtime import clock, linux, stop_signals
from outlast.runtime.drill_strikes import DrillStrikes, Due, Fired
from outlast.runtime.run_folder import ROOT, folder_name, read_card, stamped
from outlast.runtime.striking import RunProcess, Target, Usage, still_there
from outlast.runtime.tiers.vault import Vault
from outlast.runtime.tiers.vault_owner import vault_folder
from outlast.runtime.trials import stop_run
from outlast.runtime.worker.run_ends_folder import VARIABLE, RankEnd, read_ends

TICK_S = 0.02
USAGE_EACH_S = 1.0
FIRST_STEPS = 3  # a run that has committed so many trains
SETTLED_S = 60.0  # what a launcher uses at its end is held against what it used then
RUN_WORD = "{run}"


@dataclass(frozen=True, slots=True)
class DrillView:
    """The state of a run as a drill sees it. `since_s`: seconds of training."""

    step: int
    since_s: float
    fired_count: int
    left_count: int


@dataclass(slots=True)
class DrilledRun:
    """A run that is over.

    path       the run's folder
    code       the exit code of `outlast run`
    fired      the faults that have fired
    ends       the state of each rank after the last step; empty if the script never says it
    pace_s     seconds for a step, as seen from outside; 0.0 if fewer than two were seen
    trained_s  from the third step to the last
    usage      of the launcher: the maximum of its first minute, and the last; None: it ended before
    left       processes, and files of shared memory, that were there afterwards
    stood_still_s  how long it had committed no step when it was stopped; 0.0: it was not
    """

    path: Path
    code: int = -1
    fired: tuple[Fired, ...] = ()
    ends: dict[int, RankEnd] = field(default_factory=dict)
    step: int = 0
    pace_s: float = 0.0
    trained_s: float = 0.0
    usage: tuple[Usage, Usage] | None = None
    left: tuple[int, int] = (0, 0)
    stood_still_s: float = 0.0


@dataclass(frozen=True, slots=True)
class DrillFolder:
    """The folder of one drill."""

    path: Path

    @classmethod
    def make(cls, path: str | None, *, name: str) -> DrillFolder:
        """Make the folder; by default `runs/<utc time>-drill-<name>`. Raises RunFolderError."""
        name = folder_name(name) or "drill"
        place = ROOT / stamped(f"drill-{name}") if path is None else Path(path)
        try:
            place.mkdir(parents=True, exist_ok=path is not None)
            if any(place.iterdir()):
                raise RunFolderError(
                    f"{place} is not empty", hint="a drill needs a new folder of its own"
                )
        except OSError as error:
            raise RunFolderError(
                f"{place} cannot be made: {error.strerror}", hint="name another by --run-dir"
            ) from None
        return cls(place)

    def write(self, name: str, text: str) -> None:
        (self.path / name).write_text(text)

    def tail(self, name: str, lines: int) -> str:
        """Return the last lines that a run has printed."""
        text = (self.path / f"{name}.log").read_text(errors="replace")
        return "\n".join(text.rstrip().splitlines()[-lines:])

    def run(
        self,
        name: str,
        words: Sequence[str],
        watch: Callable[[DrillView], None],
        *,
        faults: Sequence[Due] = (),
        patience_s: float = math.inf,
    ) -> DrilledRun:
        """Run `outlast run` with these words to its end, under fire if there are faults.

        A run that trains, and then commits no new step for `patience_s`, is stopped.

        In the words, `{run}` stands for the folder of files of this run.
        """
        own = self.path / name
        ends, orders = self.path / f"{name}.ends", self.path / f"{name}.orders"
        for folder in (ends, orders):
            folder.mkdir()
        environment = {
            **os.environ,
            VARIABLE: str(ends.resolve()),
            "PYTHONHASHSEED": "0",
            "OUTLAST_DRILL_FOLDER": str(orders.resolve()),
        }
        mine, files = os.getpid(), f"{own.resolve()}.files"
        command = [sys.executable, "-m", "outlast.app.cli", "run", "--run-dir", str(own)]
        command += [word.replace(RUN_WORD, files) for word in words]
        if any(RUN_WORD in word for word in words):
            Path(files).mkdir()
        with (self.path / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(
                command,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=lambda: linux.stop_with(mine),
            )
        out = DrilledRun(own)
        try:
            target = Target(process.pid)
            strikes = DrillStrikes(target, faults, orders=orders, truth=self.path / f"{name}.jsonl")
            _Watching(process, target, strikes, out).until_over(watch, patience_s)
        finally:
            with stop_signals.masked(signal.SIG_BLOCK):
                if process.poll() is None:
                    stop_run(process, own)
        out.code, out.fired, out.ends = process.returncode, tuple(strikes.fired), read_ends(ends)
        return out


class _Watching:
    """The watch over one run: its step, its faults, and what its launcher uses."""

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        target: Target,
        strikes: DrillStrikes,
        out: DrilledRun,
    ) -> None:
        self._process = process
        self._target = target
        self._strikes = strikes
        self._out = out
        self._vault: Vault | None = None
        self._began: tuple[float, int] | None = None  # when it trained, and with which step
        self._usage_s = 0.0
        self._settled: Usage | None = None  # the most of the first minute
        self._usage: tuple[Usage, int] | None = None  # what was seen last, and after which step
        self._seen: set[RunProcess] = set()

    def until_over(self, watch: Callable[[DrillView], None], patience_s: float) -> None:
        """Look at the run until it has ended, or stands still for too long."""
        out, last_s = self._out, 0.0
        while self._process.poll() is None:
            now_s = clock.now_s()
            step = self._step()
            if step > out.step:
                out.step, last_s = step, now_s
            if self._began is None and step >= FIRST_STEPS:
                self._began = (now_s, step)
            if self._began is not None:
                since_s = self._began[0]
                self._strikes.look(now_s, since_s=since_s, step=out.step)
                self._look_at_usage(now_s, now_s - since_s)
                left = self._strikes.left_count
                watch(DrillView(out.step, now_s - since_s, len(self._strikes.fired), left))
                if now_s - last_s > patience_s:
                    out.stood_still_s = now_s - last_s
                    return
            time.sleep(TICK_S)
        self._strikes.close()
        if self._began is not None:
            out.trained_s = max(0.0, last_s - self._began[0])
            out.pace_s = out.trained_s / max(1, out.step - self._began[1])
        out.left = (len(self._left()), self._segments())

    def _step(self) -> int:
        """Return the newest committed step, as the ranks' beacons say it."""
        if self._vault is None:
            with contextlib.suppress(OutlastError):  # it has not begun yet
                self._vault = Vault.open(vault_folder(str(read_card(self._out.path)["run"])))
        return 0 if self._vault is None else self._vault.newest_committed()

    def _look_at_usage(self, now_s: float, since_s: float) -> None:
        if now_s - self._usage_s < USAGE_EACH_S:
            return
        self._usage_s = now_s
        self._seen.update(self._target.children())
        now = self._target.usage()
        if now is None:
            return
        if since_s < SETTLED_S:
            self._settled = now if self._settled is None else self._settled.most(now)
            return
        if self._usage is not None and self._settled is not None:
            usage, step = self._usage
            if self._out.step <= step:
                return  # that look counts only if the run goes on: at its end a launcher lets go
            self._out.usage = (self._settled, usage)
        self._usage = (now, self._out.step)

    def _left(self) -> list[RunProcess]:
        """Return the processes of the run that live on, once they have had time to end."""
        until_s = clock.now_s() + TRIAL_STOP_S
        while (left := still_there(self._seen)) and clock.now_s() < until_s:
            time.sleep(TICK_S)
        return left

    def _segments(self) -> int:
        folder = None if self._vault is None else self._vault.folder
        return sum(1 for _ in folder.iterdir()) if folder is not None and folder.exists() else 0
