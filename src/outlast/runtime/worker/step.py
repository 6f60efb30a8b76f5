"""`Step`: one optimizer update as the script sees it."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any, Protocol

import torch

from outlast.errors import TransactionError


class Owner(Protocol):
    """The part that a step reports to (`Transaction`)."""

    def enter(self, step: Step) -> None: ...
    def leave(self, step: Step, error: BaseException | None) -> bool: ...
    def log(self, step: Step, values: dict[str, Any], reduce: str | None) -> None: ...


REDUCTIONS = ("mean", "sum", None)


class Step:
    """One optimizer update. Its block is committed on all ranks, or repeated with the same batch.

    A script enters each step once::

        for step in run.steps(state, until=1000):
            with step:
                loss = model(step.batch).mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                step.log(loss=loss, reduce="mean")

    Its life: run.steps gives it out, the script enters its block, and the first optimizer call asks
    all ranks for their vote. After the vote the step is applied and committed. Where a rank is lost
    before, the block is left without an error and run.steps gives out the same step again.

    What it does not promise: to take back what the block does outside of run.state(...), such as
    files that it writes. Put those into `on_commit`.

    number    counts from 1
    attempt   how many times this step was interrupted before
    batch     what the loader gave for this step (with accumulate=1)
    batches   the micro-batches of this step (accumulate=n): iterate it inside the block
    logged    values given to `log`, reduced; complete once the next step has voted
    """

    def __init__(self, transaction: Owner, number: int, batches: list[Any]) -> None:
        self._transaction = transaction
        self.number = number
        self.attempt = 0
        self.entered = False
        self.left = False
        self.logged: dict[str, float] = {}
        self._batches = batches
        self._callbacks: list[Callable[[], None]] = []

    @property
    def batch(self) -> Any:
        """The batch of this step. Raises TransactionError unless there is exactly one."""
        if len(self._batches) != 1:
            raise TransactionError(
                f"step.batch with {len(self._batches)} micro-batches"
                if self._batches
                else "step.batch without a loader in run.state(...)",
                hint="iterate step.batches" if self._batches else "run.state(..., loader=loader)",
            )
        return self._batches[0]

    @property
    def batches(self) -> list[Any]:
        """The micro-batches of this step."""
        return self._batches

    def log(self, *, reduce: str | None = None, **values: float | torch.Tensor) -> None:
        """Keep values for this step. They count once, when the step is committed.

        reduce   "mean" or "sum" over all ranks; None keeps this rank's own values
        """
        if reduce not in REDUCTIONS:
            raise TransactionError(f"step.log(reduce={reduce!r})", hint='"mean", "sum" or None')
        self._transaction.log(self, values, reduce)

    def on_commit(self, callback: Callable[[], None]) -> None:
        """Call `callback()` once, on this rank, when the step is committed everywhere.

        It does not run on a rank that dies before that.
        """
        self._callbacks.append(callback)

    def __enter__(self) -> Step:
        self._transaction.enter(self)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> bool:
        return self._transaction.leave(self, error)

    def reset(self) -> None:
        """Forget what the last attempt did, before another one begins."""
        self.entered = self.left = False
        self.logged.clear()
        self._callbacks.clear()
        self.attempt += 1

    def committed(self) -> None:
        """Run what `on_commit` was given. The commit calls this once."""
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback()
