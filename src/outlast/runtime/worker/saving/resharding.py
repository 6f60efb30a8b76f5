"""Go on from a checkpoint that another number of ranks has written.

    shared, replicated   rank 0's shard has all of it, or each shard a share (split_state.py)
    shared, sharded      each rank reads the shards of all saved ranks, one after the other, and
                         takes what is in its own part of each tensor; bit for bit
    private              a rank that was there keeps its own. A new rank takes rank 0's, but not its
                         random state if the script seeds each rank in another way
    loader               as private: the number of batches that were given, which is the same on all
                         ranks

The launcher has checked before whether the state can be divided (tiers/dividing.py). So what is
refused here is a script that has changed, or a layout that only the ranks know.

Limits     DTensors whose placements are plain Shard and Replicate, on a mesh of any shape. Tensors
           inside tuples or dicts of a sharded optimizer state cannot be divided. Nothing here
           communicates.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from outlast.errors import StateError
from outlast.runtime.tiers import local
from outlast.runtime.tiers.image import Image
from outlast.runtime.tiers.replicated import read_replicated
from outlast.runtime.worker.run_state.private import UNLIKE
from outlast.runtime.worker.run_state.state import State
from outlast.runtime.worker.saving import images
from outlast.runtime.worker.script.patchwork import Box, Patchwork
from outlast.runtime.worker.tensors import layout, optim_state, random_state, tree
from outlast.runtime.worker.tensors.sharding import is_distributed, is_plainly_cut, shard_of
from outlast.runtime.worker.tensors.sharding import local as local_part


def load_resharded(state: State, checkpoint: local.CheckpointFolder, rank: int) -> list[str]:
    """Load the state of `rank` from a checkpoint of another number of ranks.

    Return the private parts that the first new rank has from rank 0, and [] on all others, because
    one rank is enough to report it. Raises StateError for what cannot be divided, and CorruptError.
    """
    size = checkpoint.manifest.world_size
    was_there = rank < size
    like = rank if was_there else 0
    if checkpoint.manifest.kind == "sharded":
        own = _load_shards(state, checkpoint, like)
    else:
        own = read_replicated(checkpoint, like)
        images.load_shared(state, own)
    if was_there:
        images.load_private(state, own)
        return []
    taken = _take_stand_in(state, own)
    return taken if rank == size else []


def _load_shards(state: State, checkpoint: local.CheckpointFolder, like: int) -> Image:
    """Load this rank's part of all shards. Return the image of the rank `like`."""
    if not state.distributed:
        raise StateError(
            f"{checkpoint.folder} holds values of its own for each of"
            f" {checkpoint.manifest.world_size} ranks, and no tensor of this state is sharded",
            hint=f"resume with --nproc-per-node {checkpoint.manifest.world_size}",
        )
    shards = _Shards(state)
    own: Image | None = None
    for rank in range(checkpoint.manifest.world_size):
        image = local.read_shard(checkpoint, rank)
        shards.take(rank, image)
        own = image if rank == like else own
    assert own is not None
    text, tensors = images.shared_part(own)
    nested = {name: one for name, one in tensors.items() if name.startswith(_NESTED)}
    state.load_shared(text, {**shards.together(), **nested})
    return own


def _take_stand_in(state: State, image: Image) -> list[str]:
    """Take rank 0's private state, for a rank that is new. Return the parts that are rank 0's.

    A script that gives each rank a seed of its own wants other numbers on each rank, and rank 0's
    state would give its numbers to all new ranks. In that case, each keeps what the script has set.
    """
    mine, seed = random_state.capture(), torch.initial_seed()
    taken = images.load_stand_in_of(state, image)
    if torch.initial_seed() == seed:
        return taken
    random_state.restore(mine)
    return [part for part in taken if part != "random"]


# the names of tensors to which the text of the shared state refers begin with this
_NESTED = "shared/"


