"""How far the training has come and how long it will still take, for the people who watch a run.

Nothing here decides anything. Times are monotonic seconds of this launcher. Only the `at_s` of a
checkpoint counts from the start of the run, as the times of interruptions do.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

from outlast.engine.coordinator.copies import count_copies
from outlast.engine.coordinator.machine import Coordinator
from outlast.model.gauges import Gauges
from outlast.model.records import Event, Records
from outlast.model.verdict import summary

PACE_WINDOW_S = 600.0  # the time left is estimated from the newest steps, of this long
_SAMPLES_COUNT = 60
_VERDICTS_COUNT = 20  # of the newest interruptions


class Outlook:
    """The target, the loss and the last checkpoint, for the snapshot of `outlast status`.

    records   what the ledger holds at the start
    """

    def __init__(self, records: Records) -> None:
        self.run = records.meta.run
        self._began_s = records.sessions[-1].began_s
        self._gauges = Gauges()
        self._checkpoint: dict[str, object] | None = None
        self._verdicts: dict[int, str] = {}
        self._pace: deque[tuple[float, int]] = deque()
        for part in records.sessions:
            for one in part.events:
                self._note(one, part.began_s)

    def note(self, event: Event) -> None:
        """Remember an event of the ledger, if it is a checkpoint or a verdict."""
        self._note(event, self._began_s)

    def _note(self, event: Event, began_s: float) -> None:
        if event.kind == "checkpoint":
            self._checkpoint = {
                "step": event.data.get("step"),
                "at_s": round(event.at_s - began_s, 6),
                "folder": event.data.get("folder"),
            }
        elif event.kind == "verdict":
            said, number = event.data.get("verdict"), event.data.get("interruption")
            if isinstance(said, Mapping) and isinstance(number, int):
                self._verdicts[number] = summary(said)
                while len(self._verdicts) > _VERDICTS_COUNT:
                    del self._verdicts[next(iter(self._verdicts))]

    def note_gauges(self, said: Gauges | None) -> None:
        """Remember the target and the logged values of rank 0.

        If there are no gauges, or if the rank has logged nothing yet, the values stay as they are.
        """
        if said is not None:
            # a replacement has a target before it has logged anything
            self._gauges = (
                said if said.step else Gauges(said.target, self._gauges.step, self._gauges.values)
            )

    def verdict(self, interruption: int) -> str | None:
        """Return the verdict on an interruption as one line, or None while there is none."""
        return self._verdicts.get(interruption)

    def facts(self, step: int, coordinator: Coordinator, *, now_s: float) -> dict[str, object]:
        """Return a part of the keys of `outlast status --json`."""
        target = self._gauges.target or None
        return {
            "target_step": target,
            "time_left_s": self._time_left_s(step, target, now_s),
            "logged": (
                {"step": self._gauges.step, "values": dict(self._gauges.values)}
                if self._gauges.step
                else None
            ),
            "last_checkpoint": self._checkpoint,
            "redundancy": count_copies(
                coordinator.roster,
                kept_step=coordinator.run.sources.kept_step,
                at_peers=coordinator.run.options.peer_copies > 0,
                parity=coordinator.run.options.parity is not None,
            ),
        }

    def _time_left_s(self, step: int, target: int | None, now_s: float) -> float | None:
        """Return the seconds to the target step at the pace of the last PACE_WINDOW_S.

        The time of interruptions is included. The result is None if there is no target or no pace
        yet.
        """
        if len(self._pace) == 1 and self._pace[0][1] == step:
            self._pace.clear()  # the start does not belong to the pace
        if not self._pace or now_s >= self._pace[-1][0] + PACE_WINDOW_S / _SAMPLES_COUNT:
            self._pace.append((now_s, step))
        while len(self._pace) > 1 and self._pace[1][0] <= now_s - PACE_WINDOW_S:
            self._pace.popleft()
        if target is None:
            return None
        from_s, from_step = self._pace[0]
        if step >= target:
            return 0.0
        if step <= from_step:
            return None
        return round((target - step) * (now_s - from_s) / (step - from_step), 3)
