"""`run.phase(name)`: work between steps (evaluation, export) that is repeated as a whole when it is
interrupted.

A process that replaces a rank comes to the phase where its peers wait through the script itself: it
does the last committed step once more, for nothing, and so the phases that are done
(`Rehearsal.replay`). So the script's own code between that step and the phase runs there too. Where
all ranks come anew (outlast.main entered again, a whole restart), they go on with the next step,
and an unfinished phase is not made up for.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import TracebackType
from typing import Protocol


class Owner(Protocol):
    """What stands behind an attempt (`Transaction`)."""

    def wants_phase(self) -> bool: ...
    def enter_phase(self, attempt: Attempt) -> None: ...
    def leave_phase(self, attempt: Attempt, error: BaseException | None) -> bool: ...


class Attempt:
    """`with attempt:` runs the work once.

    All ranks agree at its end that it is done, or all do it again.
    """

    def __init__(self, transaction: Owner, name: str) -> None:
        self._transaction = transaction
        self.name = name
        self.number = 0  # how many phases were done before it since the last step
        self.done = False

    def __enter__(self) -> Attempt:
        self._transaction.enter_phase(self)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> bool:
        return self._transaction.leave_phase(self, error)


def attempts(transaction: Owner, name: str) -> Iterator[Attempt]:
    """One attempt after the other, until one is done; none after a step that was interrupted: it
    comes again, and the phase after it.
    """
    while transaction.wants_phase():
        attempt = Attempt(transaction, name)
        yield attempt
        if attempt.done:
            return
