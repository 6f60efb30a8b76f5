"""A run of two ranks and one spare, written through the store as the launcher writes it: one
SIGKILL with a child, one hang.

Made-up clock: the first launcher starts at monotonic 100 s. Rank 1's process (worker 2) is killed
at 110.0, its replacement (worker 3) takes the rank at 110.01, dies at 110.05 and is followed by
worker 4.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from pathlib import Path

from outlast.model.records import Event, Generation, Interruption, Life, Meta, StepsBucket
from outlast.model.terms import Cause, FailureClass, Mechanism, Rung
from outlast.runtime import clock
from outlast.runtime.folders import run_folder
from outlast.runtime.folders.run_folder import RunFolder
from outlast.runtime.ledger.store import Ledger

P, S, R = Cause.PRODUCTIVE, Cause.STARTUP, Cause.REGROUP
ZERO_S = 100.0

META = Meta(
    run="20260102T030405Z-toy-abc123",
    name="toy",
    world_size=2,
    version="0.1.0",
    started_s=ZERO_S,
    started_wall_s=1_767_323_045.0,
)

KILL = Interruption(
    id=1,
    mechanism=Mechanism.SIGNAL,
    detected_s=110.002,
    ranks=(1,),
    pids=(1002,),
    nodes=("here",),
    rung=Rung.SPARE,
    generation=0,
    step=131,
    fault_s=110.0,
    fault_not_before_s=109.95,
    left_s=110.006,
    regrouped_s=110.06,
    restored_s=110.08,
    resumed_s=110.1,
    steps_repeated=1,
    reason="signal 9 (SIGKILL); a hot spare was parked",
)
CHILD = Interruption(
    id=2,
    parent=1,
    mechanism=Mechanism.EXIT,
    detected_s=110.051,
    ranks=(1,),
    pids=(1003,),
    nodes=("here",),
    rung=Rung.RESPAWN,
    generation=1,
    step=131,
    fault_s=110.05,
    fault_not_before_s=109.95,
    resumed_s=110.1,
    reason="exit code 7 during regroup",
)
HANG = Interruption(
    id=3,
    mechanism=Mechanism.HANG,
    detected_s=116.0,
    ranks=(0,),
    pids=(1001,),
    nodes=("here",),
    rung=Rung.RESPAWN,
    generation=2,
    step=170,
    fault_not_before_s=115.0,
    resumed_s=116.25,
    steps_repeated=1,
    failure_class=FailureClass.USER_CODE,
    reason="no beacon for 1.0 s in body",
)

LIVES = (
    Life(
        1,
        1001,
        "here",
        0,
        "rank",
        101.0,
        opened_s=101.0,
        ended_s=116.01,
        seconds={S: 1.0, P: 13.0},
        cause=P,
        end="killed: hang",
    ),
    Life(
        2,
        1002,
        "here",
        1,
        "rank",
        101.0,
        opened_s=101.0,
        ended_s=110.002,
        seconds={S: 1.0, P: 7.95},
        cause=P,
        end="signal 9",
    ),
    Life(3, 1003, "here", -1, "hot", 101.5, ended_s=110.01, end="took rank 1"),
    Life(
        3,
        1003,
        "here",
        1,
        "rank",
        110.01,
        opened_s=110.012,
        ended_s=110.051,
        seconds={},
        cause=R,
        end="exit 7",
    ),
    Life(
        4,
        1004,
        "here",
        1,
        "rank",
        110.051,
        opened_s=110.052,
        ended_s=119.0,
        seconds={S: 0.01, R: 0.03, P: 8.898},
        cause=Cause.SHUTDOWN,
        end="finished",
    ),
    Life(
        5,
        1005,
        "here",
        0,
        "rank",
        116.02,
        opened_s=116.03,
        ended_s=119.0,
        seconds={R: 0.2, P: 2.7},
        cause=Cause.SHUTDOWN,
        end="finished",
    ),
)

SNAPSHOT = {
    "state": "training",
    "generation": 2,
    "step": 200,
    "steps_per_s": 10.0,
    "workers": [
        {"rank": 0, "pid": 1005, "node": "here", "state": "training"},
        {"rank": 1, "pid": 1004, "node": "here", "state": "training"},
    ],
    "spares": [{"pid": 1006, "kind": "hot", "node": "here"}],
}


def fill(ledger: Ledger) -> None:
    """Everything but the session's end."""
    ledger.add(Generation(0, 2, 101.0, (1, 2)))
    ledger.add(Generation(2, 2, 110.06, (1, 4)))
    for record in (*LIVES, KILL, CHILD, HANG):
        ledger.add(record)
    ledger.add(Event(101.5, META.started_wall_s + 1.5, "script", {"sharded": False}))
    ledger.add(StepsBucket(102.0, 110.0, 0, 131, 0.05, 0.06, 0.2, {"loss": 4.0, "rate": 0.1}))
    ledger.add(StepsBucket(110.0, 119.0, 131, 200, 0.05, 0.07, 0.3, {"loss": 3.0}))
    ledger.add(
        Event(
            105.0,
            META.started_wall_s + 5,
            "warning",
            {"text": "the module 'head' is not registered in run.state"},
        )
    )
    ledger.set_snapshot(SNAPSHOT, now_s=119.0)
    ledger.flush()


def ended_run(root: Path, *, state: str = "ended", exit_code: int = 0, reason: str = "") -> Path:
    """The folder of the whole run, over after 20 seconds."""
    folder = RunFolder.create(root / META.name, name=META.name, version="0.1.0", options={})
    ledger = Ledger.create(folder.ledger, META, pid=os.getpid())
    fill(ledger)
    ledger.end_session(ended_s=ZERO_S + 20.0, state=state, exit_code=exit_code, reason=reason)
    ledger.close()
    folder.close()
    return folder.path


def lost_run(root: Path) -> Path:
    """The launcher vanished after its last snapshot, at 119 s."""
    folder = RunFolder.create(root / META.name, name=META.name, version="0.1.0", options={})
    ledger = Ledger.create(folder.ledger, META, pid=os.getpid())
    fill(ledger)
    ledger.close()
    folder.close()
    return folder.path


def live_run(root: Path) -> tuple[RunFolder, Ledger]:
    """A run that this process holds, begun ten seconds ago; one rank lives.

    The caller closes both.
    """
    folder = run_folder.RunFolder.create(
        root / META.name, name=META.name, version="0.1.0", options={}
    )
    now_s = clock.now_s()
    ledger = Ledger.create(
        folder.ledger,
        Meta("live", "toy", 1, "0.1.0", now_s - 10, clock.wall_s() - 10),
        pid=os.getpid(),
    )
    ledger.add(
        Life(1, 1001, "here", 0, "rank", now_s - 10, opened_s=now_s - 10, seconds={S: 4.0}, cause=P)
    )
    ledger.flush()
    return folder, ledger


def overwrite(ledger: Path, table: str) -> None:
    """Damage a ledger: overwrite the root page of one table."""
    with contextlib.closing(sqlite3.connect(ledger)) as connection:
        (page,) = connection.execute(
            "SELECT rootpage FROM sqlite_master WHERE name = ?", (table,)
        ).fetchone()
    with ledger.open("r+b") as file:
        file.seek(4096 * (page - 1))
        file.write(b"\xff\x13" * 2048)
