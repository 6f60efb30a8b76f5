"""One `outlast run` under a drill: start it in a folder of its own, strike, wait for its end, and
read its ledger.

    drill = Drill(tmp_path, "ddp.py", "--steps", "12", flags=("--spares", "1"), marks=[...],
    strikes=[...]) with drill:
        drill.until(lambda: drill.step >= 5, "step 5"); os.kill(drill.pid_of(2), signal.SIGSTOP)
        outcome = drill.finish()

marks     faults at outlast's own places: OUTLAST_DRILL, see runtime/worker/instructions/marks.py
strikes   faults at the script's places: DRILL_STRIKES, see scripts/strikes.py
before    the words in front of the command, if another program has to run it
A fault that names no `once` file gets one of its own. All waits are bounded, and leaving the block
ends every process of the run.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from outlast.app.reports.status import status_facts
from outlast.errors import OutlastError
from outlast.runtime.folders.run_folder import read_card
from outlast.runtime.ledger.view import look
from outlast.runtime.tiers.vault_owner import vault_folder
from tests.app.command import outlast
from tests.drills._pids import alive, below, until

SCRIPTS = Path(__file__).parent / "scripts"
OUTLAST = str(Path(sys.executable).with_name("outlast"))
Fault = dict[str, Any]


@dataclass(frozen=True)
class Outcome:
    """A run that is over. `commits` holds (rank, step, pid) in the order in which they were
    noted.
    """

    code: int
    stdout: str
    stderr: str
    report: dict[str, Any]
    commits: list[tuple[int, int, int]]

    @property
    def digests(self) -> dict[int, str]:
        """Return the digests by rank, as the script printed them."""
        words = (line.split() for line in self.stdout.splitlines() if line.startswith("digest "))
        return {int(one[1]): one[2] for one in words if len(one) == 3}

    @property
    def last_step(self) -> int:
        """Return the newest step that a rank noted as committed."""
        return max((step for _, step, _ in self.commits), default=0)

    @property
    def interruptions(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.report.get("interruptions", [])
        return found

    def ledger_is_sound(self, *, lossless: bool = True) -> None:
        """Check the books of the run. The seconds by cause sum to ranks times wall-clock time, and
        every interruption is over. With `lossless`, no committed step was lost, and none was
        committed twice on a rank.

        The report counts every step that was committed, the last ones included.
        """
        report = self.report
        total_s = report["world_size"] * report["wall_s"]
        spent_s = [value for value in report["rank_seconds"].values() if value is not None]
        assert abs(sum(spent_s) - total_s) < 1e-6, (report["rank_seconds"], total_s)
        assert min(spent_s) >= 0, report["rank_seconds"]
        assert report["balance"]["sums"], report["balance"]
        self.account_agrees()
        for one in self.interruptions:
            unseen = not one["steps_seen"] and one["steps_lost"] is None
            assert one["steps_lost"] == 0 or unseen or not lossless, one
            assert one["resumed_s"] is not None, one
            assert one["rung"] is not None, one
        twice = [
            key
            for key, count in Counter((rank, step) for rank, step, _ in self.commits).items()
            if count > 1
        ]
        assert not twice or not lossless, f"committed twice: {twice}"
        noted = max((step for _, step, _ in self.commits), default=0)
        assert report["steps"] >= noted, (
            f"step {noted} is committed, reported are {report['steps']}"
        )

    def account_agrees(self) -> None:
        """Check that the account of all interruptions agrees with their own times.

        From the fault to its detection, a rank books detection. From then until the state is in
        place on all ranks, it books regroup or restore, or the work that it still does and keeps. A
        rank that is replaced keeps nothing. The first one was gone when it was detected. Others may
        have ended after it, by an error of their own, and were gone once all stood still.
        """
        ranks = self.report["world_size"]
        taken: Counter[str] = Counter()
        detect_s = recover_s = replaced_s = 0.0
        for one in self.interruptions:
            taken.update(one["seconds"])
            over_s = one["restored_s"]
            if not one["steps_seen"]:
                return  # for such a script it is not seen when it goes on
            assert over_s is not None, one
            assert one["resumed_s"] is None or over_s <= one["resumed_s"], one
            fault_s = one["detected_s"] if one["fault_s"] is None else one["fault_s"]
            detect_s += one["detected_s"] - fault_s
            recover_s += over_s - one["detected_s"]
            if one["rung"] in ("spare", "respawn") and one["parent"] is None:
                gone_s = one["detected_s"] if one["left_s"] is None else one["left_s"]
                replaced_s += over_s - one["detected_s"]
                replaced_s += (len(one["ranks"]) - 1) * (over_s - gone_s)
        slack_s = ranks * (0.05 + 0.02 * len(self.interruptions))
        found_s = sum(taken[name] for name in ("regroup", "restore", "drain", "idle"))
        assert taken["detection"] <= ranks * detect_s + slack_s, (dict(taken), detect_s, str(self))
        assert found_s <= ranks * recover_s + slack_s, (dict(taken), recover_s, str(self))
        assert found_s >= replaced_s - slack_s, (dict(taken), replaced_s, str(self))

    def __str__(self) -> str:
        keys = (
            "mechanism",
            "class",
            "ranks",
            "rung",
            "mttr_s",
            "step",
            "reason",
            "error",
            "parent",
        )
        brief = [{key: one[key] for key in keys} for one in self.interruptions]
        lines = "\n".join(json.dumps(one) for one in brief)
        return (
            f"exit code {self.code}\n--- interruptions\n{lines}\n---"
            f" stderr\n{self.stderr[-6000:]}\n--- stdout\n{self.stdout[-2000:]}"
        )


# the fixture `calm_run`: it takes a script and its arguments, and returns an undisturbed run
CalmRun = Callable[..., Outcome]


class Drill:
    """A run as its operator sees it."""

    def __init__(
        self,
        folder: Path,
        script: str,
        *arguments: str | int,
        workers: int = 4,
        flags: Sequence[str | int] = (),
        marks: Sequence[Fault] = (),
        strikes: Sequence[Fault] = (),
        env: Mapping[str, str] | None = None,
        within_s: float = 90.0,
        before: Sequence[str] = (),
        console: int = -1,
        cwd: Path | None = None,
    ) -> None:
        """Start the run. `console` is a descriptor for both streams, which is closed here; without
        it, the streams go to files in `folder`.
        """
        self.folder = folder / "run"
        self._scratch = folder
        self._end_s = time.monotonic() + within_s
        command = [
            *before,
            OUTLAST,
            "run",
            "--nproc-per-node",
            workers,
            "--run-dir",
            self.folder,
            *flags,
            SCRIPTS / script,
            *arguments,
        ]
        self._commits = folder / "commits"
        self._commits.touch()
        self._read_bytes, self._noted = 0, list[tuple[int, int, int]]()
        given = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("OUTLAST_", "DRILL_"))
        }
        given |= {"OMP_NUM_THREADS": "1", "DRILL_COMMITS": str(self._commits), **(env or {})}
        if marks:
            given["OUTLAST_DRILL"] = json.dumps(self._named("mark", marks))
        if strikes:
            given["DRILL_STRIKES"] = json.dumps(self._named("strike", strikes))
        self._stdout, self._stderr = folder / "stdout", folder / "stderr"
        with self._stdout.open("wb") as out, self._stderr.open("wb") as errors:
            self.process = subprocess.Popen(
                list(map(str, command)),
                stdin=subprocess.DEVNULL,
                stdout=out if console < 0 else console,
                stderr=errors if console < 0 else console,
                env=given,
                cwd=cwd or folder,
            )
        if console >= 0:
            os.close(console)

    @property
    def stderr(self) -> str:
        return self._stderr.read_text(errors="replace")

    def _named(self, kind: str, faults: Sequence[Fault]) -> list[Fault]:
        return [
            {"once": str(self._scratch / f"once-{kind}-{number}"), **fault}
            for number, fault in enumerate(faults)
        ]

    # --- looking ----------------------------------------------------------------------------------

    @property
    def status(self) -> dict[str, Any]:
        """Return what `outlast status --json` prints, or {} while there is no run."""
        try:
            return status_facts(look(str(self.folder)))
        except (OutlastError, OSError, LookupError):
            return {}

    @property
    def commits(self) -> list[tuple[int, int, int]]:
        """Return all commits noted so far. Lines that were read before are not read again."""
        with self._commits.open("rb") as file:
            file.seek(self._read_bytes)
            data = file.read()
        data = data[: data.rfind(b"\n") + 1]  # the last line may be incomplete
        self._read_bytes += len(data)
        rows = (map(int, line.split()) for line in data.splitlines())
        self._noted += [(rank, step, pid) for rank, step, pid in rows]
        return list(self._noted)

    @property
    def step(self) -> int:
        """Return the newest step that some rank has noted as committed. This is fresher than the
        status.
        """
        return max((step for _, step, _ in self.commits), default=0)

    @property
    def oldest(self) -> int:
        """Return the newest step that every rank (of four) has noted as committed."""
        return self.oldest_of(4)

    def oldest_of(self, ranks: int) -> int:
        """Return the newest step that each of this many ranks has noted as committed."""
        newest: dict[int, int] = {}
        for rank, step, _ in self.commits:
            newest[rank] = max(step, newest.get(rank, 0))
        return min(newest.values()) if len(newest) == ranks else 0

    def pid_of(self, rank: int) -> int:
        """Return the process that noted the last commit of this rank."""
        return [pid for of, _, pid in self.commits if of == rank][-1]

    def said(self) -> str:
        """Return what the launcher has written to stderr so far."""
        return self._stderr.read_text()

    def fired(self, number: int = 0, kind: str = "mark") -> bool:
        return (self._scratch / f"once-{kind}-{number}").exists()

    def zygote(self) -> int:
        return self._child("outlast-zygote")

    def store(self) -> int:
        return self._child("outlast-store")

    def parked(self, kind: str = "hot") -> list[int]:
        """Return the pids of the spares of this kind that stand ready.

        Before the script is known to park, a warm spare stands in for a hot one, and ends then.
        """
        spares = self.status.get("spares", ())
        return [one["pid"] for one in spares if one.get("parked") and one["kind"] == kind]

    def vault(self) -> Path:
        """Return the run's folder in shared memory, once it is there."""

        def found() -> list[Path]:
            if not (self.folder / "run.json").exists():
                return []
            run = read_card(self.folder)["run"]
            return list(Path("/dev/shm").glob(f"outlast-{os.getuid()}-{run}"))

        self.until(found, "the vault")
        (only,) = found()
        return only

    def children(self, title: str) -> list[int]:
        """Return the launcher's children with this kernel name (cut to 15 letters)."""
        found = []
        for path in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):
                text = path.read_text()
                name = text[text.index("(") + 1 : text.rindex(")")]
                state, parent = text.rpartition(")")[2].split()[:2]
                if int(parent) == self.process.pid and name == title[:15] and state != "Z":
                    found.append(int(path.parent.name))
        return found

    def _child(self, title: str) -> int:
        """Return the oldest of them: a store that stands ready is younger than the one in use."""
        if found := self.children(title):
            return min(found)
        raise AssertionError(f"the launcher has no child {title}\n{self}")

    # --- waiting ----------------------------------------------------------------------------------

    def until(self, condition: Callable[[], object], what: str) -> None:
        """Poll until the condition holds, within the bound of the whole drill.

        Fails if the run ends before that. Reading the status takes a while, and gets at most a
        quarter of the time, because the run needs the cores.
        """
        while True:
            began_s = time.monotonic()
            if condition():
                return
            looked_s = time.monotonic() - began_s
            if time.monotonic() > self._end_s:
                raise AssertionError(f"not in time: {what}\n{self}")
            if self.process.poll() is not None and not condition():
                raise AssertionError(f"the run ended before: {what}\n{self}")
            time.sleep(max(0.01, 3 * looked_s))

    def finish(self) -> Outcome:
        """Wait for the run's end and read its ledger."""
        try:
            code = self.process.wait(max(0.1, self._end_s - time.monotonic()))
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the run did not end in time\n{self}") from None
        said = outlast("report", self.folder, "--json")
        report = json.loads(said.stdout) if said.returncode == 0 else {}
        return Outcome(code, self._stdout.read_text(), self.stderr, report, self.commits)

    def __str__(self) -> str:
        status = self.status
        shown = {
            key: status.get(key)
            for key in ("state", "step", "generation", "workers", "spares", "interruptions")
        }
        return (
            f"{json.dumps(shown)}\ncommits {self.step}\n---"
            f" stderr\n{self._stderr.read_text()[-4000:]}\n---"
            f" stdout\n{self._stdout.read_text()[-1000:]}"
        )

    # --- ending -----------------------------------------------------------------------------------

    def __enter__(self) -> Drill:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            pids = below(self.process.pid)
            self.process.send_signal(signal.SIGKILL)  # its workers die with it
            self.process.wait(10)
            until("every process of the run has ended", lambda: not alive(pids), within_s=10.0)
            with contextlib.suppress(OutlastError):  # it was killed before it had a vault
                shutil.rmtree(vault_of(self.folder), ignore_errors=True)


def vault_of(folder: Path) -> Path:
    """Return the vault of the run in this folder.

    A launcher that is killed leaves it for `--resume`. A test that does not resume removes it.
    """
    return vault_folder(str(read_card(folder)["run"]))


def drilled(folder: Path, script: str, *arguments: str | int, **options: Any) -> Outcome:
    """Start a run, wait for its end, and return the outcome."""
    with Drill(folder, script, *arguments, **options) as drill:
        return drill.finish()
