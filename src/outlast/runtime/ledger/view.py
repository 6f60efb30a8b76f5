"""A run as seen from outside: its folder, its ledger, and whether its launcher still runs."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from pathlib import Path

from outlast.model.goodput import Accounting, account
from outlast.model.records import Records
from outlast.runtime import clock
from outlast.runtime.folders import run_folder
from outlast.runtime.ledger.pointer import find_ledger
from outlast.runtime.ledger.store import read_ledger

STATES = ("starting", "training", "regrouping", "ending", "ended", "failed", "stopped", "lost")


@dataclass(frozen=True)
class RunView:
    """A run at one moment.

    now_s         the monotonic time up to which seconds count, or None if the run does not go on
                  any more
    copied_ago_s  if a copy of the ledger was read: its age in seconds; None: the ledger itself was
                  read
    note          a sentence about the copy, for people; "" if the ledger itself was read
    """

    path: Path
    records: Records
    now_s: float | None
    copied_ago_s: float | None = None
    note: str = ""

    @property
    def copy_of_ledger(self) -> dict[str, object] | None:
        """Return how old the copy is that was read, and the note; None: it is the ledger itself."""
        if self.copied_ago_s is None:
            return None
        return {"age_s": round(self.copied_ago_s, 3), "note": self.note}

    @functools.cached_property
    def books(self) -> Accounting:
        """Return the account of the run. It is computed once, because a long run takes a while."""
        return account(self.records, now_s=self.now_s)

    @property
    def state(self) -> str:
        """Return one of STATES. "lost": the launcher is gone though the run has not ended."""
        session = self.records.sessions[-1].session
        if session.ended_s is not None:
            return session.state
        if self.now_s is None:
            return "lost"
        said = (self.records.snapshot or {}).get("state")
        return said if isinstance(said, str) and said in STATES else "starting"

    @property
    def is_over(self) -> bool:
        """Return whether the run is over: it ended, or its launcher is gone."""
        return self.now_s is None

    @property
    def step(self) -> int:
        """Return the last committed step.

        For a live run it is what the launcher reported last. For a run that is over it comes from
        the ledger, because the last snapshot is up to a second older than the end.
        """
        said = (self.records.snapshot or {}).get("step")
        return said if isinstance(said, int) and not self.is_over else self.records.newest_step


def look(run: str | None, *, root: Path = run_folder.ROOT) -> RunView:
    """Read the run that RUN names (see run_folder.find). Raises RunFolderError, CorruptError."""
    path = run_folder.find(run, root=root)
    was_held = run_folder.holder(path) is not None
    place = find_ledger(path)
    records = read_ledger(place.path)
    view = RunView(path, records, None, place.copied_ago_s, place.note)
    if records.sessions[-1].session.ended_s is None and run_folder.holder(path) is None:
        if not was_held:
            return view
        # It may have recorded its end between the two looks.
        return replace(view, records=read_ledger(find_ledger(path).path))
    session = records.sessions[-1].session
    if session.ended_s is not None:
        return view
    if view.note:
        # The clock of the other machine is not known here.
        return replace(view, now_s=session.seen_s)
    return replace(view, now_s=max(clock.now_s(), session.seen_s))
