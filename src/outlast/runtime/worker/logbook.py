"""`step.log`: values that count once per committed step, reduced with the vote, printed by rank 0."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from outlast.errors import TransactionError
from outlast.runtime.worker.vote import LOGGED_MAX

if TYPE_CHECKING:
    from outlast.runtime.worker.step import Step


@dataclass(slots=True)
class _Entry:
    step: Step
    name: str
    value: float | torch.Tensor
    reduce: str | None


class Logbook:
    """Values logged before the vote of their step go with it; those of the block's tail go with the next vote."""

    def __init__(self, every: int) -> None:
        self._every = every
        self._entries: list[_Entry] = []
        self._sent: list[_Entry] = []

    def add(self, step: Step, values: dict[str, float | torch.Tensor], reduce: str | None) -> None:
        self._entries = [entry for entry in self._entries if not (entry.step is step and entry.name in values)]
        for name, value in values.items():
            self._entries.append(_Entry(step, name, value.detach() if isinstance(value, torch.Tensor) else value, reduce))
        if sum(entry.reduce is not None for entry in self._entries) > LOGGED_MAX:
            raise TransactionError(f"more than {LOGGED_MAX} values in step.log(..., reduce=...)", hint="log fewer, or reduce them before the optimizer")

    def pending(self) -> tuple[tuple[str, float], ...]:
        """What the next vote carries."""
        self._sent = list(self._entries)
        return tuple((entry.name, float(entry.value)) for entry in self._sent if entry.reduce is not None)

    def deliver(self, summed: tuple[tuple[str, float], ...], *, rank: int, world: int = 1) -> None:
        """The vote passed: hand the values to their steps, and print."""
        totals = iter(summed)
        steps: list[Step] = []
        for entry in self._sent:
            value = float(entry.value)
            if entry.reduce is not None:
                value = next(totals, (entry.name, value))[1]
                if entry.reduce == "mean" and summed:
                    value /= world
            entry.step.logged[entry.name] = value
            if entry.step not in steps:
                steps.append(entry.step)
        self._entries = [entry for entry in self._entries if entry not in self._sent]
        self._sent = []
        if rank == 0:
            for step in steps:
                self._print(step)

    def flush_alone(self, *, rank: int, step: int) -> None:
        self.pending()
        self.deliver((), rank=rank)

    def _print(self, step: Step) -> None:
        if self._every and (step.number % self._every == 0 or step.number == 1) and step.logged:
            values = " ".join(f"{name} {value:.6g}" for name, value in step.logged.items())
            print(f"step {step.number} {values}", file=sys.stdout, flush=True)
