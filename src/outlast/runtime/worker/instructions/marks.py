"""Marks: the places in the course of a worker at which a drill can inject a fault.

`mark(name)` does nothing, unless the environment variable OUTLAST_DRILL holds a plan. A plan is a
JSON object, or a list of such objects for several faults:

    {"mark": name, "rank": r, "step": n, "generation": g, "do": what, "once": path}

    mark         the name of the mark, from the table below
    rank         the rank that is struck; -1, the default, for any rank
    step         the fault fires at this step or later (default 0)
    generation   the fault fires in this generation or later (default 0; a run begins with 1)
    do           "exit", "raise", "sleep", or a signal such as "SIGKILL" or "SIGSTOP"
    once         a file that is made when the fault fires. The fault fires only while the file does
                 not exist, so it spares the process that replaces the struck one

A fault can also be ordered while the run goes on (`outlast drill`). OUTLAST_DRILL_FOLDER names a
folder, and a file `rank-<rank>` in it is an order for that rank: {"id", "do"}. The rank carries it
out once, at its next optimizer call, and writes the time into `fired-<id>`.

    mark         what the worker does there
    stepping     it is about to make the first optimizer call of a step
    stepped      it has made an optimizer call, in a script without outlast calls; `step` counts
                 these calls
    sealing      it is about to copy an image into the vault
    sealed       it has sealed that image
    prepared     it has sealed the private state of the step
    voting       it is about to vote
    passed       it has seen the vote pass
    applied      the block of the step is over, but the step is not counted yet
    committed    it has counted the step
    saving       it is about to copy a checkpoint
    keeping      it is about to copy its state into the vault
    still        it is about to report what it holds, after a fault
    settled      it has rolled back the step that was not committed
    donating     it is about to write the transfer image
    grouping     it is about to build the next process group
    grouped      it has built that group
    restoring    it is about to load state
    joined       it has joined the new generation
    finishing    it is past the last step
"""

from __future__ import annotations

import json
import os
import signal
import time
from typing import Any

from outlast.runtime.worker.instructions import drill_code


class Drilled(RuntimeError):
    """The error that a drill raises in a script."""


def any_planned() -> bool:
    """Return whether a fault is planned, or may be ordered, for this process."""
    return bool(_plan or _folder)


def mark(name: str, *, rank: int, step: int, generation: int) -> None:
    """Let a fault strike here, if the plan or an order says so."""
    if _folder and name in _ORDERED_AT:
        drill_code.obey(_folder, rank=rank, step=step)
    for fault in _plan:
        here = fault["mark"] == name and fault.get("rank", -1) in (-1, rank)
        if (
            here
            and step >= fault.get("step", 0)
            and generation >= fault.get("generation", 0)
            and _take(fault)
        ):
            _strike(fault)


def _take(fault: dict[str, Any]) -> bool:
    try:
        os.close(os.open(fault["once"], os.O_CREAT | os.O_EXCL | os.O_WRONLY))
    except FileExistsError:
        return False
    return True


def _strike(fault: dict[str, Any]) -> None:
    do = fault["do"]
    if do == "raise":
        raise Drilled(f"a drill at {fault['mark']}")
    if do == "exit":
        os._exit(int(fault.get("code", 7)))
    if do == "sleep":
        time.sleep(float(fault.get("for_s", 3600.0)))
    else:
        os.kill(os.getpid(), signal.Signals[do])


def _read_plan() -> list[dict[str, Any]]:
    text = os.environ.get("OUTLAST_DRILL", "")
    value = json.loads(text) if text else []
    return value if isinstance(value, list) else [value]


_ORDERED_AT = ("stepping", "stepped")
_folder = os.environ.get("OUTLAST_DRILL_FOLDER", "")
_plan = _read_plan()
