"""The batches of the step in turn: fetched once, kept until the step is committed, so that a repeat
gets the same ones.
"""

from __future__ import annotations

from typing import Any

from outlast.runtime.worker.loaders import BatchSource
from outlast.runtime.worker.random_state import RandomState
from outlast.runtime.worker.step import Owner, Step


class Batches:
    """`held` is the step in turn; None between its commit and the next fetch.

    `accumulate`: micro-batches per step.
    """

    def __init__(self, owner: Owner, source: BatchSource | None, *, accumulate: int) -> None:
        self.held: Step | None = None
        self.accumulate = accumulate
        self._owner = owner
        self._source = source
        # of the next step so far: an error in fetching costs none of them
        self._drawn: list[Any] = []

    @property
    def loads(self) -> bool:
        """There is a loader: fetching takes time and can fail."""
        return self._source is not None

    @property
    def random(self) -> RandomState | None:
        """The random state right after a fetch, where it is known without looking."""
        return None if self._source is None else self._source.random

    def hold_again(self, number: int) -> bool:
        """Step `number` was interrupted and is held still: ready for another attempt.

        False: it has to be fetched.
        """
        if self.held is None or self.held.number != number:
            return False
        self.held.reset()
        return True

    def fetch(self, number: int) -> None:
        """Hold step `number`.

        Raises what the loader and the data set raise; the next call goes on behind the batches that
        came.
        """
        while self._source is not None and len(self._drawn) < self.accumulate:
            self._drawn.append(self._source.next_batch())
        self.held, self._drawn = Step(self._owner, number, self._drawn), []

    def fetch_for_nothing(self, number: int) -> Step:
        """Hold a step that will not count. Its batches are none of any other's. Raises as `fetch`."""
        batches = (
            [self._source.next_batch() for _ in range(self.accumulate)]
            if self._source is not None
            else []
        )
        self.held = Step(self._owner, number, batches)
        return self.held

    def let_go(self) -> None:
        """The step is over."""
        self.held = None

    def close(self) -> None:
        """End the loader's workers."""
        self.held = None
        if self._source is not None:
            self._source.close()
