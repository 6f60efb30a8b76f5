"""Compare two sets of weights, tensor by tensor.

    compare(read_any("runs/a"), read_any("model.safetensors"))

Two tensors are the same if all of their bits are. Distances are computed over elements that are
finite on both sides. An element that is NaN or infinite on one side differs, and has no distance.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from outlast.errors import CorruptError, UsageError
from outlast.runtime.worker.saving import saved_weights

_BLOCK_COUNT = 1 << 22  # how many elements are compared at once, as float64


@dataclass(frozen=True, slots=True)
class Side:
    """One side of a comparison. `step` is None for a file that does not name it."""

    where: str
    step: int | None
    tensors: Mapping[str, torch.Tensor]


@dataclass(frozen=True, slots=True)
class WeightDifference:
    """One tensor that is not the same on both sides.

    kind         "only in A", "only in B", "dtype or size" or "values"
    said         dtype and size, of both sides if they differ
    differing    how many elements differ; None if they cannot be compared
    of           how many elements there are
    max_apart    the largest distance of two elements
    relative     the norm of the difference over the norm of A; None if A is all zero
    """

    name: str
    kind: str
    said: str
    differing: int | None = None
    of: int | None = None
    max_apart: float | None = None
    relative: float | None = None


def read_any(where: str, *, step: int | None = None) -> Side:
    """Read the weights of a run, of a checkpoint, or of a file that `ckpt export` can write.

    Raises UsageError, and CorruptError for a file that is damaged.
    """
    path = Path(where)
    if not path.is_file():
        weights = saved_weights.read(path, step=step)
        return Side(where, weights.step, weights.tensors)
    if step is not None:
        raise UsageError(f"{where} is a file and has no steps", hint="leave --step out")
    try:
        found = _read_file(path)
    except Exception as error:  # boundary: a reader may raise anything for these bytes
        raise CorruptError(
            f"{where} cannot be read: {str(error).splitlines()[0] if str(error) else error!r}",
            hint="name a .safetensors file, or one that torch.load(weights_only=True) takes",
        ) from None
    tensors = {name: one for name, one in found.items() if isinstance(one, torch.Tensor)}
    if not tensors:
        raise UsageError(f"{where} holds no tensors by name")
    return Side(where, None, tensors)


def compare(a: Side, b: Side) -> tuple[list[WeightDifference], int]:
    """Return the differences, in the order of names, and how many names there are.

    The names in a file have no module's name in front. Then the file is compared with that module
    alone.
    """
    a_tensors, b_tensors = _matched(a, b)
    out = []
    for name in sorted({*a_tensors, *b_tensors}):
        left, right = a_tensors.get(name), b_tensors.get(name)
        if left is None or right is None:
            there = left if left is not None else right
            assert there is not None
            kind = "only in A" if right is None else "only in B"
            out.append(WeightDifference(name, kind, _said(there)))
        elif (left.shape, left.dtype) != (right.shape, right.dtype):
            said = f"{_said(left)}, {_said(right)}"
            out.append(WeightDifference(name, "dtype or size", said))
        elif not torch.equal(_bits(left), _bits(right)):
            out.append(_apart(name, left, right))
    return out, len({*a_tensors, *b_tensors})


def _read_file(path: Path) -> dict[str, Any]:
    if path.suffix == ".safetensors":
        from safetensors.torch import load_file

        return load_file(path)
    found = torch.load(path, map_location="cpu", weights_only=True)
    return found if isinstance(found, dict) else {}


def _matched(a: Side, b: Side) -> tuple[Mapping[str, torch.Tensor], Mapping[str, torch.Tensor]]:
    """Return both sides with matching names: a file has names without that of the module."""
    if {*a.tensors} & {*b.tensors}:
        return a.tensors, b.tensors
    for module in sorted({name.partition(".")[0] for name in (*a.tensors, *b.tensors)}):
        begin = f"{module}."
        short_a, short_b = _without(begin, a.tensors), _without(begin, b.tensors)
        if {*short_a} & {*b.tensors}:
            return short_a, b.tensors
        if {*short_b} & {*a.tensors}:
            return a.tensors, short_b
    return a.tensors, b.tensors


def _without(begin: str, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name[len(begin) :]: one for name, one in tensors.items() if name.startswith(begin)}


def _said(tensor: torch.Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    flat = tensor.detach().resolve_conj().contiguous().reshape(-1)
    return flat.view(torch.uint8) if flat.numel() else flat


def _apart(name: str, left: torch.Tensor, right: torch.Tensor) -> WeightDifference:
    differing, largest, squares, norm = 0, 0.0, 0.0, 0.0
    a, b = left.reshape(-1), right.reshape(-1)
    for at in range(0, a.numel(), _BLOCK_COUNT):
        one, other = a[at : at + _BLOCK_COUNT], b[at : at + _BLOCK_COUNT]
        unlike = (_bits(one).view(len(one), -1) != _bits(other).view(len(one), -1)).any(1)
        differing += int(unlike.sum())
        wide = torch.complex128 if one.is_complex() else torch.float64
        x, y = one.to(wide), other.to(wide)
        both = torch.isfinite(x) & torch.isfinite(y)
        gap = (x - y)[both].abs()
        largest = max(largest, float(gap.max()) if gap.numel() else 0.0)
        squares += float((gap * gap).sum())
        norm += float((x[both].abs() ** 2).sum())
    relative = math.sqrt(squares / norm) if norm > 0 else None
    return WeightDifference(name, "values", _said(left), differing, a.numel(), largest, relative)
