"""The ledger of a simulated run, as far as a coordinator that restarts reads it."""

from __future__ import annotations

import math
from typing import Any

from outlast.model import limits
from outlast.model.records import Event, Generation, Interruption
from outlast.model.waits import Spans, drains, node_waits
from outlast.sim.rules.final_observations import RecordRewritten
from outlast.sim.world.frame import Frame


class SimulatedLedger:
    """The ledger. When the coordinator dies, the records of the last `LEDGER_FLUSH_S` are lost."""

    def __init__(self, frame: Frame) -> None:
        self.records: list[tuple[float, Any]] = []
        self._frame = frame
        # for each interruption, the newest record and the epoch of the coordinator that wrote it
        self._newest: dict[int, tuple[int, Interruption]] = {}

    def add(self, record: Any, *, at_once: bool) -> None:
        """Write a record. With `at_once`, it is on the disk before anything else happens."""
        self.records.append((-math.inf if at_once else self._frame.now_s, record))

    def rewrite(self, record: Interruption, *, epoch: int) -> None:
        """Let the rules see how a coordinator changes its record of an interruption."""
        before = self._newest.get(record.id)
        if before is not None and epoch == before[0]:
            self._frame.see(RecordRewritten(before[1], record))
        self._newest[record.id] = epoch, record

    def lose_unflushed(self) -> None:
        """Drop the records that are not on the disk, because the coordinator dies."""
        flushed_s = self._frame.now_s - limits.LEDGER_FLUSH_S
        self.records = [(at_s, record) for at_s, record in self.records if at_s < flushed_s]

    @property
    def interruptions(self) -> dict[int, Interruption]:
        """Return the newest record of each interruption, by its number."""
        return {record.id: record for _, record in self.records if isinstance(record, Interruption)}

    @property
    def drains(self) -> frozenset[int]:
        """Return the numbers of the interruptions that were drains."""
        return drains(self._events())

    def node_waits(self, *, end_s: float) -> Spans:
        """Return when the run waited for a node."""
        begun = [record for _, record in self.records if isinstance(record, Generation)]
        return node_waits(self._events(), begun, end_s=end_s)

    def _events(self) -> list[Event]:
        return [record for _, record in self.records if isinstance(record, Event)]

    def has_noted(self, kind: str) -> bool:
        """Return True if there is an event of this kind."""
        return any(isinstance(record, Event) and record.kind == kind for _, record in self.records)
