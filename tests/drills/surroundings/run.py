"""Run one cell of the table with real processes: start, wait for the moment, act, and judge the
end.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import threading
import time
import uuid
from dataclasses import dataclass
from pathlib import Path

from outlast.errors import OutlastError
from outlast.runtime.ledger.view import look
from tests.drills._run import Drill, vault_of
from tests.drills._scripts import left_behind
from tests.drills.surroundings import acts
from tests.drills.surroundings.acts import Around
from tests.drills.surroundings.settings import prepared
from tests.drills.surroundings.table import GONE_SEES, LEDGER_SEES, SAVES, Cell, Moment, Row

STEPS = 80
# how long the code after the last step takes, so that there is time for what happens at the end
LATE_S = 0.8
SAVED_STEP = 20
BOUND_S = 75.0  # for a whole cell, on top of what its row allows

Digests = dict[int, str]


@dataclass(frozen=True)
class Judged:
    """The result of a cell. `problems` holds the differences from the table, and `waited_s` the
    longest wait after the fault.
    """

    problems: list[str]
    waited_s: float
    lasted_s: float
    stderr: str

    def __str__(self) -> str:
        return "\n".join([*self.problems, f"waited {self.waited_s:.1f} s", self.stderr[-5000:]])


def calm(scratch: Path) -> Digests:
    """Return the weights of an undisturbed run."""
    with Drill(scratch, "quick.py", "--steps", STEPS, workers=2) as drill:
        outcome = drill.finish()
    assert outcome.code == 0, str(outcome)
    return outcome.digests


def judged(cell: Cell, scratch: Path, expected: Digests) -> Judged:
    """Run the cell, and return its problems."""
    row, word, begun_s = cell.row, uuid.uuid4().hex, time.monotonic()
    late = [{"at": "after", "rank": rank, "do": "sleep", "for_s": LATE_S} for rank in (0, 1)]
    own = [{"at": "forward", "rank": 1, "step": 10, "do": row.does}] if row.does else []
    flags = row.flags
    if cell.moment is Moment.CHECKPOINT and "--checkpoint-every" not in flags:
        flags += SAVES
    problems: list[str] = []
    with contextlib.ExitStack() as closing:
        setting = closing.enter_context(prepared(row.setting, scratch))
        options = {**setting.options}
        options["env"] = {**options.get("env", {}), "DRILL_WORD": word}
        drill = closing.enter_context(
            Drill(
                scratch,
                setting.script,
                "--steps",
                STEPS,
                *setting.arguments,
                workers=2,
                flags=flags,
                strikes=late if cell.moment is Moment.END else own,
                within_s=BOUND_S + row.within_s,
                **options,
            )
        )
        around = Around(drill, setting, scratch, cell.moment, closing)
        try:
            if row.act != "do_nothing" and not row.does:
                wait_for(around)
            struck_s = time.monotonic()
            undo = getattr(acts, row.act)(around)
            if row.does:  # the act had to wait for it
                struck_s = time.monotonic()
            if row.back_after_s is not None:
                timer = threading.Timer(row.back_after_s, lambda: _undo(undo, problems))
                timer.start()
                closing.callback(timer.cancel)
            waited_s, code = _watch(
                drill, struck_s, within_s=row.within_s, cold=row.act == "do_nothing"
            )
        except AssertionError as error:
            return Judged([str(error)[:3000]], 0.0, time.monotonic() - begun_s, drill.stderr)
        problems += _wrong(row, around, code, expected)
        # what the cell stopped would look like something that the run left
        left = left_behind(word, within_s=5.0)
        if left and not row.resumes:
            problems.append(f"left behind: {left}")
    if row.resumes and not problems:
        problems += _resumed(scratch, flags, expected)
    elif -signal.SIGKILL in row.codes:
        with contextlib.suppress(OutlastError):  # it was killed before it had a vault
            shutil.rmtree(vault_of(around.folder), ignore_errors=True)
    return Judged(problems, waited_s, time.monotonic() - begun_s, drill.stderr)


def wait_for(around: Around) -> None:
    """Wait for the cell's moment; a regroup begins with the death of rank 1."""
    drill, moment = around.drill, around.moment
    drill.until(lambda: (around.folder / "run.json").exists(), "the run's folder")
    if moment is Moment.START:
        assert drill.step == 0, "training has begun before the fault"
    elif moment is Moment.TRAINING:
        drill.until(lambda: drill.step >= 10, "step 10")
    elif moment is Moment.REGROUP:
        drill.until(lambda: drill.step >= 10, "step 10")
        os.kill(drill.pid_of(1), signal.SIGKILL)
    elif moment is Moment.CHECKPOINT:
        folder = around.folder / "checkpoints"
        drill.until(lambda: any(folder.glob(f"step-*{SAVED_STEP}")), "a checkpoint")
    else:
        drill.until(lambda: digests_of(around.scratch), "the last step")


