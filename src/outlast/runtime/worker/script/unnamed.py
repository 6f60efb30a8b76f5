"""Optimizers that step parameters of the state, and that `run.state` was not given.

A rank that is replaced would begin with such an optimizer's state as the script creates it, for
example without momentum. From there on its weights would differ from those of its peers.

An optimizer inside another one is the common case (SAM, Lookahead). The outer one was named, and
the state is in the inner one.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping

import torch
from torch.optim import Optimizer

from outlast.errors import TransactionError


class UnnamedOptimizers:
    """Record the optimizers that stepped without a name, and refuse those that are used again.

    An optimizer that is created again in each block has nothing to keep (an inner loop of
    meta-learning). So an optimizer is refused when it steps in a second block.
    """

    def __init__(
        self, named: Mapping[str, Optimizer], parameters: Mapping[str, torch.Tensor]
    ) -> None:
        self._named = named
        self._parameters = parameters
        self._first_block: weakref.WeakKeyDictionary[Optimizer, int] = weakref.WeakKeyDictionary()
        self._blocks = 0

    def begin(self) -> None:
        """Begin another block."""
        self._blocks += 1

    def check(self, optimizer: Optimizer, line: Callable[[], str]) -> None:
        """Raise TransactionError if this optimizer has to be named.

        `line()` returns where it was stepped.
        """
        if any(optimizer is one or optimizer.state is one.state for one in self._named.values()):
            return
        if self._first_block.setdefault(optimizer, self._blocks) == self._blocks:
            return
        if not (steps := self._steps(optimizer)):
            return  # it trains something else, which is left to the script
        kind = type(optimizer).__name__
        raise TransactionError(
            f"{line()}: this {kind} steps {steps}, and run.state(...) was not given it: a rank that"
            f" is replaced would begin without the state of this {kind}",
            hint=f"name it as well: run.state(..., {self._argument(optimizer)})",
        )

    def _steps(self, optimizer: Optimizer) -> str:
        """Return the name of a parameter of the state that the optimizer steps, or ""."""
        held = {id(one) for group in optimizer.param_groups for one in group["params"]}
        return next((name for name, one in self._parameters.items() if id(one) in held), "")

    def _argument(self, optimizer: Optimizer) -> str:
        """Return the argument that names it.

        It is often an attribute of an optimizer that is named.
        """
        for name, outer in self._named.items():
            for attribute, value in vars(outer).items():
                if value is optimizer:
                    return f"{attribute}={name}.{attribute}"
        return "another_name=..."
