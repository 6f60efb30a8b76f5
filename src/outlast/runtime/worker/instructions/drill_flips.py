"""A bit flips in the state of one rank, as in a broken device (`outlast drill silent-corruption`).

The bit is one of the mantissa of the largest number of a tensor. It is written past what counts
changes of tensors. Weights are flipped before the optimizer runs. Gradients are flipped after they
were averaged over the ranks, so this rank alone has a wrong one.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator

import torch
from torch import Tensor
from torch.optim import Optimizer

BIT = 1 << 6  # of the second highest octet: in float32 and bfloat16, the highest of the mantissa


def flip(what: str) -> None:
    """Flip a bit in the "weights", the "gradients", or the state of the "optimizer".

    Where there is no such tensor, a weight is flipped.
    """
    largest = max(_parameters(), key=lambda pair: pair[1].numel(), default=None)
    if largest is None:
        return
    optimizer, parameter = largest
    chosen = parameter
    if what == "gradients" and parameter.grad is not None:
        chosen = parameter.grad
    elif what == "optimizer":
        state = optimizer.state.get(parameter, {}).values()
        whole = (one for one in state if isinstance(one, Tensor) and one.numel() > 1)
        chosen = next(whole, parameter)
    _flip_in(chosen)


def _parameters() -> Iterator[tuple[Optimizer, Tensor]]:
    """Yield the parameters that have a gradient, each with its optimizer."""
    for one in gc.get_objects():
        # isinstance would ask a lazy object for its class, and so import it
        if issubclass(type(one), Optimizer):
            for group in one.param_groups:
                yield from ((one, each) for each in group["params"] if each.grad is not None)


def _flip_in(tensor: Tensor) -> None:
    plain = getattr(tensor, "_local_tensor", tensor).data  # `.data` has its own count of changes
    place = torch.unravel_index(plain.abs().argmax(), plain.shape)
    steps = zip(place, plain.stride(), strict=True)
    offset = plain.storage_offset() + sum(int(at) * stride for at, stride in steps)
    octets = plain.as_strided((1,), (1,), offset).view(torch.uint8)
    octets[-2:-1] ^= BIT
