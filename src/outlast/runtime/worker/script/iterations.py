"""Which call of an optimizer begins a new iteration of a script without outlast calls.

A script may have several optimizers. Two of them may take turns: those of a GAN step once each in
an iteration, and a critic steps five times for each step of its generator. Or one may take over
from another: a script trains the head of a network first, and then all of it.

    calls            iterations
    D G D G D G      3   they take turns
    D D D G D D D G  6   as many as D has steps
    A A A B B B      6   B takes over from A

So a call begins an iteration if its optimizer has stepped in the present one already, or if none
that has stepped in it exists any more. Any other call belongs to the present iteration. While the
old optimizer still exists, the first call of one that takes over looks like such a call. Once it
steps again, with none between, its first call counts too, if the optimizer before it had trained
alone: it had stepped three times in a row, or more often.

Limits   Optimizers that step three times or more in a row, one after the other in each iteration,
         count as taking over from each other: DDD GGG makes 6. Two that take over from two others
         while these still exist are counted from their second iteration.
"""

from __future__ import annotations

import weakref
from typing import Any

_ALONE = 3  # calls in a row that show that an optimizer trains alone


class Iterations:
    """Count the iterations of one process by the optimizers that step.

    count     iterations begun
    by_own    whether the calls of the optimizer that began the newest one make up all of `count`
    """

    def __init__(self) -> None:
        self.count = 0
        self.by_own = True
        self._present: weakref.WeakSet[Any] = weakref.WeakSet()  # have stepped in the newest one
        self._calls: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._last: weakref.ref[Any] | None = None
        self._run = 0  # calls in a row by `_last`
        self._run_before = 0  # calls in a row by the optimizer before it
        self._uncounted = False  # the first of `_run` began no iteration

    def __contains__(self, optimizer: Any) -> bool:
        return optimizer in self._calls

    def stepped(self, optimizer: Any) -> None:
        """Count one call of an optimizer."""
        self._calls[optimizer] = self._calls.get(optimizer, 0) + 1
        begins = not self._present or optimizer in self._present
        if self._last is None or self._last() is not optimizer:
            self._last, self._run_before, self._run = weakref.ref(optimizer), self._run, 0
            self._uncounted = not begins
        self._run += 1
        if not begins:
            self._present.add(optimizer)
            return
        takes_over = self._uncounted and self._run == 2 and self._run_before >= _ALONE
        self.count += 2 if takes_over else 1
        self._present = weakref.WeakSet([optimizer])
        self.by_own = self._calls[optimizer] == self.count
