"""The queue of outputs that a driver of a state machine carries out."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

from outlast.engine.protocol.outputs import Output


class OutputQueue:
    """Carry out outputs in order. The outputs that these cause come after them."""

    def __init__(self, carry_out: Callable[[Output], object]) -> None:
        self._carry_out = carry_out
        self._outputs: deque[Output] = deque()

    def do(self, outputs: Iterable[Output]) -> None:
        """Carry out `outputs` now, or after those that are being carried out."""
        running = bool(self._outputs)
        self._outputs.extend(outputs)
        if running:
            return
        while self._outputs:
            self._carry_out(self._outputs[0])
            self._outputs.popleft()
