"""Book every second of a rank under exactly one cause.

A `Book` has one cause at any time. `switch` closes the running stretch and opens the next. The
seconds of a step are provisional until it is committed. `commit_step` keeps them. `roll_back` moves
the productive ones to `repeated`, and those after the fault to `detection` and `regroup`.

Invariant: sum(seconds) + provisional + (now - since) == now - opened, for any order of calls.

This module is pure: callers pass `now_s` (CLOCK_MONOTONIC seconds, one clock per node).
"""

from __future__ import annotations

from outlast.model.terms import CAUSES, Cause


class Book:
    """Seconds by cause for one rank in one process, from `opened_s` on."""

    def __init__(self, *, now_s: float, cause: Cause) -> None:
        self.opened_s = now_s
        self.since_s = now_s
        self.cause = cause
        self.seconds: dict[Cause, float] = dict.fromkeys(CAUSES, 0.0)
        self._stretches: list[tuple[float, float, Cause]] | None = None
        self._began_s = now_s

    def switch(self, *, now_s: float, cause: Cause) -> Cause:
        """Close the running stretch, and open one of `cause`. Return the cause just closed."""
        before = self.cause
        self._close(now_s)
        self.cause = cause
        return before

    def begin_step(self, *, now_s: float) -> None:
        """Begin a step. Seconds are provisional until `commit_step` or `roll_back`."""
        self._close(now_s)
        self._settle()
        self._stretches = []
        self._began_s = now_s
        self.cause = Cause.PRODUCTIVE

    def commit_step(self, *, now_s: float, first: bool, then: Cause) -> None:
        """Keep the seconds of the step.

        `first` is False if the step was committed before. Then its productive seconds are repeated.
        """
        self._close(now_s)
        if not first:
            self._recast(now_s, fault_s=None, detected_s=None)
        self._settle()
        self.cause = then

    def hold(self, *, now_s: float, until_s: float, cause: Cause) -> None:
        """Book the productive seconds of the present step up to `until_s` as `cause`.

        It is called if the step could not go on sooner, because another rank was not ready.
        """
        self._close(now_s)
        if self._stretches is None:
            return
        cut: list[tuple[float, float, Cause]] = []
        for start, end, spent_on in self._stretches:
            if spent_on is not Cause.PRODUCTIVE:
                cut.append((start, end, spent_on))
                continue
            split_s = min(max(until_s, start), end)
            pieces = (start, split_s, cause), (split_s, end, spent_on)
            cut.extend(piece for piece in pieces if piece[1] > piece[0])
        self._stretches = cut

    def roll_back(
        self, *, now_s: float, fault_s: float | None, detected_s: float | None, then: Cause
    ) -> None:
        """Roll the step back: its productive seconds become repeated.

        All seconds from the fault to its detection become detection, and later ones regroup.
        """
        self._close(now_s)
        self._recast(now_s, fault_s=fault_s, detected_s=detected_s)
        self._settle()
        self.cause = then

    def totals(self, *, now_s: float) -> dict[Cause, float]:
        """Return the seconds by cause up to now, with running and provisional stretches.

        They sum to now - opened.
        """
        out = dict(self.seconds)
        for start, end, cause in self._stretches or ():
            out[cause] += end - start
        out[self.cause] += max(0.0, now_s - self.since_s)
        return out

    def settled(self) -> tuple[dict[Cause, float], float, Cause]:
        """Return what a death of the process cannot change.

        These are the settled seconds, the time up to which they go, and the cause since then. The
        cause of a step in flight is productive.
        """
        if self._stretches is None:
            return self.seconds, self.since_s, self.cause
        return self.seconds, self._began_s, Cause.PRODUCTIVE

    def _close(self, now_s: float) -> None:
        now_s = max(now_s, self.since_s)
        if self._stretches is None:
            self.seconds[self.cause] += now_s - self.since_s
        elif now_s > self.since_s:
            self._stretches.append((self.since_s, now_s, self.cause))
        self.since_s = now_s

    def _recast(self, now_s: float, *, fault_s: float | None, detected_s: float | None) -> None:
        fault_s = now_s if fault_s is None else fault_s
        detected_s = max(fault_s, now_s if detected_s is None else detected_s)
        cut: list[tuple[float, float, Cause]] = []
        for start, end, cause in self._stretches or ():
            lost = Cause.REPEATED if cause is Cause.PRODUCTIVE else cause
            pieces = (
                (start, min(end, fault_s), lost),
                (max(start, fault_s), min(end, detected_s), Cause.DETECTION),
                (max(start, detected_s), end, Cause.REGROUP),
            )
            cut.extend(piece for piece in pieces if piece[1] > piece[0])
        self._stretches = cut

    def _settle(self) -> None:
        for start, end, cause in self._stretches or ():
            self.seconds[cause] += end - start
        self._stretches = None
