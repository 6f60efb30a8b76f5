"""A tensor, or the part of it that one rank holds, put together from what ranks have saved."""

from __future__ import annotations

from typing import NamedTuple

import torch


class Box(NamedTuple):
    """A part of a tensor: it begins at `offsets` in the whole, and has `shape`."""

    offsets: tuple[int, ...]
    shape: tuple[int, ...]


class Patchwork:
    """Put together the values in one box of a tensor.

        box = Box((0, 0), (4, 8))  # all of a tensor, or the part that this rank holds
        patchwork = Patchwork(box, torch.float32)
        patchwork.lay(part, (2, 0))  # what one rank has saved, and where it begins
        patchwork.is_whole, patchwork.tensor

    `tensor` has the shape of the box. Its elements are undefined until `is_whole` is True.
    """

    def __init__(self, box: Box, dtype: torch.dtype) -> None:
        self.tensor = torch.empty(box.shape, dtype=dtype)
        self._offsets = box.offsets
        self._filled = torch.zeros(box.shape, dtype=torch.bool)

    def lay(self, part: torch.Tensor, offsets: tuple[int, ...]) -> bool:
        """Copy the part of the box that is in `part`, which begins at `offsets` in the whole.

        Return False, and copy nothing, if another part has brought other bits for the same place.
        """
        here, there = [], []
        for mine, size, theirs, length in zip(
            self._offsets, self.tensor.shape, offsets, part.shape, strict=True
        ):
            begin, end = max(mine, theirs), min(mine + size, theirs + length)
            if begin >= end:
                return True  # it contains nothing of the box
            here.append(slice(begin - mine, end - mine))
            there.append(slice(begin - theirs, end - theirs))
        place, new = tuple(here), part[tuple(there)]
        came = self._filled[place]
        if bool(came.any()):
            differs = (_bits(self.tensor[place]) != _bits(new)).any(dim=-1)
            if bool((differs & came).any()):
                return False
        self.tensor[place] = new
        self._filled[place] = True
        return True

    @property
    def is_whole(self) -> bool:
        """Return whether each element has arrived."""
        return bool(self._filled.all())


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    """Return the bytes of each element, in one more dimension."""
    flat = tensor.contiguous().reshape(-1).view(torch.uint8)
    return flat.reshape(*tensor.shape, tensor.element_size())
