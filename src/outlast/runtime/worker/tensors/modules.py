"""The modules given to run.state: their parameters under stable names, and their buffers.

Buffers are copied, and put back. Names are those of the unwrapped module under the name it was
given: neither DDP's `module.` nor compile's `_orig_mod.` is part of them. A parameter or buffer
that two modules share has the first name only.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import nn

from outlast.errors import StateError
from outlast.runtime.worker.tensors.sharding import local


def unwrap(module: nn.Module) -> nn.Module:
    """Return the user's module inside DistributedDataParallel, DataParallel and torch.compile."""
    while True:
        compiled = module._modules.get("_orig_mod")
        if compiled is not None:
            module = compiled
        elif isinstance(module, (nn.parallel.DistributedDataParallel, nn.DataParallel)):
            module = module.module
        else:
            return module


def plain_name(name: str) -> str:
    return name.replace("_orig_mod.", "")


class _Kept:
    """Copies of buffers, in memory that is allocated once and used at every step; and modes.

    A module's mode is its `training`, and a parameter's mode is its `requires_grad`.
    """

    def __init__(self) -> None:
        self._copies: list[torch.Tensor | None] = []
        self._buffers: list[tuple[nn.Module, str, torch.Tensor | None]] = []
        self._training: list[bool] = []
        self._taking: list[bool] = []

    def keep(self, places: Iterable[tuple[nn.Module, str, str]]) -> None:
        """Copy the buffers at `places`: module, key, name."""
        self._buffers = [(module, key, module._buffers[key]) for module, key, _ in places]
        sources = [None if buffer is None else local(buffer) for _, _, buffer in self._buffers]
        if len(self._copies) != len(sources):
            self._copies = [None] * len(sources)
        for index, source in enumerate(sources):
            copy = self._copies[index]
            if (
                source is None
                or copy is None
                or copy.shape != source.shape
                or copy.dtype != source.dtype
                or copy.device != source.device
            ):
                self._copies[index] = None if source is None else torch.empty_like(source)
        copy_all(
            (
                (copy, source)
                for copy, source in zip(self._copies, sources, strict=True)
                if copy is not None and source is not None
            )
        )

    def put_back(self) -> None:
        """Restore the copies. A buffer that was assigned since is again the tensor that it was."""
        pairs = []
        for (module, key, buffer), copy in zip(self._buffers, self._copies, strict=True):
            module._buffers[key] = buffer
            if buffer is not None and copy is not None:
                pairs.append((local(buffer), copy))
        copy_all(pairs)

    def keep_modes(self, all_of: list[nn.Module], parameters: Iterable[torch.Tensor]) -> None:
        self._training = [module.training for module in all_of]
        self._taking = [parameter.requires_grad for parameter in parameters]

    def put_modes_back(self, all_of: list[nn.Module], parameters: Iterable[torch.Tensor]) -> None:
        for module, training in zip(all_of, self._training, strict=True):
            module.training = training
        for parameter, taking in zip(parameters, self._taking, strict=True):
            if parameter.requires_grad != taking:
                parameter.requires_grad_(taking)


