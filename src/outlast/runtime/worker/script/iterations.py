"""Count the loop iterations of a script without outlast calls, by the calls of its optimizers.

A script may have several optimizers. They may take turns: in a GAN, each of two optimizers steps
once in an iteration, or the critic steps five times for each step of the generator. Or one may take
over from another, if a script trains the head of a network first, and then all of it.

    calls            iterations
    D G D G D G      3   they take turns
    D D D G D D D G  6   as many as D has steps
    A A A B B B      6   B takes over from A

So a call begins a new iteration if its optimizer has stepped in the current iteration already, or
if no optimizer that has stepped in it exists any more. Any other call belongs to the current
iteration.

An optimizer that takes over while the old one still exists makes one call that seems to belong to
the current iteration. That call is counted later, if two things show that there was a takeover: the
next call is of the same optimizer, and the optimizer before it had trained alone, which means that
it had stepped at least three times in a row.

Limits   If one optimizer steps three times or more in a row in every iteration, and another one
         then twice or more, the second counts as taking over from the first: DDD GG counts as 5,
         and DDD GGG as 6. If two optimizers take over from two others that still exist, they are
         counted from their second iteration on.
"""

from __future__ import annotations

import weakref
from typing import Any

_ALONE = 3  # calls in a row that show that an optimizer trains alone


class Iterations:
    """Count the iterations of one process by the optimizers that step.

    count     the number of iterations that have begun
    by_own    True if the optimizer that began the newest iteration has made `count` calls: it may
              have begun all iterations
    """

    def __init__(self) -> None:
        self.count = 0
        self.by_own = True
        self._present: weakref.WeakSet[Any] = weakref.WeakSet()  # have stepped in the newest one
        self._calls: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._last: weakref.ref[Any] | None = None
        self._run = 0  # calls in a row by `_last`
        self._run_before = 0  # calls in a row by the optimizer before it
        self._uncounted = False  # the first of these `_run` calls began no iteration

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
