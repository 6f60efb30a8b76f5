"""`outlast.tick()`: one line by which a loop without outlast's steps reports its progress."""

from __future__ import annotations

from outlast.errors import UsageError
from outlast.runtime.worker.member import session


def tick(step: int | None = None) -> None:
    """Report that one iteration of a plain loop is done. It is optional, and changes no result.

        for iteration in range(done + 1, 10_001):
            train_one_iteration()
            outlast.tick(iteration)

    It is for scripts that do not call `outlast.join`. Under `outlast run`, `outlast status` and
    `outlast report` then show these iterations as steps, and how many of them a restart repeats.
    Without this call, calls of torch optimizers are counted, so a script that uses another library
    shows no steps. The first tick ends that count.

    Give `step`, from 1, if the script resumes from its own checkpoints. Without a number the steps
    that a restart has lost are not known. It does nothing without `outlast run`, or after
    `outlast.join()`. Raises UsageError for a step below 1.
    """
    if step is not None and step < 1:
        raise UsageError(f"outlast.tick({step})", hint="iterations count from 1")
    if (current := session.current()) is not None:
        current.onlooker.tick(step)