class Modules:
    """The modules of a State.

    `parameters` are fixed at construction. Buffers are looked up each time, because forward may
    assign them.
    """

    def __init__(self, named: Mapping[str, nn.Module]) -> None:
        self.named = {name: unwrap(module) for name, module in named.items()}
        self.parameters: dict[str, nn.Parameter] = {}
        self._holders: list[tuple[nn.Module, str, str, nn.Parameter]] = []
        self._children: list[tuple[nn.Module, str, str, nn.Module]] = []
        self._places: list[tuple[nn.Module, str, str]] = []
        self._with_extra: list[tuple[str, nn.Module]] = []
        self._all: list[nn.Module] = []
        self._seen: set[int] = set()
        for name, module in self.named.items():
            self._add(name, module)
        self._count = self._count_buffers()
        self._kept = _Kept()

    def buffers(self) -> dict[str, torch.Tensor]:
        """Return the live buffers of this rank, including those that are not persistent."""
        out = {}
        for module, key, name in self._current_places():
            buffer = module._buffers[key]
            if buffer is not None:
                out[name] = local(buffer)
        return out

    def live(self) -> list[torch.Tensor]:
        """Return the buffers, without names, that `buffers` or `keep` found last."""
        return [
            buffer
            for module, key, _ in self._places
            if (buffer := module._buffers.get(key)) is not None
        ]

    def marks(self) -> list[tuple[int, int]]:
        """Return cheap evidence of a change: which tensor each buffer is, and its in-place changes.

        Writes through .data and NumPy are not seen.
        """
        return [(id(buffer), buffer._version) for buffer in self.live()]

    def moved(self, before: list[tuple[int, int]], now: list[tuple[int, int]]) -> list[str]:
        """Return the names of the buffers whose marks differ.

        If one was registered in between, all names are returned.
        """
        names = [name for module, key, name in self._places if module._buffers.get(key) is not None]
        if not len(before) == len(now) == len(names):
            return names
        return [name for name, old, new in zip(names, before, now, strict=True) if old != new]

    @property
    def has_extra(self) -> bool:
        """Return whether any module returns something from get_extra_state()."""
        return bool(self._with_extra)

    def extra(self) -> dict[str, Any]:
        """Return what modules return from get_extra_state()."""
        return {name: module.get_extra_state() for name, module in self._with_extra}

    def load_extra(self, extra: Mapping[str, Any]) -> None:
        for name, module in self._with_extra:
            module.set_extra_state(extra[name])

    def load_buffers(self, given: Mapping[str, torch.Tensor]) -> None:
        """Load buffers in place.

        Raises StateError if names, shapes or dtypes differ. A buffer that is None here and was a
        tensor there is created.
        """
        known = {name: (module, key) for module, key, name in self._current_places()}
        for name, value in given.items():
            if name not in known:
                raise StateError(
                    f"buffer {name} was saved, but the module has none",
                    hint="the model is not the one that was saved",
                )
            module, key = known.pop(name)
            mine = module._buffers[key]
            if mine is None:
                module._buffers[key] = value.detach().clone()
            else:
                overwrite({name: mine}, {name: value})
        missing = [
            name for name, (module, key) in known.items() if module._buffers[key] is not None
        ]
        if missing:
            raise StateError(
                f"buffer {missing[0]} is not among what was saved",
                hint="the model is not the one that was saved",
            )

    def check_identity(self) -> None:
        """Raise StateError naming a module or parameter that was exchanged for another.

        The optimizer and DDP would still hold the old one.
        """
        for module, key, name, child in self._children:
            if module._modules.get(key) is not child:
                raise _exchanged(name)
        for module, key, name, parameter in self._holders:
            if module._parameters.get(key) is not parameter:
                raise _exchanged(name)

    def keep(self) -> None:
        """Copy all buffers, into memory that is allocated once, and record the modes.

        Modes are what `train`, `eval` and `requires_grad_` set.
        """
        self._kept.keep(self._current_places())
        self._kept.keep_modes(self._all, self.parameters.values())

    def put_back(self) -> None:
        """Restore what `keep` copied, and the modes."""
        self._kept.put_back()
        self._kept.put_modes_back(self._all, self.parameters.values())

    def _add(self, prefix: str, root: nn.Module) -> None:
        """Add a module at the first walk over it, or buffers that were registered since."""
        for path, module in root.named_modules():
            base = plain_name(f"{prefix}.{path}." if path else f"{prefix}.")
            # It is found by its name, because importing the class takes long, and few scripts use
            # it.
            if "FullyShardedDataParallel" in {kind.__name__ for kind in type(module).__mro__}:
                raise StateError(
                    f"{base[:-1]} is wrapped in FullyShardedDataParallel (FSDP1), whose steps"
                    " cannot be taken back",
                    hint="use fully_shard (FSDP2), or run.replicate",
                )
            if id(module) in self._seen:
                continue
            self._seen.add(id(module))
            self._all.append(module)
            if type(module).get_extra_state is not nn.Module.get_extra_state:
                self._with_extra.append((base + "extra", module))
            self._children += [
                (module, key, base + key, child)
                for key, child in module._modules.items()
                if child is not None
            ]
            for key, parameter in module._parameters.items():
                if parameter is not None and id(parameter) not in self._seen:
                    self._seen.add(id(parameter))
                    self.parameters[base + key] = _checked(base + key, parameter)
                    self._holders.append((module, key, base + key, parameter))
            for key, buffer in module._buffers.items():
                if buffer is None or id(buffer) not in self._seen:
                    self._seen.add(id(buffer))
                    self._places.append((module, key, base + key))

    def _count_buffers(self) -> int:
        return sum([len(module._buffers) for module in self._all])

    def _current_places(self) -> list[tuple[nn.Module, str, str]]:
        """Return the places of the buffers.

        The modules are walked again only if a buffer was registered since. New ones come last.
        """
        if self._count_buffers() != self._count:
            known = {(id(module), key) for module, key, _ in self._places}
            for prefix, root in self.named.items():
                for path, module in root.named_modules():
                    base = plain_name(f"{prefix}.{path}." if path else f"{prefix}.")
                    self._places += [
                        (module, key, base + key)
                        for key in module._buffers
                        if (id(module), key) not in known
                    ]
                    known |= {(id(module), key) for key in module._buffers}
            self._places = [
                (module, key, name) for module, key, name in self._places if key in module._buffers
            ]
            self._count = self._count_buffers()
        return self._places


