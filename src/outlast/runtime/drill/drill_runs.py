"""The two runs of a drill: one undisturbed, and one under faults.

    folder = DrillFolder.make(None, name="smoke-7")
    calm = folder.run("undisturbed", words, watch)
    fire = folder.run("under-fire", words, watch, faults=faults)

Each is an `outlast run` in a session of its own, with a folder that `outlast report` reads. What it
prints goes to a file beside it. However a drill ends, no process and no shared memory of its runs
remains.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from outlast.errors import RunFolderError
from outlast.model.drills.drill_faults import DISK_KINDS
from outlast.model.drills.drill_sides import FIRST_STEPS, SeenStep
from outlast.model.limits import TRIAL_STOP_S
from outlast.runtime import clock
from outlast.runtime.drill.drill_disk import RunDisk, mounting
from outlast.runtime.drill.drill_images import DamagedImages
from outlast.runtime.drill.drill_launch import Launched, OneLauncher
from outlast.runtime.drill.drill_looks import InForceLooks
from outlast.runtime.drill.drill_memory import MemoryGroups
from outlast.runtime.drill.drill_strikes import DrillStrikes, Due, Fired, Means
from outlast.runtime.drill.drill_usage import UsageWatch
from outlast.runtime.drill.striking import RunProcess, Usage, still_there, titles_below
from outlast.runtime.folders.run_folder import ROOT, folder_name, stamped
from outlast.runtime.worker.instructions.drill_code import LOADER_TITLE
from outlast.runtime.worker.instructions.run_ends_folder import VARIABLE, RankEnd, read_ends

TICK_S = 0.02
USAGE_EACH_S = 1.0
RUN_WORD = "{run}"


@dataclass(frozen=True, slots=True)
class DrillView:
    """The state of a run as a drill sees it. `since_s`: how long it has trained, in seconds."""

    step: int
    since_s: float
    fired_count: int
    left_count: int


@dataclass(slots=True)
class SeenProcesses:
    """The facts that were seen of the processes of a run.

    usage        of the launcher that lived longest: the maximum of its first minute, and the last;
                 None: it ended before
    left         processes, and files of shared memory, that were there afterwards
    has_loaders  a rank had a DataLoader with workers
    """

    usage: tuple[Usage, Usage] | None = None
    left: tuple[int, int] = (0, 0)
    has_loaders: bool = False


@dataclass(slots=True)
class DrilledRun:
    """A run that is over.

    path       the run's folder
    code       the exit code of `outlast run`
    fired      the faults that have fired
    ends       the state of each rank after the last step; empty if the script never says it
    pace_s     seconds for a step, as seen from outside; 0.0 if fewer than two were seen
    trained_s  from the third step to the last
    stood_still_s  how long it had committed no step when it was stopped; 0.0: it was not
    """

    path: Path
    code: int = -1
    fired: tuple[Fired, ...] = ()
    ends: dict[int, RankEnd] = field(default_factory=dict)
    step: int = 0
    pace_s: float = 0.0
    trained_s: float = 0.0
    processes: SeenProcesses = field(default_factory=SeenProcesses)
    stood_still_s: float = 0.0


@dataclass(frozen=True, slots=True)
class DrillFolder:
    """The folder of one drill."""

    path: Path

    @classmethod
    def make(cls, path: str | None, *, name: str) -> DrillFolder:
        """Create the folder; by default `runs/<utc time>-drill-<name>`. Raises RunFolderError."""
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

    def steps_file(self, name: str) -> Path:
        """Return the file in which a run's steps are recorded: when each was first seen.

        The first line is the start of the launcher, and the last one its end.
        """
        return self.path / f"{name}.steps.jsonl"

    def steps_of(self, name: str) -> tuple[SeenStep, ...]:
        """Return what was recorded about an `outlast run` that is over."""
        lines = self.steps_file(name).read_text().splitlines()
        return tuple(SeenStep(**json.loads(line)) for line in lines)

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
        launch: Callable[..., Launched] = OneLauncher,
    ) -> DrilledRun:
        """Run `outlast run` with these words to its end, under fire if there are faults.

        A run that trains, and then commits no new step for `patience_s`, is stopped.

        In the words, `{run}` stands for the folder of files of this run. `launch` starts it; it is
        called as `OneLauncher` is.
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
        files = f"{own.resolve()}.files"
        if any(RUN_WORD in word for word in words):
            Path(files).mkdir()
        given = [word.replace(RUN_WORD, files) for word in words]
        out, truth = DrilledRun(own), self.path / f"{name}.jsonl"
        kinds = {one.kind.name for one in faults}
        before = {"before": mounting(own / "checkpoints")} if "full_disk" in kinds else {}
        log = self.path / f"{name}.log"
        with contextlib.ExitStack() as closing:
            memory = closing.enter_context(MemoryGroups())
            run = launch(own, given, environment=environment, log=log, **before)
            try:
                disk = None
                if isinstance(run, OneLauncher) and kinds & set(DISK_KINDS):
                    slowed = "slow_disk" in kinds
                    disk = closing.enter_context(RunDisk(run.launcher, own, slowed=slowed))
                strikes = DrillStrikes(
                    run.target,
                    faults,
                    orders=orders,
                    truth=truth,
                    means=Means(run.hosts, memory, DamagedImages(run.memory), disk),
                    looks=InForceLooks(run.memory),
                )
                notes = _StepNotes(self.steps_file(name))
                _Watching(run, strikes, notes, out).until_over(watch, patience_s)
            finally:
                out.code = run.stop()
        out.fired, out.ends = tuple(strikes.fired), read_ends(ends)
        return out


