"""`Step`: one optimizer update as the script sees it."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any, Protocol

import torch

from outlast.errors import TransactionError
from outlast.runtime.worker.process import forked
from outlast.runtime.worker.steps.logbook import To


class StepOwner(Protocol):
    """The part that a step reports to (`Transaction`)."""

    def enter(self, step: Step) -> None: ...
    def leave(self, step: Step, error: BaseException | None) -> bool: ...
    def log(
        self, step: Step, values: dict[str, Any], reduce: str | None, to: To | None
    ) -> None: ...


REDUCTIONS = ("mean", "sum", None)


class Step:
    """One optimizer update. Its block is committed on all ranks, or repeated with the same batch.

    A script enters each step once:

        for step in run.steps(state, until=1000):
            with step:
                loss = model(step.batch).mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                step.log(loss=loss, reduce="mean")

    `run.steps` yields the step, and the script enters its block. The first optimizer call asks all
    ranks for their vote. After the vote the step is applied and committed. If a rank is lost before
    the vote, the block ends without an error and `run.steps` yields the same step again.

    A repeat does not undo what the block does outside of `run.state(...)`, such as writing files.
    Do that in `on_commit`.

    number    the number of this step, an int that counts from 1
    attempt   how many times this step was interrupted before
    batch     the batch of this step, if accumulate=1
    batches   the list of this step's micro-batches, to be iterated inside the block
    logged    the values given to `log`, reduced; complete once the next step has voted

    `with step:` raises TransactionError if the step was entered before, if it is entered inside
    another step, or if it is not the newest one that `run.steps` has yielded.
    """

    def __init__(self, transaction: StepOwner, number: int, batches: list[Any]) -> None:
        self._transaction = transaction
        self.number = number
        self.attempt = 0
        self.entered = False
        self.left = False
        self.is_committed = False
        self.logged: dict[str, float] = {}
        self._batches = batches
        self._callbacks: list[Callable[[], None]] = []

    @property
    def batch(self) -> Any:
        """Return the batch of this step.

        It raises TransactionError unless there is exactly one: with `accumulate=n` iterate
        `batches`, and without a loader in `run.state(...)` there is none.
        """
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
        """Return the list of this step's micro-batches. It is empty without a loader."""
        return self._batches

    def log(
        self, *, reduce: str | None = None, to: To | None = None, **values: float | torch.Tensor
    ) -> None:
        """Log values of this step. They are counted once, when the step is committed.

        reduce   "mean" or "sum" over all ranks; None keeps this rank's own values
        to       a function of the script, `to(step_number, values)`, that writes the reduced values
                 somewhere, for example to TensorBoard
        values   numbers, or tensors with one element

        Rank 0 prints them at every `log_every`-th step (an argument of `run.steps`), and `outlast
        status` shows the newest. Only rank 0 calls `to`, once, after the step is committed. To
        write values on each rank, use `on_commit`. It raises TransactionError for any other
        `reduce`.
        """
        if reduce not in REDUCTIONS:
            raise TransactionError(f"step.log(reduce={reduce!r})", hint='"mean", "sum" or None')
        self._transaction.log(self, values, reduce, to)

    def on_commit(self, callback: Callable[[], None]) -> None:
        """Call `callback()` once, on this rank, when the step is committed everywhere.

        The callback takes no arguments. It does not run on a rank that dies before the commit. If
        the step is committed already (after its block), the callback runs at once. If the step was
        interrupted, the callback is dropped, because the step is repeated and gives it again.
        """
        if self.is_committed:
            callback()
        else:
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
        if forked.is_fork():
            return False  # a forked child has left the block, and its parent still runs the step
        return self._transaction.leave(self, error)

    def reset(self) -> None:
        """Forget what the last attempt logged and registered, because another one begins."""
        self.entered = self.left = self.is_committed = False
        self.logged.clear()
        self._callbacks.clear()
        self.attempt += 1

    def committed(self) -> None:
        """Note the commit, and run the callbacks that `on_commit` was given."""
        self.is_committed = True
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback()
