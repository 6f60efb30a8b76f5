"""`step.log`: values that count once per committed step.

They are reduced with the vote, printed by rank 0, and passed to the script's own function there.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import torch

from outlast.errors import TransactionError
from outlast.runtime.worker.steps.vote import LOGGED_MAX, Values

To = Callable[[int, dict[str, float]], object]


class LoggedStep(Protocol):
    """The step of which values are logged, as far as the logbook knows it.

    logged   the values that its vote has reduced, by name
    """

    logged: dict[str, float]

    @property
    def number(self) -> int: ...

    @property
    def is_committed(self) -> bool: ...


@dataclass(slots=True, eq=False)
class _Call:
    """One call of `step.log` with a function of the script, and the values known so far."""

    step: LoggedStep
    to: To
    values: dict[str, float] = field(default_factory=dict)


@dataclass(slots=True)
class _Entry:
    step: LoggedStep
    name: str
    value: float | torch.Tensor
    reduce: str | None
    call: _Call | None = None


class Logbook:
    """The values that a script has logged.

    Values that are logged before the vote of their step are sent with that vote. Those that are
    logged later in the block are sent with the next vote.

    newest        the newest value of each name that was ever delivered
    newest_step   the step of the newest of them
    """

    def __init__(self, every: int) -> None:
        self.every = every
        self.newest: dict[str, float] = {}
        self.newest_step = 0
        self._entries: list[_Entry] = []
        self._sent: list[_Entry] = []
        # their values are known, and their steps may not be committed yet
        self._due: list[_Call] = []

    def add(
        self,
        step: LoggedStep,
        values: dict[str, float | torch.Tensor],
        reduce: str | None,
        to: To | None = None,
    ) -> None:
        call = None if to is None else _Call(step, to)
        self._entries = [
            entry for entry in self._entries if not (entry.step is step and entry.name in values)
        ]
        for name, value in values.items():
            self._entries.append(
                _Entry(
                    step,
                    name,
                    value.detach() if isinstance(value, torch.Tensor) else value,
                    reduce,
                    call,
                )
            )
        if sum(entry.reduce is not None for entry in self._entries) > LOGGED_MAX:
            raise TransactionError(
                f"more than {LOGGED_MAX} values in step.log(..., reduce=...)",
                hint="log fewer, or reduce them before the optimizer",
            )

    def forget(self, step: LoggedStep) -> None:
        """Drop what this attempt logged, because the step is repeated."""
        self._entries = [entry for entry in self._entries if entry.step is not step]
        self._due = [call for call in self._due if call.step is not step]

    def forget_after(self, number: int) -> None:
        """Drop what waits for the commit of later steps, because a plan has undone them."""
        self._due = [call for call in self._due if call.step.number <= number]

    def hand_over(self) -> None:
        """Call the script's functions for the steps that are committed now."""
        due, self._due = self._due, []
        self._due = [call for call in due if not call.step.is_committed]
        for call in due:
            if call.step.is_committed:
                call.to(call.step.number, call.values)

    def pending(self, step: LoggedStep | None) -> tuple[Values, Values]:
        """Return what the next vote carries: values of `step`, and those of steps before it."""
        current = [entry for entry in self._entries if entry.step is step]
        self._sent = current + [entry for entry in self._entries if entry.step is not step]
        sent = [entry for entry in self._sent if entry.reduce is not None]
        split = sum(entry.reduce is not None for entry in current)
        named: Values = tuple(
            (f"{entry.step.number} {entry.name} {entry.reduce}", float(entry.value))
            for entry in sent
        )
        return named[:split], named[split:]

    def deliver(
        self,
        current: Values | None,
        earlier: Values | None,
        step: LoggedStep | None,
        *,
        rank: int,
        world: int = 1,
    ) -> None:
        """Give the values to their steps, and print them, because the vote has passed.

        None: a rank was replaced and lacks them, so the total is not known.
        """
        totals = {
            True: None if current is None else iter(current),
            False: None if earlier is None else iter(earlier),
        }
        said: dict[LoggedStep, list[str]] = {}
        for entry in self._sent:
            value, note = float(entry.value), ""
            if entry.reduce is not None:
                total = totals[entry.step is step]
                if total is None:
                    note = " (rank 0 alone: another was replaced before it was reduced)"
                else:
                    value = next(total)[1] / (world if entry.reduce == "mean" else 1)
            if not note:
                self._deliver_value(entry, value, rank=rank)
            said.setdefault(entry.step, []).append(f"{entry.name} {value:.6g}{note}")
        self._entries = [entry for entry in self._entries if entry not in self._sent]
        self._sent = []
        self.newest_step = max((self.newest_step, *(one.number for one in said)))
        if rank == 0 and self.every:
            for one, values in said.items():
                if one.number % self.every == 0 or one.number == 1:
                    _say(f"step {one.number} {' '.join(values)}")

    def _deliver_value(self, entry: _Entry, value: float, *, rank: int) -> None:
        """Give its step the value of an entry. Rank 0 alone calls the script's functions."""
        entry.step.logged[entry.name] = self.newest[entry.name] = value
        if entry.call is not None and rank == 0:
            entry.call.values[entry.name] = value
            if entry.call not in self._due:
                self._due.append(entry.call)


def _say(line: str) -> None:
    """Print a line. Do nothing if the script has closed its output, or has put in a broken one.

    The step is committed: an error about a line must not undo that.
    """
    with contextlib.suppress(Exception):  # boundary: the script's own sys.stdout
        print(line, file=sys.stdout, flush=True)
