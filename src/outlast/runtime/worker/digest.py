"""One short hash of all tensors of a model or a State: equal bits, equal digest.

Names, dtypes, shapes and bytes go in, sorted by name; DDP's `module.` and compile's `_orig_mod.`
are no part of a name. Of a State: parameters, optimizer tensors and buffers. Random state, loader
position and plain numbers are left out.

Buffers are those of this rank: four ranks of a DDP run have four different BatchNorm statistics, so
the digest to print is rank 0's, and `all=True` hashes all ranks'. The digest of a distributed
tensor is that of the whole: under fully_shard it equals the digest of the same model unsharded, and
every rank must call.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
import torch.distributed as dist
import xxhash
from torch import nn

from outlast.errors import StateError
from outlast.runtime.worker.gather import gather_bytes
from outlast.runtime.worker.modules import Modules, plain_name, unwrap
from outlast.runtime.worker.sharding import is_distributed
from outlast.runtime.worker.state import State


def digest(value: nn.Module | State | Mapping[str, torch.Tensor], *, all: bool = False) -> str:  # noqa: A002 - the word users look for
    """32 hex digits.

    No collective, unless `all` is set or tensors are distributed; then every rank of the default
    group must call.
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
        with torch.no_grad():
            whole = whole.full_tensor()  # type: ignore[attr-defined]  # a collective, one tensor at a time
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
    """Hash of the ranks' hashes, in the order of ranks."""
    ranks = [mine]
    if dist.is_available() and dist.is_initialized():
        ranks = gather_bytes(mine)
    return xxhash.xxh3_128(b"".join(ranks)).digest()
