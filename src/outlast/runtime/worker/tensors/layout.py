"""The layout of the weights in an image, so that they can be read without the script.

    shards      where this rank's part of each distributed parameter is in the whole
    aliases     second names of parameters and buffers that two modules share
    transient   buffers that are not part of a state_dict

It is JSON text in the piece `layout/text` of every image that holds parameters. Images of an older
outlast have none: their parameters are whole, and have no second name.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from outlast.errors import CorruptError
from outlast.runtime.tiers.image import Image
from outlast.runtime.worker.tensors.modules import Modules, plain_name
from outlast.runtime.worker.tensors.sharding import is_distributed, shard_of

PIECE = "layout/text"


@dataclass(frozen=True, slots=True)
class Layout:
    """The content of a piece `layout/text`.

    shards   by name: the shape of the whole, and where this rank's part begins
    """

    shards: Mapping[str, tuple[tuple[int, ...], tuple[int, ...]]] = field(default_factory=dict)
    aliases: Mapping[str, str] = field(default_factory=dict)
    transient: frozenset[str] = frozenset()


def encode(modules: Modules, parameters: Mapping[str, torch.Tensor]) -> str:
    """Return the layout of these modules and parameters as text."""
    names = {id(one): name for name, one in (*modules.buffers().items(), *parameters.items())}
    aliases, transient = dict[str, str](), list[str]()
    for given, root in modules.named.items():
        for name, tensor in _tensors(given, root):
            first = names.get(id(tensor))
            if first is not None and first != name:
                aliases[name] = first
        transient += _transient(given, root)
    shards = {}
    for name, parameter in parameters.items():
        if is_distributed(parameter):
            shard = shard_of(parameter)
            shards[name] = [list(shard.global_shape), list(shard.offsets)]
    return json.dumps({"shards": shards, "aliases": aliases, "transient": sorted(transient)})


def of(image: Image) -> Layout:
    """Return the layout that an image contains, or an empty one. Raises CorruptError."""
    piece = image.tensors.get(PIECE)
    return Layout() if piece is None else decode(bytes(piece[1]).decode())


def decode(text: str) -> Layout:
    """Read what `encode` returned. Raises CorruptError for any other text."""
    try:
        body: Any = json.loads(text)
        shards = {
            str(name): (tuple(map(int, shape)), tuple(map(int, offsets)))
            for name, (shape, offsets) in body["shards"].items()
        }
        return Layout(shards, dict(body["aliases"]), frozenset(body["transient"]))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise CorruptError(f"an image's layout cannot be read: {error}") from None


def _tensors(given: str, root: nn.Module) -> list[tuple[str, torch.Tensor]]:
    """Return all parameters and buffers under all of their names."""
    both = (
        *root.named_parameters(remove_duplicate=False),
        *root.named_buffers(remove_duplicate=False),
    )
    return [(plain_name(f"{given}.{name}"), tensor) for name, tensor in both]


def _transient(given: str, root: nn.Module) -> list[str]:
    return [
        plain_name(".".join(filter(None, (given, path, key))))
        for path, module in root.named_modules()
        for key in module._non_persistent_buffers_set
    ]
