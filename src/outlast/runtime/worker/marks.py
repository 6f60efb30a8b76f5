"""Places in a worker's life where a drill can inject a fault.

`mark(name)` does nothing unless the environment holds a plan, in OUTLAST_DRILL: a JSON object
    {"mark": name, "rank": r, "step": n, "generation": g, "do": what, "once": path}
do        "SIGKILL", "SIGSTOP", "exit", "raise" or "sleep"
step      at or after it (default 0);  generation: at or after it (default 0; a run begins with 1);
          rank: -1 for any
once      a file that is made when the fault fires: it fires only while the file does not exist, so
          a replaced process is spared
A list of such objects is a plan of several faults.

A fault can also be ordered while the run goes on. OUTLAST_DRILL_FOLDER names a folder, and a file
`rank-<rank>` in it is an order for that rank: {"id", "do"}. The rank carries it out once, at its
next optimizer call, and notes in `fired-<id>` when that was (`outlast drill`).

    stepping   before the first optimizer call of a step
    stepped    after an optimizer call of a script without outlast calls; `step` counts the calls
    prepared   private state of the step is sealed           voting     about to enter the vote
    passed     the vote passed here                          applied    the block is over, the step
               not yet counted
    sealing    about to copy an image into the vault         sealed     it is sealed
    committed  the step is counted                           still      about to say what this rank
               holds
    settled    the step in flight is settled                 donating   about to write the transfer
               image
    grouping   about to build the next group                 grouped    it stands
    restoring  about to load state                           joined     in the new generation
    saving     about to copy a checkpoint                    finishing  past the last step
    keeping    about to copy the state into the vault
"""

from __future__ import annotations

import json
import os
import signal
import time
from typing import Any

from outlast.runtime.worker import drill_code


class Drilled(RuntimeError):
    """The error that a drill raises in a script."""


def any_planned() -> bool:
    """Return whether this process has anything to strike at."""
    return bool(_plan or _folder)


def mark(name: str, *, rank: int, step: int, generation: int) -> None:
    """Strike here if the plan or an order says so."""
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
