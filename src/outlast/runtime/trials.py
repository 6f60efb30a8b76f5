"""Short runs of a script for `outlast check`, each in a folder of its own.

    with TrialFolder(home, cwd) as folder:
        run = folder.run("undisturbed", command, plan, ...)

A run is an `outlast run` in a session of its own. Before `run` returns, however the run ended, its
processes and its shared memory are gone, and the files that the script has changed are restored.
Leaving the block removes the folder.

Limits   If this process is killed by SIGKILL, the run is stopped by its launcher, but the folder
         with the copies of changed files stays in the folder for temporary files.
"""

from __future__ import annotations

import contextlib
import filecmp
import json
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from outlast.diagnose.scripts.trial_comparison import KilledRank, Notes, RankNote, ScriptLoop
from outlast.errors import OutlastError
from outlast.model.limits import TRIAL_STOP_S
from outlast.runtime import clock, linux, stop_signals
from outlast.runtime.folders.run_folder import read_card
from outlast.runtime.interpreter import module_command
from outlast.runtime.tiers.vault import Vault
from outlast.runtime.tiers.vault_owner import vault_folder
from outlast.runtime.worker.instructions.trial_plan import VARIABLE, TrialPlan


@dataclass(frozen=True, slots=True)
class TrialRun:
    """A run that is over.

    path      the run's folder, as `outlast report` reads it
    code      the exit code of `outlast run`; None: it was stopped because time was up
    notes     what each rank saw
    steps     of a script without outlast calls: its optimizer steps, in order
    struck    the ranks that were killed
    touched   the files that the script wrote; they are as before again
    spare     what the first spare that failed has said last; "": none has
    """

    path: Path
    code: int | None
    stdout: str
    stderr: str
    notes: Notes
    steps: tuple[dict[str, Any], ...]
    struck: tuple[KilledRank, ...]
    touched: tuple[str, ...]
    spare: str


class TrialFolder:
    """A temporary folder for the runs of one check. Use it as a context manager.

    home   the script's folder
    """

    def __init__(self, home: str) -> None:
        self.path = Path()
        self._home = home

    def __enter__(self) -> TrialFolder:
        self.path = Path(tempfile.mkdtemp(prefix="outlast-check-"))
        return self

    def __exit__(self, *_: object) -> None:
        with stop_signals.masked(signal.SIG_BLOCK):
            shutil.rmtree(self.path, ignore_errors=True)

    def run(
        self,
        name: str,
        words: Sequence[str],
        *,
        steps: int,
        strikes: Sequence[KilledRank] = (),
        mark: str = "stepping",
        spare_step: int = 0,
        until_s: float,
    ) -> TrialRun:
        """Run `outlast run` with these words, and kill ranks. `until_s`: the run is then stopped.

        mark   where ranks are killed (runtime/worker/instructions/marks.py)
        """
        folder = self.path / name
        folder.mkdir()
        plan = TrialPlan(folder, steps, self._home, spare_step)
        faults = [
            {
                "mark": mark,
                "rank": one.rank,
                "do": "SIGKILL",
                "once": str(folder / f"once-{number}"),
                "step": one.step - 1 if mark == "stepping" else one.step,
            }
            for number, one in enumerate(strikes)
        ]
        environment = {
            **os.environ,
            VARIABLE: plan.as_text(),
            "OUTLAST_DRILL": json.dumps(faults),
            "PYTHONHASHSEED": "0",
        }
        command = [*module_command("outlast.app.cli"), "run", "--run-dir", str(folder / "run")]
        code = self._watched(folder, [*command, *words], environment, until_s)
        return TrialRun(
            folder / "run",
            code,
            _text(folder / "stdout"),
            _text(folder / "stderr"),
            dict(_notes(folder / "records")),
            tuple(_lines(folder / "steps.jsonl")),
            tuple(one for n, one in enumerate(strikes) if (folder / f"once-{n}").exists()),
            tuple(_put_back(folder / "touched", (self._home, os.getcwd()))),
            _spare_error(folder / "run" / "logs"),
        )

    def _watched(
        self, folder: Path, command: Sequence[str], environment: dict[str, str], until_s: float
    ) -> int | None:
        """Run the command to its end.

        Stop it if it takes too long, or if this process is stopped.
        """
        mine = os.getpid()
        with (folder / "stdout").open("wb") as out, (folder / "stderr").open("wb") as errors:
            process = subprocess.Popen(
                command,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=errors,
                start_new_session=True,
                preexec_fn=lambda: linux.stop_with(mine),
            )
        try:
            return process.wait(max(0.1, until_s - clock.now_s()))
        except subprocess.TimeoutExpired:
            return None
        finally:
            with stop_signals.masked(signal.SIG_BLOCK):
                if process.poll() is None:
                    stop_run(process, folder / "run")
                    _put_back(folder / "touched", (self._home, os.getcwd()))


def stop_run(process: subprocess.Popen[bytes], run: Path) -> None:
    """End a run that is not over, and remove what it leaves in shared memory."""
    process.send_signal(signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(TRIAL_STOP_S)
        return
    process.kill()  # its workers die with it
    process.wait()
    with contextlib.suppress(OutlastError, OSError):
        name = str(read_card(run)["run"])
        Vault.adopt(vault_folder(name), name).remove()


def _text(path: Path) -> str:
    return path.read_text(errors="replace")


def _spare_error(logs: Path) -> str:
    for path in sorted(logs.glob("*/*/spare_*/error.json")):
        return _text(path.with_name("stderr.log"))
    return ""


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    if path.exists():
        for line in path.read_text().splitlines():
            with contextlib.suppress(ValueError):  # the line was cut off by a kill
                yield json.loads(line)


def _notes(folder: Path) -> Iterator[tuple[tuple[int, str, int], RankNote]]:
    for path in sorted(folder.glob("*.json")):
        rank, when, step = path.stem.split("-")
        value = json.loads(path.read_text())
        loop = value["loop"]
        noted = RankNote(
            value["pid"], ScriptLoop(loop["file"], loop["function"], loop["line"]), value["prints"]
        )
        yield (int(rank), when, int(step)), noted


def _put_back(folder: Path, made_in: Sequence[str]) -> list[str]:
    """Restore each file that the script has changed, and remove what it has created in `made_in`.

    Return the paths. Calling it again has no effect.
    """
    changed = []
    for record in sorted(folder.glob("*.json")):
        told = json.loads(record.read_text())
        path, copy = Path(told["path"]), record.with_suffix(".copy")
        if copy.exists():
            if not path.exists() or not filecmp.cmp(copy, path, shallow=False):
                shutil.copy2(copy, path)
                changed.append(str(path))
        elif not told["existed"] and _is_made(path, made_in):
            path.unlink()
            changed.append(str(path))
    _remove_empty(folder, made_in)
    return changed


def _is_made(path: Path, made_in: Sequence[str]) -> bool:
    inside = any(path.is_relative_to(one) for one in made_in)
    return inside and (path.is_file() or path.is_symlink())


def _remove_empty(folder: Path, made_in: Sequence[str]) -> None:
    """Remove the folders that the script has created, the innermost first."""
    told = [json.loads(record.read_text()) for record in folder.glob("*.json")]
    made = [Path(one["path"]) for one in told if not one["existed"]]
    for path in sorted(made, key=lambda one: len(one.parts), reverse=True):
        if path.is_dir() and any(path.is_relative_to(one) for one in made_in):
            with contextlib.suppress(OSError):  # it contains something else
                path.rmdir()
