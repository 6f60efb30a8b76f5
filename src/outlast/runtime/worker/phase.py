"""`run.phase(name)`: work between steps, such as an evaluation or an export.

A phase is repeated as a whole when it is interrupted.

A process that replaces a rank gets to the phase where its peers wait by running the script. It runs
the last committed step once more without keeping its result, and the phases that are done as well
(`Rehearsal.replay`). So the script's own code between that step and the phase runs there too. Where
all ranks start over (outlast.main is entered again, or the whole run restarts), they go on with the
next step. An unfinished phase is not made up for.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import TracebackType
from typing import Protocol

from outlast.runtime.worker import forked


class Owner(Protocol):
    """The part that an attempt reports to (`Transaction`)."""

    def wants_phase(self, name: str) -> bool: ...
    def enter_phase(self, attempt: Attempt) -> None: ...
    def leave_phase(self, attempt: Attempt, error: BaseException | None) -> bool: ...


class Attempt:
    """One attempt at a phase: `with attempt:` runs the work once.

    At its end all ranks vote. Either the phase is done on all of them, or all do it again::

        for attempt in run.phase("evaluate"):
            with attempt:
                accuracy = evaluate(model)

    Its life: run.phase gives it out, its block runs, and the vote at the end of the block decides.
    An error in the block, or a lost rank, means another attempt, with the state that the first one
    began with.

    What it does not promise: that an interrupted phase is made up for where all ranks start over.
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
        if forked.is_fork():
            return False  # what its script does is no part of the phase
        return self._transaction.leave_phase(self, error)


def attempts(transaction: Owner, name: str) -> Iterator[Attempt]:
    """Give out one attempt after the other, until one is done.

    There is none after a step that was interrupted. That step comes again, and its phase with it.
    """
    while transaction.wants_phase(name):
        attempt = Attempt(transaction, name)
        yield attempt
        if attempt.done:
            return
