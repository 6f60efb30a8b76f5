"""Read the weights of a run that has ended or still goes on, to use them elsewhere.

    outlast.load("runs/x", model=model)       into a model of the same shape; returns the step
    export("runs/x", "model.safetensors")     into a file; `outlast ckpt export` calls it

Both read the newest checkpoint whose checksums are all right. They take no part in the run, and
change nothing of it. Parts of sharded parameters (FSDP2) are put together.

Limits     Only what a checkpoint contains can be read: `outlast run --checkpoint-every STEPS`
           writes checkpoints. Each rank's file is read completely, one at a time, and there is one
           more copy of the weights in memory.
"""

from __future__ import annotations

import os
import shutil
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from outlast.errors import CorruptError, StateError, UsageError
from outlast.model.texts import some
from outlast.runtime.tiers import checkpoint_places, local
from outlast.runtime.tiers.image import Image
from outlast.runtime.tiers.replicated import read_replicated
from outlast.runtime.tiers.tier import CheckpointTier, newest_good
from outlast.runtime.worker.dcp import chunks
from outlast.runtime.worker.saving.images import PRIVATE, SHARED, holds_shared
from outlast.runtime.worker.script.patchwork import Box, Patchwork
from outlast.runtime.worker.tensors import layout, tree
from outlast.runtime.worker.tensors.modules import Modules
from outlast.runtime.worker.tensors.sharding import is_distributed
from outlast.runtime.worker.tensors.tensors import DTYPES, NOT_FOR_OTHERS, to_tensor

_NO_BUFFERS = ("private/", "random:", "text")  # private pieces with such names are not buffers


@dataclass(frozen=True, slots=True)
class CheckpointWeights:
    """The parameters and buffers of one checkpoint, by the names that `run.state` gave them.

    aliases     another name of a tensor -> its name in `tensors`
    transient   buffers that their module leaves out of its own state_dict()
    refused     newer checkpoints that were not used, and why, in one sentence each
    """

    step: int
    tensors: dict[str, torch.Tensor]
    aliases: Mapping[str, str]
    transient: frozenset[str]
    refused: tuple[str, ...]

    def names(self) -> list[str]:
        """Return the names of modules that have weights here."""
        return sorted({name.partition(".")[0] for name in self.tensors})

    def state_dict(self, name: str) -> dict[str, torch.Tensor]:
        """Return what `load_state_dict` accepts, for the module with this name in `run.state`.

        Raises StateError if the checkpoint has no weights of that name.
        """
        if name not in self.names():
            raise StateError(
                f"the checkpoint of step {self.step} has no weights of {name!r}",
                hint=f"it has those of {some(self.names())}",
            )
        found = {**self.tensors, **{new: self.tensors[old] for new, old in self.aliases.items()}}
        begin = f"{name}."
        return {
            one[len(begin) :]: tensor
            for one, tensor in found.items()
            if one.startswith(begin) and one not in self.transient
        }


def load(run: str | os.PathLike[str], **modules: nn.Module) -> int:
    """Load weights that a run has saved into modules, and return the step of these weights.

        step = outlast.load("runs/x", model=model)

    `run` is the folder of a run, the folder that holds its checkpoints, or one checkpoint. It need
    not have ended. Each module has the name that `run.state(model=...)` gave it. It may be the bare
    module, or one under DistributedDataParallel or torch.compile. Its device may be another.

    Nothing is loaded unless all fits. It raises UsageError where there is no checkpoint, StateError
    where names, shapes or dtypes differ, and CorruptError for a damaged file.
    """
    if not modules:
        raise UsageError("outlast.load(...) was given no module", hint="say model=model")
    weights = read(Path(run))
    for reason in weights.refused:
        warnings.warn(f"a newer checkpoint was passed over: {reason}", stacklevel=2)
    pairs = _fitting(weights, Modules(modules))
    with torch.no_grad():
        for tensor, value in pairs:
            tensor.copy_(value)
    return weights.step


