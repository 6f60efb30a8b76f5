"""The world's own count of steps. The ledger is compared with this count."""

from __future__ import annotations

from collections import deque

COMMITS_KEPT = 100_000


class StepsDone:
    """Count the steps of a run.

    committed      the newest step that any rank has committed; with sharded state, the newest step
                   that all ranks have sealed
    last           the step that was committed last
    newest_begun   the newest step that any rank has asked for since the newest plan
    executed       the newest step that any rank has ever executed
    commits        time, generation, rank and step of each commit
    rolled_back    each time that the run went back: the step before, and the step after
    marks          the number of visits of each mark of a worker
    joined         the ranks that have joined each generation
    """

    def __init__(self) -> None:
        self.committed = self.last = self.newest_begun = self.executed = 0
        self.commits: deque[tuple[float, int, int, int]] = deque(maxlen=COMMITS_KEPT)
        self.rolled_back: list[tuple[int, int]] = []
        self.marks: dict[str, int] = {}
        self.joined: dict[int, set[int]] = {}

    def begins(self, step: int) -> None:
        """Note that a rank asks for `step`."""
        self.newest_begun = max(self.newest_begun, step)

    def executes(self, step: int) -> bool:
        """Note that a rank has executed `step`. Return True if it is the first one that did."""
        first, self.executed = step > self.executed, max(self.executed, step)
        return first

    def visit(self, mark: str, count: int) -> None:
        """Note that `count` ranks reach a mark."""
        self.marks[mark] = self.marks.get(mark, 0) + count

    def leap(self, last: int) -> None:
        """Note that all ranks have reached `last` by arithmetic."""
        self.committed = max(self.committed, last)
        self.newest_begun = max(self.newest_begun, last + 1)
        self.executed = max(self.executed, last)
        self.last = last

    def go_back(self, step: int) -> bool:
        """Note that a plan goes on from `step`. Return True if this loses committed steps.

        If `step` is later than the newest committed step, it counts as committed from then on: all
        ranks have it, or there are copies of it.
        """
        if step < self.committed:
            self.rolled_back.append((self.committed, step))
            self.committed = step
            return True
        self.committed = step
        return False
