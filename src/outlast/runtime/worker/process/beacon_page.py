"""What a worker publishes: its beacon in shared memory, and its book of seconds.

The agent reads the beacon at each tick, and the ledger gets the seconds from it when the worker has
ended. So both outlive the process.
"""

from __future__ import annotations

from collections.abc import Mapping

from outlast.engine.protocol.worker import WorkerMachine
from outlast.model.beacon import Beacon, pack_into
from outlast.model.booking import Book
from outlast.model.gauges import Gauges
from outlast.model.gauges import pack_into as pack_gauges
from outlast.model.terms import TIERS, Cause, Phase, Tier

# the tier of a save during which training pauses in this phase
_TIER = {Phase.SNAPSHOT: Tier.MEMORY, Phase.CHECKPOINT: Tier.LOCAL}
_FORGET = 0.99  # the factor by which a long phase is forgotten, per occurrence


class BeaconPage:
    """The beacon of one worker, and the book in which its seconds are counted.

    `enter` is called whenever the main thread reaches another phase. It switches the book, learns
    how long the phase before has lasted, and publishes the beacon. If the beacon does not change,
    the worker makes no progress.
    """

    def __init__(self, page: memoryview, beacon: Beacon, *, now_s: float) -> None:
        self.beacon = beacon
        self.book = Book(now_s=now_s, cause=Cause.STARTUP)
        self._page = page
        self._since_s = now_s  # when the main thread reached the phase that it is in
        self._met: set[Phase] = set()  # phases that have ended normally at least once
        self._gauges = Gauges()

    def show_target(self, step: int) -> None:
        """Show which step is the last one of the loop."""
        self._gauges.target = step
        pack_gauges(self._page, self._gauges)

    def show_logged(self, step: int, values: Mapping[str, float]) -> None:
        """Show what was logged in a step that is committed."""
        self._gauges.step, self._gauges.values = step, values
        pack_gauges(self._page, self._gauges)

    def take_rank(self, rank: int, *, now_s: float) -> None:
        """Begin the book of a spare that was given `rank`: earlier seconds belong to no rank."""
        self.book = Book(now_s=now_s, cause=Cause.REGROUP)
        self.beacon.stalls = dict.fromkeys(TIERS, 0.0)
        self.beacon.rank = rank

    def enter(
        self,
        phase: Phase,
        *,
        cause: Cause | None,
        learn: bool,
        now_s: float,
        tier: Tier | None = None,
    ) -> None:
        """Note that the main thread is in `phase` from now on.

        cause   what the seconds from now on are booked as; None: no change
        learn   the phase before ended normally, so its length counts
        tier    the tier that a stall which ends here was for; None: the usual one of its phase
        """
        if learn:
            self._learn(self.beacon.phase, now_s - self._since_s)
        if cause is not None:
            before = self.book.switch(now_s=now_s, cause=cause)
            tier = tier or _TIER.get(self.beacon.phase)
            if before is Cause.STALL and tier is not None:
                self.beacon.stalls[tier] += max(0.0, now_s - self._since_s)
        self.beacon.phase = phase
        self._since_s = now_s

    def _learn(self, phase: Phase, lasted_s: float) -> None:
        """Learn how long a phase lasts, except from its first time.

        Compiling, forking loaders and first use of memory would give a deadline that no later step
        needs.
        """
        if phase in self._met:
            self.beacon.typical_s[phase] = max(lasted_s, self.beacon.typical_s[phase] * _FORGET)
        self._met.add(phase)

    def publish(
        self, machine: WorkerMachine, *, counts_steps: bool, learned: bool, now_s: float
    ) -> None:
        """Write the beacon. Its tables of seconds are written only if they have changed.

        The settled seconds change together with the time from which the others are counted.

        counts_steps   the protocol machine counts the steps; otherwise the onlooker does
        learned        the table of typical seconds has changed
        """
        beacon = self.beacon
        seconds, since_s, cause = self.book.settled()
        beacon.generation, beacon.prepared = machine.generation, max(machine.prepared, 0)
        if counts_steps:
            beacon.step = max(machine.committed, 0)
        beacon.sealed = machine.sealed[0] if machine.sealed else 0
        beacon.beats += 1
        beacon.at_ns = int(now_s * 1e9)
        since_ns = int(since_s * 1e9)
        moved = since_ns != beacon.since_ns or cause is not beacon.cause
        beacon.opened_ns, beacon.since_ns, beacon.cause, beacon.seconds = (
            int(self.book.opened_s * 1e9),
            since_ns,
            cause,
            seconds,
        )
        pack_into(self._page, beacon, seconds=learned or moved)
