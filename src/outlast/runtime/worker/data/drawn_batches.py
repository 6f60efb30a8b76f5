"""`DrawnBatches`: the batches of a function that draws them at random, as `run.draw` makes them.

Each batch is drawn with random numbers that depend on the script's seed, the rank and the number of
the batch, and on nothing else. So a batch can be drawn again at any time, and none has to be kept:
a rank that replaces another needs only the number of its next batch, and has the same batches.

Symbols    base    torch's seed when the first batch was drawn; it is stored in the position
           given   how many batches this rank was given so far
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from outlast.errors import StateError
from outlast.model.texts import some
from outlast.runtime.worker.data.loaders import BatchSource, count_in
from outlast.runtime.worker.data.sampler import SamplerMesh, mix, share_in


class DrawnBatches(BatchSource):
    """Batches of a function. `run.draw(function)` makes it, and `run.state` takes it as a loader.

        batches = run.draw(lambda: get_batch("train"))
        state = run.state(model=model, optimizer=optimizer, batches=batches)
        for step in run.steps(state, until=1_000):
            with step:
                x, y = step.batch
                loss = model(x, y)
                batches.prefetch()
                loss.backward()
                ...

    The function is called once for each batch (`accumulate=n`: n times a step), before the block of
    the step begins. A step that is repeated keeps its batches. A rank that is replaced draws the
    batches that its predecessor would have drawn.

    It promises that for random numbers of Python's `random`, NumPy's global generator and torch's
    CPU generator. They are seeded before each call, and put back after it. A function that reads in
    order, and counts by itself, starts over on a rank that is replaced. Let it take the number of
    the batch instead: `run.draw(read, numbered=True)` calls `read(0)`, `read(1)` and so on.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        numbered: bool = False,
        mesh: SamplerMesh | None = None,
    ) -> None:
        super().__init__()
        self._function = function
        self._numbered = numbered
        self._mesh = mesh
        self._rank = 0
        self._base: int | None = None
        self._given = 0
        self._ahead: list[Any] = []  # the next batch, if it was drawn already
        # returns by name what must not change in `prefetch`; None: it is not checked any more
        self._looks: Callable[[], dict[str, str]] | None = None

    def prefetch(self) -> None:
        """Draw the next batch now, for example while the device still computes this one.

        Call it inside a step, as often as you like: it draws one batch ahead. The results are the
        same without it. It raises StateError if the function moves anything that `run.state` keeps,
        such as a generator of its own. That would move one step too early.
        """
        if self._ahead:
            return
        before = self._looks() if self._looks is not None else {}
        batch = self._drawn()
        if self._looks is not None:
            after, self._looks = self._looks(), None
            if moved := [name for name, value in after.items() if before.get(name) != value]:
                raise StateError(
                    f"the batch function moves what run.state(...) keeps: {some(moved)}",
                    hint=(
                        "leave prefetch() out, or draw from torch's, NumPy's or Python's global"
                        " generators"
                    ),
                )
        self._ahead.append(batch)

    def look_at(self, looks: Callable[[], dict[str, str]]) -> None:
        """Let the first `prefetch` compare what `looks` returns before and after it."""
        self._looks = looks

    def bind(self, rank: int, world_size: int) -> None:
        """Draw the batches of `rank` from here on; with a mesh, those of its share of the data."""
        if self._mesh is not None:
            rank, _ = share_in(self._mesh)
        if rank != self._rank:
            self._ahead.clear()
        self._rank = rank

    def position(self) -> dict[str, Any]:
        """Return where this rank is: the batches that it was given, and the seed behind them."""
        return {"given": self._given, "base": self._seed()}

    def seek(self, position: Mapping[str, Any]) -> None:
        """Go on after the batches that `position` counts."""
        self._ahead.clear()
        self._given, self._base = count_in(position, "given"), count_in(position, "base")

    def skip(self, batches: int) -> None:
        """Go on after the first `batches` batches."""
        self._ahead.clear()
        self._given = batches

    def _next(self) -> Any:
        batch = self._ahead.pop() if self._ahead else self._drawn()
        self._given += 1
        return batch

    def _drawn(self) -> Any:
        with self._seeded(mix(mix(mix(self._seed()) ^ self._rank) ^ self._given)):
            return self._function(*([self._given] if self._numbered else []))

    def _seed(self) -> int:
        if self._base is None:
            self._base = torch.initial_seed() & (2**63 - 1)
        return self._base
