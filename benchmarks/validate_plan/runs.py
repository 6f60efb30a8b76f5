"""One real run under `outlast run`: started, struck, stopped, its ledger read.

Units      seconds. A run begins with its first step, committed by all ranks; strikes and duration
           count from there. Then SIGTERM ends it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.validate_plan.measured import Measured, measured
from benchmarks.validate_plan.predict import Variant
from benchmarks.validate_plan.strikes import Strike, Struck, carry_out, is_alive
from outlast.errors import OutlastError
from outlast.model.beacon import unpack
from outlast.model.records import Records
from outlast.runtime.folders.run_folder import read_card
from outlast.runtime.ledger.view import look
from outlast.runtime.tiers.vault_owner import vault_folder

OUTLAST = str(Path(sys.executable).with_name("outlast"))
JOB = Path(__file__).with_name("job.py")
START_S, END_S = 120.0, 120.0
LOOK_S = 0.02
STOPPED = (0, 128 + signal.SIGTERM)


@dataclass(frozen=True)
class Ran:
    """`wrong`: why the run tells nothing; "" if it does.

    `busy_cores`: cores of this machine that were not idle meanwhile, those that the run used
    included.

    others: programs besides the run that wanted a core at its end: the load average of the last
    minute, less a core's worth for each rank.
    """

    records: Records | None
    run: Measured | None
    struck: tuple[Struck, ...]
    busy_cores: float
    others: float
    wrong: str


def carry_out_run(
    variant: Variant, strikes: Sequence[Strike], folder: Path, *, pause_s: float
) -> Ran:
    """Run it, for its duration and what starting and ending take."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    flags = [
        "--nproc-per-node",
        variant.world_size,
        "--spares",
        variant.spares,
        "--snapshot-every",
        variant.snapshot_every,
        "--run-dir",
        folder,
    ]
    command = [str(word) for word in (OUTLAST, "run", *flags, JOB, "--step-s", pause_s)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with folder.with_suffix(".log").open("wb") as log:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=environment,
            start_new_session=True,
        )
    try:
        return _struck(process, variant, strikes, folder)
    finally:
        if process.poll() is None:
            process.kill()  # its workers die with it
        process.wait(10)


def _struck(
    process: subprocess.Popen[bytes], variant: Variant, strikes: Sequence[Strike], folder: Path
) -> Ran:
    if not _until(lambda: _first_step_is_done(folder, variant.world_size), process):
        return Ran(
            None,
            None,
            (),
            0.0,
            0.0,
            f"no first step within {START_S:g} s; see {folder.with_suffix('.log')}",
        )
    began_s, busy_s = time.monotonic(), _busy_s()
    struck = carry_out(
        strikes,
        vault_folder(str(read_card(folder)["run"])),
        began_s=began_s,
        world_size=variant.world_size,
    )
    time.sleep(max(0.0, began_s + variant.duration_s - time.monotonic()))
    busy_cores = (_busy_s() - busy_s) / (time.monotonic() - began_s)
    others = max(0.0, os.getloadavg()[0] - variant.world_size)
    early = process.poll()
    if early is None:
        process.send_signal(signal.SIGTERM)
    try:
        code = process.wait(END_S)
    except subprocess.TimeoutExpired:
        return Ran(
            None,
            None,
            tuple(struck),
            busy_cores,
            others,
            f"did not end within {END_S:g} s of SIGTERM",
        )
    if early is not None or code not in STOPPED:
        return Ran(
            None,
            None,
            tuple(struck),
            busy_cores,
            others,
            f"ended by itself with {code}: {look(str(folder)).records.sessions[-1].session.reason}",
        )
    missed = sum(one.pid == 0 for one in struck)
    records = look(str(folder)).records
    return Ran(
        records,
        measured(records),
        tuple(struck),
        busy_cores,
        others,
        f"{missed} strikes found nobody alive" if missed else "",
    )


def _until(condition: Callable[[], bool], process: subprocess.Popen[bytes]) -> bool:
    end_s = time.monotonic() + START_S
    while time.monotonic() < end_s and process.poll() is None:
        if condition():
            return True
        time.sleep(LOOK_S)
    return False


def _first_step_is_done(folder: Path, world_size: int) -> bool:
    steps: dict[int, int] = {}
    with contextlib.suppress(OSError, OutlastError):
        for path in vault_folder(str(read_card(folder)["run"])).glob("beacon-*"):
            beacon = unpack(memoryview(path.read_bytes()))
            if beacon is not None and beacon.rank >= 0 and is_alive(beacon.pid):
                steps[beacon.rank] = beacon.step
    return len(steps) == world_size and min(steps.values()) >= 1


def _busy_s() -> float:
    """Processor seconds of all cores since boot, idle and waiting apart."""
    fields = [int(word) for word in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    return (sum(fields) - fields[3] - fields[4]) / os.sysconf("SC_CLK_TCK")
