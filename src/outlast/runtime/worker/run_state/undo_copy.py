"""The copy of the shared state from which a step is rolled back."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from outlast.runtime.worker.tensors import modules


class UndoCopy:
    """A copy of the shared state, in memory that is reused from step to step."""

    def __init__(self) -> None:
        self.copy: tuple[str, dict[str, torch.Tensor]] | None = None
        self._memory: dict[str, torch.Tensor] = {}

    def keep(self, text: str, live: Mapping[str, torch.Tensor]) -> None:
        """Copy the text and the `live` tensors."""
        for name, tensor in live.items():
            mine = self._memory.get(name)
            if mine is None or mine.shape != tensor.shape or mine.dtype != tensor.dtype:
                self._memory[name] = modules.room_like(tensor)
        copies = {name: self._memory[name] for name in live}
        modules.copy_all((copies[name], tensor) for name, tensor in live.items())
        self.copy = (text, copies)
