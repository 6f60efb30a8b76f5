"""The copy of a run's ledger that a voter keeps, on its own clock and its own disk.

The records that come from the coordinator first replace the copy (`Keep` of part "first" to
"last"), and are then added to it one by one. `position` says up to which record the copy is
complete. A copy that is replaced stays as it was until the new one has arrived completely.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

from outlast.engine.cluster.voting import Position
from outlast.engine.protocol.reliable_link import Offset
from outlast.errors import CorruptError
from outlast.model.messages import Keep
from outlast.runtime.ledger import record_text
from outlast.runtime.ledger.store import Ledger


class KeptCopy:
    """Keep a copy of the leading node's ledger at `path`.

    A new copy comes in parts and then record by record. Records are numbered. A record that comes
    twice, or before its turn, is ignored: the leading node sends again from `position` on.

    position     the newest record that the copy contains
    ledger       the copy; None until a complete one has arrived
    ends_voting  the record that ends the voting, if it has arrived; the voter sets None once it
                 has acted on it
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.position = Position(0, 0)
        self.ledger: Ledger | None = None
        self.ends_voting: Position | None = None
        # the newest record that has arrived, also of an unfinished copy
        self._coming = Position(0, 0)
        self._parts: list[str] = []
        self._offset = Offset()

    def take(self, keep: Keep, *, now_s: float) -> None:
        """Add a record to the copy, or to the parts of a new copy.

        Raises OutlastError if the disk refuses a whole new copy.
        """
        if keep.epoch > self._coming.epoch:
            self._offset = Offset()
        if keep.part == "first" and (keep.epoch, keep.number) > self._coming:
            self._coming, self._parts = Position(keep.epoch, keep.number - 1), []
        if (keep.epoch, keep.number) != (self._coming.epoch, self._coming.number + 1):
            return  # this record came earlier, or one before it is missing and will be sent again
        self._coming = Position(keep.epoch, keep.number)
        by_s = self._offset.hear(sent_s=keep.sent_s, now_s=now_s)
        if keep.part:
            self._parts.append(keep.record)
            if keep.part == "last":
                self._replace(by_s)
        elif self.ledger is not None:
            self._add(keep.record, by_s)
            self.position = self._coming
            if record_text.ends_voting(keep.record):
                self.ends_voting = self.position

    def _add(self, text: str, by_s: float) -> None:
        assert self.ledger is not None
        try:
            record, _ = record_text.read(text)
        except CorruptError:
            return  # the record was too long to send, so the copy lacks it
        self.ledger.add(record_text.moved(record, by_s))

    def _replace(self, by_s: float) -> None:
        records = record_text.read_all(self._parts, by_s=by_s)
        self.close()
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.ledger = Ledger.copy_of(self.path, records)
        self.position, self._parts = self._coming, []

    def flush(self) -> None:
        """Write what has reached the disk. Raises OutlastError if that refuses."""
        if self.ledger is not None:
            self.ledger.flush()

    def hand_over(self) -> Ledger | None:
        """Return the ledger to the launcher that goes on writing it, and stop keeping it."""
        ledger, self.ledger = self.ledger, None
        return ledger

    def remove(self) -> None:
        """Remove the copy, and its folder if that is empty: the run is over on this node."""
        self.close()
        with contextlib.suppress(OSError):
            for path in self.path.parent.glob(f"{self.path.name}*"):
                path.unlink()
            self.path.parent.rmdir()

    def close(self) -> None:
        """Close the file. What was not flushed is lost."""
        if self.ledger is not None:
            self.ledger.close()
            self.ledger = None