def _fitting(
    weights: CheckpointWeights, targets: Modules
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return each tensor of `targets` with what was saved of it. Raises StateError."""
    mine = {**targets.parameters, **targets.buffers()}
    pairs = []
    for name, tensor in mine.items():
        value = weights.tensors.get(name)
        if is_distributed(tensor):
            raise StateError(f"{name} is sharded", hint="call outlast.load before fully_shard")
        if value is None or (value.shape, value.dtype) != (tensor.shape, tensor.dtype):
            saved = "was not saved" if value is None else f"{value.dtype} {list(value.shape)} there"
            raise StateError(
                f"{name} is {tensor.dtype} {list(tensor.shape)} here, and {saved}",
                hint=f"step {weights.step} has weights of {some(weights.names())}",
            )
        pairs.append((tensor, value))
    left = [
        name
        for name in weights.tensors
        if name.partition(".")[0] in targets.named and name not in mine
    ]
    if left:
        raise StateError(
            f"{some(left)} {'was' if len(left) == 1 else 'were'} saved, and not found here",
            hint="make the model with the settings that it was trained with",
        )
    return pairs


def export(weights: CheckpointWeights, file: Path, *, name: str, form: str | None = None) -> int:
    """Write the weights of module `name` to `file`, and return how many tensors that are.

    `form` is "safetensors", "torch" for `torch.load`, or "dcp" for a folder that torch's `dcp.load`
    reads. Without it a name that ends in `.safetensors` gets that format, and every other file is
    for `torch.load`. The file appears whole, or not at all. Raises UsageError where there is one
    already.
    """
    if file.exists():
        raise UsageError(f"{file} exists already", hint="name a new file, or remove that one")
    if not file.parent.is_dir():
        raise UsageError(f"there is no folder {file.parent}", hint="make it first")
    found = weights.state_dict(name)
    form = form or ("safetensors" if file.suffix == ".safetensors" else "torch")
    temporary = file.with_name(f".{file.name}.{os.getpid()}.tmp")
    try:
        if form == "safetensors":
            _write_safetensors(found, temporary, step=weights.step)
        elif form == "dcp":
            _write_dcp({name: found}, temporary)
        else:
            torch.save(found, temporary)
        temporary.rename(file)
    except OSError as error:
        raise UsageError(f"{file} cannot be written: {error.strerror or error}") from None
    finally:
        if temporary.is_dir():
            shutil.rmtree(temporary)
        temporary.unlink(missing_ok=True)
    return len(found)


def read(where: Path, *, step: int | None = None) -> CheckpointWeights:
    """Read the weights of the newest good checkpoint of a run, or of that of `step`.

    `where` is as for `load`. Raises UsageError, StateError and CorruptError as it does.
    """
    tier, checkpoint, refused = _find(where, step)
    if checkpoint.manifest.kind == "dcp":
        return _of_dcp(tier, checkpoint.manifest.step, refused)
    gathered = _Gathered()
    if checkpoint.manifest.kind == "sharded":
        for rank in range(checkpoint.manifest.world_size):
            gathered.take(rank, local.read_shard(checkpoint, rank))
    else:
        gathered.take(0, read_replicated(checkpoint))
    return gathered.whole(checkpoint.manifest.step, refused)


class _Gathered:
    """Gather parameters and buffers from the images of one rank after the other."""

    def __init__(self) -> None:
        self._tensors: dict[str, torch.Tensor] = {}
        self._cut: dict[str, Patchwork] = {}  # the sharded tensors
        self._aliases: dict[str, str] = {}
        self._transient: set[str] = set()

    def take(self, rank: int, image: Image) -> None:
        """Add what one rank's image contains. Rank 0's image comes first, and its buffers count."""
        if not holds_shared(image):
            raise CorruptError(f"the image of rank {rank} holds no parameters")
        mine = layout.of(image)
        self._aliases |= mine.aliases
        self._transient |= mine.transient
        self._add_buffers(image)
        optimizers = _optimizers(image)
        for name, (spec, data) in image.tensors.items():
            plain = name[len(SHARED) :]
            if not name.startswith(SHARED) or plain == "text" or plain.startswith("shared/"):
                continue
            if plain.partition(".")[0] not in optimizers:
                self._add(plain, to_tensor(spec, data), mine, rank)

    def whole(self, step: int, refused: tuple[str, ...]) -> CheckpointWeights:
        """Return the weights. Raises StateError if no rank has saved some part of a tensor."""
        for name, patchwork in self._cut.items():
            if not patchwork.is_whole:
                raise StateError(
                    f"the parts of {name} do not make a whole",
                    hint="it is laid out in a way that outlast cannot put together",
                )
        return CheckpointWeights(
            step, self._tensors, self._aliases, frozenset(self._transient), refused
        )

    def _add_buffers(self, image: Image) -> None:
        for name, (spec, data) in image.tensors.items():
            plain = name[len(PRIVATE) :]
            if name.startswith(PRIVATE) and not plain.startswith(_NO_BUFFERS):
                self._tensors.setdefault(plain, to_tensor(spec, data))

    def _add(self, name: str, part: torch.Tensor, mine: layout.Layout, rank: int) -> None:
        if name in mine.shards:
            shape, offsets = mine.shards[name]
            if name not in self._cut:
                self._cut[name] = Patchwork(Box((0,) * len(shape), shape), part.dtype)
                self._tensors[name] = self._cut[name].tensor
            alike = self._cut[name].lay(part, offsets)
        else:
            alike = torch.equal(self._tensors.setdefault(name, part), part)
        if not alike:
            raise StateError(
                f"each rank has values of its own for {name}",
                hint=f"take one rank's from {local.shard_name(rank)}, which is a safetensors file",
            )


def _optimizers(image: Image) -> set[str]:
    """Return the names of optimizers, whose tensors are beside the parameters."""
    tensors = {
        name[len(SHARED) :]: to_tensor(*one)
        for name, one in image.tensors.items()
        if name.startswith(SHARED + "shared/")
    }
    described: Any = tree.decode(bytes(image.tensors[SHARED + "text"][1]).decode(), tensors)
    return set(described["optimizers"])


def _of_dcp(tier: CheckpointTier, step: int, refused: tuple[str, ...]) -> CheckpointWeights:
    """Read all tensors of a checkpoint of DCP. A flat name begins with the name of its part."""
    manifest, record = chunks.read_record(tier, step)
    tensors = {
        name: chunks.whole(tier, manifest, name, one) for name, one in record.tensors.items()
    }
    return CheckpointWeights(step, tensors, {}, frozenset(), refused)


def _find(
    where: Path, step: int | None
) -> tuple[CheckpointTier, local.CheckpointFolder, tuple[str, ...]]:
    """Return the checkpoint to read, and why newer ones were not used."""
    place = checkpoint_places.find(where, step=step)
    refused: tuple[str, ...] = ()
    if place.step is None:
        search = newest_good(place.tier)
        refused = tuple(f"{place.tier.folder(one)}: {why}" for one, why in search.refused)
        if search.step is None and refused:
            raise CorruptError(f"no checkpoint of {where} can be read: {refused[0]}")
        if search.step is None:
            raise UsageError(
                f"{where} has no checkpoint",
                hint="`outlast run --checkpoint-every STEPS` writes them",
            )
        place = checkpoint_places.CheckpointPlace(place.tier, search.step)
    assert place.step is not None
    folder = place.tier.folder(place.step)
    checkpoint = local.CheckpointFolder(folder, place.tier.manifest(place.step))
    return place.tier, checkpoint, refused


def _write_dcp(state: dict[str, Any], folder: Path) -> None:
    """Write the folder that torch's own writer makes, in this process alone."""
    from torch.distributed.checkpoint.filesystem import FileSystemWriter
    from torch.distributed.checkpoint.state_dict_saver import save

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it is normal here that there is no process group
        save(state, storage_writer=FileSystemWriter(folder), no_dist=True)


def _write_safetensors(found: Mapping[str, torch.Tensor], file: Path, *, step: int) -> None:
    from safetensors.torch import save_file

    foreign = [name for name, one in found.items() if DTYPES.get(one.dtype) in NOT_FOR_OTHERS]
    if foreign:
        raise UsageError(
            f"{some(foreign)}: {found[foreign[0]].dtype} has no place in a safetensors file",
            hint="--format torch, or --format dcp",
        )

    apart = dict(_apart(found))
    save_file(apart, file, metadata={"format": "pt", "outlast_step": str(step)})


def _apart(found: Mapping[str, torch.Tensor]) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield tensors that share no memory, because safetensors accepts no others."""
    seen: set[int] = set()
    for name, tensor in found.items():
        again = tensor.data_ptr() in seen and tensor.numel() > 0
        seen.add(tensor.data_ptr())
        yield name, tensor.clone() if again else tensor.contiguous()
