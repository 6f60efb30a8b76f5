"""Who is killed when: a Poisson process drawn ahead from a seed, and the hand that strikes.

Units      seconds since the run's first step.
Method     Gaps are exponential, ranks uniform; both are inverse transforms of uniforms, one stream
           each. A strike finds the rank's process by the beacons in shared memory, the successor in
           boot included. Where a rank has no living process at that moment, the next rank in order
           that has one is struck: the failures of a run do not wait for its recovery.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.random import PCG64, Generator, SeedSequence

from outlast.model.beacon import unpack

_GAPS, _RANKS = 0, 1


@dataclass(frozen=True, slots=True)
class Strike:
    at_s: float
    rank: int


@dataclass(frozen=True, slots=True)
class Struck:
    """Say what came of one strike. `late_s`: behind the drawn time; pid 0: nobody was alive."""

    rank: int
    pid: int
    late_s: float
    phase: str


def draw(*, seed: int, mttf_s: float, duration_s: float, world_size: int) -> list[Strike]:
    """Draw all strikes of a run, in their order.

    `mttf_s` is that of the whole run. A longer run begins like a shorter one.
    """
    gaps, ranks = (
        Generator(PCG64(SeedSequence(seed, spawn_key=(purpose,)))) for purpose in (_GAPS, _RANKS)
    )
    strikes: list[Strike] = []
    at_s = 0.0
    while True:
        at_s -= mttf_s * float(np.log1p(-gaps.random()))
        if at_s >= duration_s:
            return strikes
        strikes.append(Strike(at_s, int(ranks.random() * world_size)))


def holders(vault: Path) -> dict[int, tuple[int, str]]:
    """Return the living process that holds each rank, and the phase it is in."""
    found: dict[int, tuple[int, int, str]] = {}
    for path in vault.glob("beacon-*"):
        with contextlib.suppress(OSError):
            beacon = unpack(memoryview(path.read_bytes()))
            if beacon is not None and beacon.rank >= 0 and is_alive(beacon.pid):
                found[beacon.rank] = max(
                    (beacon.worker, beacon.pid, beacon.phase.value),
                    found.get(beacon.rank, (-1, 0, "")),
                )
    return {rank: (pid, phase) for rank, (_, pid, phase) in found.items()}


def is_alive(pid: int) -> bool:
    """Return whether this process lives. A zombie does not."""
    try:
        return (
            Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[0]
            not in "ZX"
        )
    except (OSError, IndexError):
        return False


def carry_out(
    strikes: Sequence[Strike], vault: Path, *, began_s: float, world_size: int
) -> list[Struck]:
    """Strike at the drawn times, on the monotonic clock from `began_s`."""
    done = []
    for strike in strikes:
        time.sleep(max(0.0, began_s + strike.at_s - time.monotonic()))
        done.append(_strike(strike, vault, began_s=began_s, world_size=world_size))
    return done


def _strike(strike: Strike, vault: Path, *, began_s: float, world_size: int) -> Struck:
    for _ in range(3):  # who ends between look and blow is looked for again
        alive = holders(vault)
        for rank in ((strike.rank + more) % world_size for more in range(world_size)):
            if rank in alive:
                pid, phase = alive[rank]
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                    return Struck(rank, pid, time.monotonic() - began_s - strike.at_s, phase)
    return Struck(-1, 0, time.monotonic() - began_s - strike.at_s, "")
