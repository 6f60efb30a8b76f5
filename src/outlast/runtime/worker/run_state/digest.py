"""Compute one short hash of all tensors of a model or a State: equal bits give an equal digest.

The hash covers names, dtypes, shapes and bytes, sorted by name. DDP's `module.` and compile's
`_orig_mod.` are not part of a name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
import torch.distributed as dist
import xxhash
from torch import nn

from outlast.errors import StateError
from outlast.runtime.worker.run_state.state import State
from outlast.runtime.worker.tensors import sharding
from outlast.runtime.worker.tensors.gather import gather_bytes
from outlast.runtime.worker.tensors.modules import Modules, plain_name, unwrap
from outlast.runtime.worker.tensors.sharding import is_distributed


def digest(value: nn.Module | State | Mapping[str, torch.Tensor], *, all: bool = False) -> str:  # noqa: A002 - the word users look for
    """Return a hash of all tensors of `value`, as 32 hexadecimal digits. Equal bits give equal
    digests.

        if run.rank == 0:
            print(outlast.digest(state))

    value   a module, what `run.state(...)` returned, or a dict of tensors by name
    all     True: hash the tensors of all ranks, and not only this rank's

    The digest of a State covers parameters, optimizer tensors and buffers. It leaves out random
    state, the loader's position and plain numbers. The digest of a distributed tensor is that of
    the whole tensor: a model under `fully_shard` has the same digest as the unsharded model.

    Buffers are this rank's own. The four ranks of a DDP run may have four different BatchNorm
    statistics, so print the digest of rank 0 or use `all=True`.

    If `all` is set or a tensor is distributed, the call communicates, and every rank of the default
    group must make it. Do not put it under `if run.rank == 0` then.

    It raises StateError for any other `value`, and for a tensor that has no bytes to hash, such as
    a sparse one.
    """
    hasher = xxhash.xxh3_128()
    for name, tensor in sorted(_named(value)):
        _add(hasher, name, tensor)
    return _of_all_ranks(hasher.digest()).hex() if all else hasher.hexdigest()


def _named(
    value: nn.Module | State | Mapping[str, torch.Tensor],
) -> Iterator[tuple[str, torch.Tensor]]:
    if isinstance(value, State):
        yield from value.whole_tensors().items()
        yield from value.modules.buffers().items()
    elif isinstance(value, nn.Module):
        modules = Modules({"model": unwrap(value)})
        yield from modules.parameters.items()
        yield from modules.buffers().items()
    elif isinstance(value, Mapping):
        yield from (
            (plain_name(name.removeprefix("module.")), tensor) for name, tensor in value.items()
        )
    else:
        raise StateError(
            f"digest of a {type(value).__name__}",
            hint="give a module, what run.state(...) returned, or a dict of tensors",
        )


def _add(hasher: xxhash.xxh3_128, name: str, tensor: torch.Tensor) -> None:
    whole = tensor.detach()
    if is_distributed(whole):
        whole = sharding.whole(whole)  # a collective, for one tensor at a time
    if whole.layout is not torch.strided or whole.is_quantized or whole.is_meta:
        raise StateError(
            f"{name} is a tensor of layout {whole.layout} on {whole.device}: it has no bytes to"
            " hash",
            hint="make it a dense tensor",
        )
    whole = whole.resolve_conj().resolve_neg().cpu().contiguous()
    hasher.update(f"{name} {whole.dtype} {list(whole.shape)}\n".encode())
    if whole.numel():
        hasher.update(whole.reshape(-1).view(torch.uint8).numpy().data)


def _of_all_ranks(mine: bytes) -> bytes:
    """Return the hash of all ranks' hashes, in the order of ranks."""
    ranks = [mine]
    if dist.is_available() and dist.is_initialized():
        ranks = gather_bytes(mine)
    return xxhash.xxh3_128(b"".join(ranks)).digest()
