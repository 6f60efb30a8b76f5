"""Leave a backward pass whose gradients are not needed any more, because a peer is lost.

The other ranks have to wait until this rank has left it.

A backward pass is one call into C++, which a signal cannot interrupt. A hook on a parameter is
called between two of its nodes, on whichever thread runs them, and may raise. That ends the
backward pass. What an interrupted DDP keeps of it is forgotten at the regroup (see ddp.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

from outlast.errors import StepInterrupted
from outlast.model.limits import BACKWARD_EXITS_COUNT


class BackwardExits:
    """Places in a backward pass at which a rank can leave it.

    `over` is called at each exit, and returns whether to leave there. Sharded parameters have no
    exits, because their backward pass waits for peers all the time.
    """

    def __init__(self, parameters: Iterable[torch.Tensor], *, over: Callable[[], bool]) -> None:
        self._parameters = [parameter for parameter in parameters if parameter.is_leaf]
        self._over = over
        self._exits: list[torch.Tensor] = []
        self._handles: list[Any] = []

    def install(self) -> None:
        """Watch some parameters, evenly spread over the order in which they were created.

        That is roughly the reverse order of a backward pass. Calling it again changes nothing,
        unless the script has frozen one of them meanwhile. Then others are chosen.
        """
        if self._handles and all(parameter.requires_grad for parameter in self._exits):
            return
        self.remove()
        parameters = [parameter for parameter in self._parameters if parameter.requires_grad]
        self._exits = parameters[:: max(1, len(parameters) // BACKWARD_EXITS_COUNT)]
        self._handles = [parameter.register_hook(self._look) for parameter in self._exits]

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def _look(self, _: torch.Tensor) -> None:
        if self._over():
            raise StepInterrupted
