"""`Step`: one optimizer update as the script sees it."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any, Protocol

import torch

from outlast.errors import TransactionError


class Owner(Protocol):
    """What stands behind a step (`Transaction`)."""

    def enter(self, step: Step) -> None: ...
    def leave(self, step: Step, error: BaseException | None) -> bool: ...
    def log(self, step: Step, values: dict[str, Any], reduce: str | None) -> None: ...


REDUCTIONS = ("mean", "sum", None)


class Step:
    """Enter it once: `with step:`.

    The block is committed on all ranks, or repeated with the same batch.

    number    counts from 1
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
        return self._batches

    def log(self, *, reduce: str | None = None, **values: float | torch.Tensor) -> None:
        """Keep values for this step.

        They count once, when the step is committed. reduce: "mean" or "sum" over ranks, None: this
        rank's.
        """
        if reduce not in REDUCTIONS:
            raise TransactionError(f"step.log(reduce={reduce!r})", hint='"mean", "sum" or None')
        self._transaction.log(self, values, reduce)

    def on_commit(self, callback: Callable[[], None]) -> None:
        """Call `callback()` once, on this rank, when the step is committed everywhere.

        Not promised: that it runs on a rank that dies before.
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
        """For another attempt."""
        self.entered = self.left = False
        self.logged.clear()
        self._callbacks.clear()
        self.attempt += 1

    def committed(self) -> None:
        """Called by the transaction, once: run what `on_commit` was given."""
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback()
