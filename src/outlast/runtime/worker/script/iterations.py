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
from dataclasses import dataclass
from typing import Any

_ALONE = 3  # calls in a row that show that an optimizer trains alone


@dataclass(slots=True)
class _Streak:
    """Calls in a row by one optimizer.

    calls       how many there are so far
    before      how many there were in the streak of another optimizer before this one
    uncounted   the first of these calls began no iteration
    """

    optimizer: weakref.ref[Any] | None = None
    calls: int = 0
    before: int = 0
    uncounted: bool = False

    def is_of(self, optimizer: Any) -> bool:
        """Return True if this optimizer makes these calls."""
        return self.optimizer is not None and self.optimizer() is optimizer

    def shows_takeover(self) -> bool:
        """Return True if the newest call shows that the first one should have been counted."""
        return self.uncounted and self.calls == 2 and self.before >= _ALONE


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
        self._streak = _Streak()  # the newest one

    def __contains__(self, optimizer: Any) -> bool:
        return optimizer in self._calls

    def stepped(self, optimizer: Any) -> None:
        """Count one call of an optimizer."""
        self._calls[optimizer] = self._calls.get(optimizer, 0) + 1
        begins = not self._present or optimizer in self._present
        if not self._streak.is_of(optimizer):
            calls = self._streak.calls
            self._streak = _Streak(weakref.ref(optimizer), before=calls, uncounted=not begins)
        self._streak.calls += 1
        if not begins:
            self._present.add(optimizer)
            return
        self.count += 2 if self._streak.shows_takeover() else 1
        self._present = weakref.WeakSet([optimizer])
        self.by_own = self._calls[optimizer] == self.count
