"""`run.phase(name)`: work between steps, such as an evaluation or an export.

A phase is repeated as a whole when it is interrupted.

If a rank is replaced while its peers are in a phase, its new process has to run the script up to
that phase. It runs the last committed step once more and drops the result. It does the same with
the phases that its peers have done (`Rehearsal.replay`). The script's own code between them runs as
well. If all ranks start over instead (a full restart, or outlast.main entered again), they go on
with the next step, and an unfinished phase is skipped.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import TracebackType
from typing import Protocol

from outlast.runtime.worker.process import forked


class PhaseOwner(Protocol):
    """The part that an attempt reports to (`Transaction`)."""

    def wants_phase(self, name: str) -> bool: ...
    def enter_phase(self, attempt: Attempt) -> None: ...
    def leave_phase(self, attempt: Attempt, error: BaseException | None) -> bool: ...


class Attempt:
    """One attempt at a phase. `with attempt:` runs the work once.

    At the end of the block all ranks vote. Then the phase is done on all of them, or all repeat
    it::

        for attempt in run.phase("evaluate"):
            with attempt:
                accuracy = evaluate(model)

    After an error in the block, or the loss of a rank, run.phase yields another attempt. The state
    is first put back to what it was before the phase. If all ranks start over instead, an
    interrupted phase is not repeated. An error of the rank's own that comes again and again ends
    the script.

    errors   how often this rank's own code has raised in this phase
    """

    def __init__(self, transaction: PhaseOwner, name: str, errors: int = 0) -> None:
        self._transaction = transaction
        self.name = name
        self.errors = errors
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
            return False  # a forked child has left the block, and its parent still runs the phase
        return self._transaction.leave_phase(self, error)


def attempts(transaction: PhaseOwner, name: str) -> Iterator[Attempt]:
    """Yield attempts until one is done.

    There is none after a step that was interrupted. The step is repeated, and the script comes to
    its phase again.
    """
    errors = 0
    while transaction.wants_phase(name):
        attempt = Attempt(transaction, name, errors)
        yield attempt
        if attempt.done:
            return
        errors = attempt.errors