class _Shards:
    """Gather this rank's part of each tensor from the images of one saved rank after the other."""

    def __init__(self, state: State) -> None:
        self._shapes = {name: tuple(one.shape) for name, one in state.parameters.items()}
        self._boxes = {name: _box_of(name, one) for name, one in state.parameters.items()}
        names = {id(one): name for name, one in state.parameters.items()}
        # optimizer, place: the name of the parameter
        self._holders = {
            (name, place): names[id(parameter)]
            for name, optimizer in state.optimizers.items()
            for place, parameter in optim_state.parameters(optimizer)
        }
        self._parts: dict[str, Patchwork] = {}

    def take(self, rank: int, image: Image) -> None:
        """Take what the image of one saved rank has for this rank. Raises StateError."""
        text, tensors = images.shared_part(image)
        optimizers: Mapping[str, Any] = tree.decode(text, tensors)["optimizers"]
        laid_out = layout.of(image)
        self._refuse_nested(optimizers, laid_out)
        for name, part in tensors.items():
            if name.startswith(_NESTED):
                continue
            holder = self._cut_like(name, optimizers, laid_out)
            if holder is None:
                self._take_alike(rank, name, part)
            else:
                self._take_part(rank, name, part, laid_out.shards[holder], holder)

    def together(self) -> dict[str, torch.Tensor]:
        """Return this rank's part of all tensors. Raises StateError if a part of one is missing."""
        for name, patchwork in self._parts.items():
            if not patchwork.is_whole:
                raise StateError(
                    f"the saved parts of {name} do not make a whole",
                    hint="resume with as many ranks as the checkpoint has",
                )
        return {name: one.tensor for name, one in self._parts.items()}

    def _cut_like(
        self, name: str, optimizers: Mapping[str, Any], laid_out: layout.Layout
    ) -> str | None:
        """Return the parameter that a saved tensor is cut like; None if it is whole on each rank.

        A tensor of an optimizer is cut as its parameter is, unless the image says that it is whole.
        """
        if name in laid_out.shards:
            return name
        words = name.split(".", 3)
        if len(words) < 4 or words[0] not in optimizers:
            return None
        place = f"{words[1]}.{words[2]}"
        holder = self._holders.get((words[0], place))
        whole = f"{place}.{words[3]}" in optimizers[words[0]]["whole"]
        return None if whole or holder not in laid_out.shards else holder

    def _take_part(
        self,
        rank: int,
        name: str,
        part: torch.Tensor,
        where: tuple[tuple[int, ...], tuple[int, ...]],
        holder: str,
    ) -> None:
        shape, offsets = where
        if self._shapes.get(holder) != shape:
            mine = self._shapes.get(holder)
            raise StateError(
                f"{holder} is {list(shape)} in what was saved, and"
                f" {'is not' if mine is None else list(mine)} here",
                hint=UNLIKE,
            )
        if name not in self._parts:
            self._parts[name] = Patchwork(self._boxes[holder], part.dtype)
        if not self._parts[name].lay(part, offsets):
            raise _values_of_its_own(rank, name)

    def _take_alike(self, rank: int, name: str, part: torch.Tensor) -> None:
        """Take a tensor that is whole on each rank. It has to be the same on all ranks."""
        start = (0,) * part.dim()
        if name not in self._parts:
            self._parts[name] = Patchwork(Box(start, tuple(part.shape)), part.dtype)
        there = self._parts[name]
        if there.tensor.shape != part.shape or not there.lay(part, start):
            raise _values_of_its_own(rank, name)

    def _refuse_nested(self, optimizers: Mapping[str, Any], laid_out: layout.Layout) -> None:
        for name, described in optimizers.items():
            for place, values in described["rest"].items():
                cut = self._holders.get((name, place)) in laid_out.shards
                if cut and any(one.dim() for one in optim_state.tensors_in(values)):
                    raise StateError(
                        f"the state of {name} for its parameter {place} has tensors inside other"
                        " values, which cannot be divided among another number of ranks",
                        hint="resume with as many ranks as the checkpoint has",
                    )


def _values_of_its_own(rank: int, name: str) -> StateError:
    return StateError(
        f"rank {rank} has saved values of its own for {name}, which cannot be divided among another"
        " number of ranks",
        hint="resume with as many ranks as the checkpoint has",
    )


def _box_of(name: str, parameter: torch.Tensor) -> Box:
    """Return the box of a parameter that this rank holds. Raises StateError."""
    if not is_distributed(parameter):
        return Box((0,) * parameter.dim(), tuple(parameter.shape))
    if not is_plainly_cut(parameter):
        raise StateError(
            f"{name} is cut in a way that only as many ranks as before can load:"
            f" {getattr(parameter, 'placements', '')}",
            hint="resume with as many ranks as the checkpoint has",
        )
    return Box(shard_of(parameter).offsets, tuple(local_part(parameter).shape))