def overwrite(mine: Mapping[str, torch.Tensor], given: Mapping[str, torch.Tensor]) -> None:
    """Copy given[name] into mine[name], in place.

    Raises StateError before anything is written if a name is missing, or a shape or dtype differs.
    """
    pairs = []
    for name, tensor in mine.items():
        target, value = local(tensor), given.get(name)
        if value is None:
            raise StateError(
                f"{name} is not among what was saved",
                hint="the model is not the one that was saved",
            )
        if target.shape != value.shape or target.dtype != value.dtype:
            here, there = (
                f"{target.dtype} {list(target.shape)}",
                f"{value.dtype} {list(value.shape)}",
            )
            raise StateError(
                f"{name} is {here} here, but {there} in what was saved",
                hint="the model is not the one that was saved",
            )
        pairs.append((target, value))
    copy_all(pairs)


@contextlib.contextmanager
def watch(
    registered: Iterable[nn.Module], parameters: Iterable[torch.Tensor]
) -> Iterator[list[str]]:
    """Fill the list with modules that ran but are not registered, at the end of the block.

    Only modules with parameters or buffers of their own count. Those that are frozen, and have
    changed nothing since their first forward, do not count: the script itself creates a teacher or
    a pretrained encoder, in a replaced rank too. This uses a global forward hook, so it is for one
    step only. If torch.compile is at work it watches nothing, because a hook would recompile.
    """
    known = {id(part) for module in registered for part in module.modules()} | {
        id(parameter) for parameter in parameters
    }
    seen: dict[int, tuple[nn.Module, object]] = {}
    found: list[str] = []

    def look(module: nn.Module, _inputs: Any) -> None:
        if id(module) not in seen:
            seen[id(module)] = module, _frozen_as(_own_of(module))

    handle = (
        None if _compiled_anything() else nn.modules.module.register_module_forward_pre_hook(look)
    )
    try:
        yield found
    finally:
        if handle is not None:
            handle.remove()
        for module, frozen in seen.values():
            own = _own_of(module)
            if frozen is not None and frozen == _frozen_as(own):
                continue
            if id(module) not in known and any(id(part) not in known for part in own):
                found.append(
                    f"{type(module).__name__} ({sum(part.numel() for part in own):,} values)"
                )


def _own_of(module: nn.Module) -> list[torch.Tensor]:
    """Return the parameters and buffers of the module itself."""
    parts = (*module._parameters.values(), *module._buffers.values())
    return [part for part in parts if part is not None]


def _frozen_as(parts: Iterable[torch.Tensor]) -> object:
    """Return what changes if one of these is changed, or None if one takes a gradient.

    Return None as well if one of them does not count its changes.
    """
    marks = []
    for part in parts:
        plain = type(part) in (torch.Tensor, nn.Parameter)
        if part.requires_grad or not plain or part.is_inference():
            return None
        marks.append((part._version, part.data_ptr()))
    return marks


def _compiled_anything() -> bool:
    """Return whether torch.compile was called in this process."""
    frames = sys.modules.get("torch._dynamo.eval_frame")
    backends = getattr(frames, "cached_backends", None) or {}  # DDP enters None
    return any(backend is not None for backend in backends.values())


def _exchanged(name: str) -> StateError:
    return StateError(
        f"{name} is not the one given to run.state",
        hint="change the model before run.state, or change values in place",
    )


def _checked(name: str, parameter: nn.Parameter) -> nn.Parameter:
    if isinstance(parameter, nn.parameter.UninitializedParameter):
        raise StateError(
            f"{name} has no shape yet",
            hint="run one forward pass through lazy modules before run.state",
        )
    if parameter.is_meta:
        raise StateError(
            f"{name} is on the meta device",
            hint="materialize the model (to_empty, then initialize it) before run.state",
        )
    return parameter


def copy_all(pairs: Iterable[tuple[torch.Tensor, torch.Tensor]]) -> None:
    targets: list[torch.Tensor] = []
    sources: list[torch.Tensor] = []
    for target, source in pairs:
        targets.append(target)
        sources.append(source)
    if targets:
        # one call for all, because a loop in Python takes longer than small copies
        with torch.no_grad():
            torch._foreach_copy_(targets, sources)


def room_like(tensor: torch.Tensor) -> torch.Tensor:
    """Return memory for a copy of `tensor`.

    It is on the same device, or on the host if the device has no room for it.
    """
    try:
        return torch.empty_like(tensor)
    except torch.OutOfMemoryError:  # the memory is enough for training, but not for a second copy
        return torch.empty_like(tensor, device="cpu")