def _undo(undo: acts.Undo, problems: list[str]) -> None:
    try:
        undo()
    except (OSError, AssertionError) as error:
        problems.append(f"it could not be brought back: {error}")


def _watch(drill: Drill, struck_s: float, *, within_s: float, cold: bool) -> tuple[float, int]:
    """Return the longest time after the fault without a newly committed step, and the exit code."""
    moved_s, step, longest_s = struck_s, drill.step, 0.0
    bound_s = within_s + (30.0 if cold else 0.0)  # torch has to be imported first
    while (code := drill.process.poll()) is None:
        now_s = time.monotonic()
        if (newest := drill.step) != step:
            longest_s, moved_s, step = max(longest_s, now_s - moved_s), now_s, newest
        if now_s - moved_s > bound_s:
            raise AssertionError(f"nothing has moved for {bound_s:g} s, at step {step}\n{drill}")
        time.sleep(0.02)
    return max(longest_s, time.monotonic() - moved_s), code


def digests_of(scratch: Path) -> Digests:
    """Return the newest digest of each rank. Where the code after the last step ran again, all
    agree.
    """
    path = scratch / "commits.digests"
    lines = path.read_text().splitlines() if path.exists() else []
    return {int(rank): digest for rank, digest in (line.split() for line in lines)}


def _wrong(row: Row, around: Around, code: int, expected: Digests) -> list[str]:
    wrong = []
    at_end = around.moment is Moment.END
    codes = {*row.codes, *((0,) if at_end else ())}
    if code not in codes:
        wrong.append(f"exit code {code}, not {sorted(codes)}")
    if code == 0 and (found := digests_of(around.scratch)) != expected:
        wrong.append(f"the weights are not equal: {found}, not {expected}")
    said = around.drill.stderr
    # at the end there may be no time to say it
    if not re.search(row.said, said, re.DOTALL) and not at_end:
        wrong.append(f"nobody said {row.said!r}")
    # otherwise it may come from the script
    if _is_traceback_wrong(said, around.moment) and not row.does:
        wrong.append("a traceback on the console")
    state, told = _state_of(code), _reported(around.folder)
    # some rows remove the ledger, or what would have been written to it
    if told not in ("", state) and row.sees not in (LEDGER_SEES, GONE_SEES) and code != 2:
        wrong.append(f"the report says {told!r}, and the run has {state}")
    return wrong


def _is_traceback_wrong(said: str, moment: Moment) -> bool:
    """Return whether the console shows a traceback that should not appear.

    While the script sets up its model, a survivor may be in a collective of torch. It then ends as
    under torchrun, with an error that says that its peer is gone.
    """
    if "Traceback" not in said:
        return False
    of_survivors = re.search(
        r"^\[rank\d+\]: .*(Connection (reset|closed)|peer)", said, re.MULTILINE
    )
    return moment is not Moment.START or of_survivors is None or "\nTraceback" in said


def _state_of(code: int) -> str:
    """Return the state of a run that has ended with this exit code."""
    if code < 0:
        return "lost"
    return "ended" if code == 0 else "stopped" if code > 128 else "failed"


def _reported(folder: Path) -> str:
    """Return the state that `outlast report` shows, or "" if no run had begun or its disk
    is gone.
    """
    try:
        return look(str(folder)).state
    except OutlastError:
        return ""


def _resumed(scratch: Path, flags: tuple[str, ...], expected: Digests) -> list[str]:
    (scratch / "commits.digests").unlink(missing_ok=True)
    given = ("--resume", *flags)
    with Drill(scratch, "quick.py", "--steps", STEPS, workers=2, flags=given) as drill:
        outcome = drill.finish()
    if outcome.code != 0:
        return [f"--resume ended with {outcome.code}\n{outcome}"]
    found = digests_of(scratch)
    return [] if found == expected else [f"after --resume the weights are not equal: {found}"]
