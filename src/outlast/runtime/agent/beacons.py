"""The beacons of a node's workers: where each stands, and how it has spent its time.

A worker writes its beacon into shared memory, and the agent reads it there. From the beacons the
agent learns of hangs, and the ledger learns of seconds and steps. This module decides nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeVar

from outlast.engine.agent.worker_watch import Reading
from outlast.engine.protocol.outputs import Spawn
from outlast.model import limits
from outlast.model.beacon import Beacon, unpack
from outlast.model.gauges import Gauges
from outlast.model.gauges import unpack as unpack_gauges
from outlast.model.records import Life
from outlast.model.terms import Cause
from outlast.runtime import clock
from outlast.runtime.agent.processes import Exited
from outlast.runtime.agent.starving import Starving
from outlast.runtime.linux import is_stopped
from outlast.runtime.tiers.vault import Vault

_Name = TypeVar("_Name")
_OLD_ENOUGH_S = limits.STOPPED_FLOOR_S / 2


@dataclass(slots=True)
class _Known:
    """The known facts about one process. It counts as a spare until its beacon has a rank."""

    worker: int
    kind: str
    started_s: float
    pid: int = 0
    rank: int = -1
    page: memoryview | None = None
    beacon: Beacon | None = None
    starving: Starving | None = None  # set while it is observed closely


@dataclass(frozen=True)
class BeaconNews:
    """The receivers of what the beacons show.

    over   gets a life that has ended: its process is gone, or a spare has taken a rank
    step   gets the newest step that a rank has committed, and when that was seen
    """

    over: Callable[[Life], object]
    step: Callable[[int, float], object]


class Beacons:
    """Read the beacons of one node's workers: `started` when one is ordered, `ended` at its end."""

    def __init__(self, vault: Vault, *, node: str, news: BeaconNews) -> None:
        self._vault = vault
        self._node = node
        self._news = news
        self._known: dict[int, _Known] = {}

    def started(self, order: Spawn) -> None:
        """Note that a worker is about to be started."""
        self._known[order.worker] = _Known(order.worker, order.kind, clock.now_s(), rank=order.rank)

    def forked(self, worker: int, pid: int) -> None:
        """Note the process of a worker."""
        if worker in self._known:
            self._known[worker].pid = pid

    def look(self, worker: int, pid: int, *, now_s: float, closely: bool = False) -> Reading | None:
        """Read one worker's beacon. Return None while there is none.

        `closely`: as in `Agent.looks_closely`.
        """
        known = self._known.get(worker)
        if known is None:
            return None
        beacon = self._read(known)
        # It is being written, so the last one that was read still counts
        if beacon is not None and beacon.torn:
            beacon = known.beacon
        if beacon is None:
            return None
        if beacon.rank >= 0 and known.rank < 0:
            self._promoted(known, beacon)
        moved = known.beacon is None or known.beacon.beats != beacon.beats
        known.beacon = beacon
        if known.rank >= 0:
            self._news.step(beacon.step, now_s)
        old = now_s - beacon.at_ns / 1e9 > _OLD_ENOUGH_S
        if not closely or not old or moved:
            known.starving = None
        elif known.starving is None:
            known.starving = Starving(pid)
        starved_s = known.starving.look(now_s=now_s) if known.starving is not None else 0.0
        return Reading(beacon, stopped=old and is_stopped(pid), starved_s=starved_s)

    def ended(self, exited: Exited) -> tuple[Beacon | None, tuple[int, ...]]:
        """End the life of a dead worker. Return its last beacon and the steps sealed in its
        slots.
        """
        known = self._known.pop(exited.worker, None)
        if known is None:
            return None, ()
        beacon = self._read(known)
        if beacon is not None and beacon.rank >= 0 and known.rank < 0:
            self._promoted(known, beacon)
        how = (
            f"signal {exited.signal}"
            if exited.signal is not None
            else f"exit code {exited.exit_code}"
        )
        known.beacon = beacon
        if beacon is not None and known.rank >= 0:
            self._news.step(beacon.step, exited.at_s)
        life = replace(self._life(known), ended_s=exited.at_s, end=how)
        self._news.over(life)
        self._vault.drop_beacon(exited.worker)
        return beacon, self._vault.steps(known.rank) if known.rank >= 0 else ()

    def _promoted(self, known: _Known, beacon: Beacon) -> None:
        opened_s = beacon.opened_ns / 1e9
        self._news.over(
            Life(
                known.worker,
                known.pid,
                self._node,
                -1,
                known.kind,
                known.started_s,
                ended_s=opened_s,
                end="took a rank",
            )
        )
        known.rank, known.kind, known.started_s = beacon.rank, "rank", opened_s

    def _read(self, known: _Known) -> Beacon | None:
        if known.page is None:
            try:
                known.page = self._vault.beacon(known.worker, create=False)
            except OSError:
                return None
        return unpack(known.page)

    def _life(self, known: _Known) -> Life:
        beacon = known.beacon
        opened_s = beacon.opened_ns / 1e9 if beacon is not None and known.rank >= 0 else None
        seconds = dict(beacon.seconds) if beacon is not None and known.rank >= 0 else {}
        stalls = dict(beacon.stalls) if beacon is not None and known.rank >= 0 else {}
        cause = beacon.cause if beacon is not None else Cause.STARTUP
        return Life(
            known.worker,
            known.pid,
            self._node,
            known.rank,
            known.kind,
            known.started_s,
            opened_s,
            None,
            _some(seconds),
            cause,
            stalls=_some(stalls),
        )

    def lives(self) -> list[Life]:
        """Return the lives of all processes that are alive, as their newest beacons show them."""
        return [self._life(known) for known in self._known.values()]

    def gauges(self) -> Gauges | None:
        """Return what rank 0 says of its training. Return None if it is not on this node, or says
        nothing.
        """
        known = (one for one in self._known.values() if one.rank == 0)
        pages = [one.page for one in known if one.page is not None]
        return unpack_gauges(pages[-1]) if pages else None

    def live_beacons(self) -> list[tuple[int, int, Beacon]]:
        """Return worker, pid and newest beacon of all that have one."""
        return [
            (known.worker, known.pid, known.beacon)
            for known in self._known.values()
            if known.beacon is not None
        ]


def _some(seconds: dict[_Name, float]) -> dict[_Name, float]:
    """Return the seconds that are not 0. The ledger is written each second, so it is kept short."""
    return {name: value for name, value in seconds.items() if value}