class _StepNotes:
    """A file in which each new step of a run is recorded, with its time.

    A beacon that is being written cannot be read, so the newest step that can be read may be one
    less for a moment. The ledger says whether steps were lost.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._last = 0
        self.write(clock.now_s())

    def look(self, now_s: float, step: int) -> None:
        """Record this step if it is a new one."""
        if step > self._last:
            self._last = step
            self.write(now_s)

    def write(self, now_s: float) -> None:
        """Record the newest step once more."""
        with self._path.open("a") as file:
            file.write(json.dumps({"at_s": now_s, "step": self._last}) + "\n")


class _Watching:
    """Watches one run: its step, its faults, and what its launchers use."""

    def __init__(
        self, run: Launched, strikes: DrillStrikes, notes: _StepNotes, out: DrilledRun
    ) -> None:
        self._run = run
        self._strikes = strikes
        self._notes = notes
        self._out = out
        self._began: tuple[float, int] | None = None  # when it began to train, and with which step
        self._usage = UsageWatch()
        self._usage_s = 0.0
        self._seen: set[RunProcess] = set()

    def until_over(self, watch: Callable[[DrillView], None], patience_s: float) -> None:
        """Look at the run until it has ended, or makes no progress for too long."""
        out, last_s = self._out, 0.0
        while self._run.poll() is None:
            now_s = clock.now_s()
            step = self._run.step()
            self._notes.look(now_s, step)
            if step > out.step:
                out.step, last_s = step, now_s
            if self._began is None and step >= FIRST_STEPS:
                self._began = (now_s, step)
            if self._began is not None:
                since_s = self._began[0]
                self._strikes.look(now_s, since_s=since_s, step=out.step)
                self._look_at_usage(now_s)
                left = self._strikes.left_count
                watch(DrillView(out.step, now_s - since_s, len(self._strikes.fired), left))
                if now_s - last_s > patience_s:
                    self._notes.write(now_s)
                    out.stood_still_s = now_s - last_s
                    return
            time.sleep(TICK_S)
        self._notes.write(clock.now_s())
        self._strikes.close()
        if self._began is not None:
            out.trained_s = max(0.0, last_s - self._began[0])
            out.pace_s = out.trained_s / max(1, out.step - self._began[1])
        out.processes.usage = self._usage.result
        alive = self._left()
        out.processes.left = (len(alive), self._run.segments_left())
        if alive:  # the score counts them, and this says which
            lines = [f"{one.pid} {one.title}\n" for one in alive]
            Path(f"{out.path}.left").write_text("".join(lines))

    def _look_at_usage(self, now_s: float) -> None:
        if now_s - self._usage_s < USAGE_EACH_S:
            return
        self._usage_s = now_s
        children = self._run.target.children()
        self._seen.update(children)
        if not self._out.processes.has_loaders:
            self._out.processes.has_loaders = LOADER_TITLE in titles_below(children)
        self._usage.look(now_s, self._out.step, self._run.usages())

    def _left(self) -> list[RunProcess]:
        """Return the processes of the run that are still alive, after they have had time to end."""
        until_s = clock.now_s() + TRIAL_STOP_S
        while (left := still_there(self._seen)) and clock.now_s() < until_s:
            time.sleep(TICK_S)
        return left
