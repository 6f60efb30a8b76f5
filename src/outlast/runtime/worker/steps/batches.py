"""The current step and its batches.

Batches are fetched once, and kept until the step is committed. So a repeat gets the same batches.
"""

from __future__ import annotations

import atexit
import weakref
from typing import Any

from outlast.runtime.worker.data.loaders import BatchSource
from outlast.runtime.worker.steps.step import Step, StepOwner
from outlast.runtime.worker.tensors.random_state import RandomState


class Batches:
    """Fetch the batches of each step, and hold the current step.

    held         the current step; None between its commit and the next fetch
    accumulate   how many micro-batches a step has
    """

    def __init__(self, owner: StepOwner, source: BatchSource | None, *, accumulate: int) -> None:
        self.held: Step | None = None
        self.accumulate = accumulate
        self._owner = owner
        self._source = source
        # micro-batches of the next step that were fetched so far; an error of the data set
        # loses none of them
        self._drawn: list[Any] = []
        self._closes_at_exit = False

    @property
    def loads(self) -> bool:
        """Return True if there is a loader, so that fetching takes time and can fail."""
        return self._source is not None

    @property
    def random(self) -> RandomState | None:
        """Return the random state as it was right after the last fetch.

        None means that the caller has to capture it.
        """
        return None if self._source is None else self._source.random

    def hold_again(self, number: int) -> bool:
        """Make an interrupted step ready for another attempt.

        Return False if step `number` is not held, and so has to be fetched.
        """
        if self.held is None or self.held.number != number:
            return False
        self.held.reset()
        return True

    def fetch(self, number: int) -> None:
        """Fetch the batches of step `number`, and hold that step.

        Errors of the loader and the data set are raised. The next call then keeps the batches that
        were fetched before the error.
        """
        while self._source is not None and len(self._drawn) < self.accumulate:
            self._drawn.append(self._source.next_batch())
        self.held, self._drawn = Step(self._owner, number, self._drawn), []

    def fetch_for_rehearsal(self, number: int) -> Step:
        """Fetch the batches of a step whose result is dropped, and return that step.

        No later step gets these batches. Errors are raised as by `fetch`.
        """
        batches = (
            [self._source.next_batch() for _ in range(self.accumulate)]
            if self._source is not None
            else []
        )
        self.held = Step(self._owner, number, batches)
        return self.held

    def let_go(self) -> None:
        """Drop the batches of the step, because it is over."""
        self.held = None

    def close(self) -> None:
        """End the loader's workers."""
        self.held = None
        if self._source is not None:
            self._source.close()

    def close_at_exit(self) -> None:
        """End the loader's workers when the script is over. They serve further steps until then.

        Otherwise torch kills them at the interpreter's end, and their folders in TMPDIR remain.
        """
        if self._source is not None and not self._closes_at_exit:
            self._closes_at_exit = True
            atexit.register(_close, weakref.ref(self._source))


def _close(reference: weakref.ref[BatchSource]) -> None:
    """End the workers of a loader that is still in use."""
    source = reference()
    if source is not None:
        source.close()
