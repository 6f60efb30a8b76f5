"""`State`: everything of a rank that survives a failure, captured and put back bit for bit.

Nothing here communicates.

    kind        what                                                               where
    shared      parameters; optimizer tensors and hyper-parameters;                `shared_tensors`,
                schedulers; grad scalers; which parameters have a gradient.        `load_shared`
                It is replicated, or this rank's shards (DTensors), or this
                rank's own (values that differ by rank).
    private     module buffers, random state, the loader's position,               `private`
                generators, objects with state_dict()                              (private.py)

Schedulers and scalers change after the optimizer, at the end of a step, and are the same on all
ranks. A lost rank has sealed its image before that change. So its successor takes them from the
peer that also gives it the parameters, and that has run the step to its end.

Both kinds are returned as JSON text and live tensors, so copy them before the next step.
`private.load` and `load_shared` together restore a rank completely.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from outlast.errors import StateError
from outlast.model.limits import SHAPES_LOOK_STEPS, STATE_TEXT_BYTES, TENSOR_HEADER_BYTES
from outlast.runtime.tiers.image import TensorPiece, TensorSpec
from outlast.runtime.worker.communication import ddp
from outlast.runtime.worker.data.drawn_batches import DrawnBatches
from outlast.runtime.worker.data.loaders import BatchSource, open_source
from outlast.runtime.worker.run_state.private import UNLIKE, PrivatePart, PrivateState, copies_of
from outlast.runtime.worker.run_state.undo_copy import UndoCopy
from outlast.runtime.worker.script.hooks import scaler_reset
from outlast.runtime.worker.tensors import layout, modules, optim_state, random_state, tree
from outlast.runtime.worker.tensors.edits import Edits
from outlast.runtime.worker.tensors.sharding import (
    Shard,
    is_distributed,
    is_sharded,
    local,
    shard_of,
)


@dataclass(slots=True)
class _Sorted:
    """The arguments of `run.state`, by kind.

    groups         how many parameter groups each optimizer had, by its name
    buffer_syncs   whether the next forward of each DDP replica around the modules broadcasts its
                   buffers (ddp.py)
    """

    given: dict[str, object]
    optimizers: dict[str, torch.optim.Optimizer] = field(default_factory=dict)
    groups: dict[str, int] = field(default_factory=dict)
    scalers: dict[str, torch.amp.GradScaler] = field(default_factory=dict)
    schedulers: dict[str, PrivatePart] = field(default_factory=dict)
    objects: dict[str, PrivatePart] = field(default_factory=dict)
    source: BatchSource | None = None
    buffer_syncs: PrivatePart = field(default_factory=lambda: PrivatePart(list, lambda _: None))


class _KnownShapes:
    """The shapes and dtypes that `State.check_signature` found last.

    known    of each tensor, by its name
    newest   in order and without names: of all tensors (True), and of buffers alone (False)
    """

    def __init__(self) -> None:
        self.known: dict[str, tuple[torch.Size, torch.dtype]] = {}
        self.newest: dict[bool, list[tuple[torch.Size, torch.dtype]]] = {True: [], False: []}
        self._looks = 0

    def looks_at_all(self) -> bool:
        """Count one more check.

        Return True if this one covers all tensors, False if only buffers.
        """
        self._looks += 1
        return self._looks % SHAPES_LOOK_STEPS == 1 or self._looks <= 3


class State:
    """Everything that a rank must keep, sorted by kind. `run.state(...)` returns it.

        state = run.state(model=model, optimizer=optimizer, scheduler=scheduler, loader=loader)
        for step in run.steps(state, until=1_000):
            ...

    A script makes one State, gives it to `run.steps`, and does not call its methods. It may print
    `outlast.digest(state)`, which is the same on two runs that hold the same bits. The State lives
    until the run ends, or until `outlast.main` calls its function again.

    The arguments are modules, optimizers, schedulers, grad scalers, one DataLoader or what
    `run.draw(...)` returned, random generators, and objects with `state_dict()` and
    `load_state_dict()`. An argument that is None is left out (`scaler=None`). It raises StateError
    for anything else, for a second loader, and for the names "private" and "shared".

    It does not keep attributes of modules that are neither parameters nor buffers, generators that
    were not named, and gradients that are carried from one step into the next. requires_grad and
    training mode go back where a step is repeated; a replaced rank has what its script sets.
    """

    def __init__(self, **named: object) -> None:
        self._sorted = _Sorted({name: one for name, one in named.items() if one is not None})
        nets: dict[str, nn.Module] = {}
        for name, value in self.given.items():
            self._sort(name, value, nets)
        self.modules = modules.Modules(nets)
        self.parameters: dict[str, torch.Tensor] = dict(self.modules.parameters)
        self._add_loose_parameters()
        self.private = PrivateState(self.modules, self._sorted.objects, self.source)
        if isinstance(self.source, DrawnBatches):
            self.source.look_at(self.private.prints)
        self.distributed = any(is_sharded(parameter) for parameter in self.parameters.values())
        # True once shared tensors are known to differ between ranks. Then each rank keeps its own.
        self.differs_by_rank = False
        self.edits = Edits(self._editable, self._optimized)
        self._step = _StepKeeper(self)
        self._undo = UndoCopy()
        self._shapes = _KnownShapes()

    @property
    def given(self) -> dict[str, object]:
        """Return the arguments of `run.state` that are not None, by name."""
        return self._sorted.given

    @property
    def optimizers(self) -> dict[str, torch.optim.Optimizer]:
        """Return the optimizers, by name."""
        return self._sorted.optimizers

    @property
    def scalers(self) -> dict[str, torch.amp.GradScaler]:
        """Return the gradient scalers, by name."""
        return self._sorted.scalers

    @property
    def source(self) -> BatchSource | None:
        """Return the loader that was named, or None if there is none."""
        return self._sorted.source

    @property
    def sharded(self) -> bool:
        """Return whether this rank seals parameters and optimizer state in its own images.

        It does if they are distributed tensors, or if their values differ between ranks. Otherwise
        all ranks hold the same, and a replacement takes them from any of them.
        """
        return self.distributed or self.differs_by_rank

    def bind(self, rank: int, world_size: int) -> None:
        """Give the loader its share of the batches, which is that of `rank` out of `world_size`."""
        if self.source is not None:
            self.source.bind(rank, world_size)

    def held_by(self, replicas: list[DistributedDataParallel]) -> None:
        """Note the DDP replicas around the modules, whose pending buffer syncs are kept too."""
        self._sorted.buffer_syncs = PrivatePart(
            lambda: ddp.buffer_syncs(replicas), lambda syncs: ddp.put_buffer_syncs(replicas, syncs)
        )

    # --- shared state -----------------------------------------------------------------------------

    def shared_tensors(self) -> tuple[str, dict[str, torch.Tensor]]:
        """Return the text and the live local tensors of the shared state.

        These are the parameters and, once there is any, the optimizer state.
        """
        described = {
            "optimizers": {
                name: optim_state.describe(optimizer, self._added_groups(name))
                for name, optimizer in self.optimizers.items()
            },
            "schedulers": {name: part.get() for name, part in self._sorted.schedulers.items()},
            "scalers": {name: scaler.state_dict() for name, scaler in self.scalers.items()},
            "graded": self._graded(),
            "buffer_syncs": self._sorted.buffer_syncs.get(),
        }
        parts = tree.encode(described, "shared")
        return parts.text, {
            **{name: local(tensor) for name, tensor in self.whole_tensors().items()},
            **parts.tensors,
        }

    def load_shared(self, text: str, tensors: Mapping[str, torch.Tensor]) -> None:
        """Load the shared state in place.

        Parameters stay the same objects, and so do optimizer tensors that fit. Optimizer state that
        is missing is created, and state that is not in `tensors` is removed. It raises StateError
        if the saved state has other optimizers, schedulers or scalers.
        """
        self.edits.forget()
        described = tree.decode(text, copies_of(tensors, "shared/"))
        for kind, mine in (
            ("optimizers", self.optimizers),
            ("schedulers", self._sorted.schedulers),
            ("scalers", self.scalers),
        ):
            if set(described[kind]) != set(mine):
                raise StateError(
                    f"the saved state has {kind} {sorted(described[kind])}, this one"
                    f" {sorted(mine)}",
                    hint=UNLIKE,
                )
        modules.overwrite(self.parameters, tensors)
        plain = {name: value for name, value in tensors.items() if name not in self.parameters}
        for name, optimizer in self.optimizers.items():
            saved, before = described["optimizers"][name], self._sorted.groups[name]
            optim_state.load(name, optimizer, saved, plain, self.parameters, groups=before)
        for name, part in self._sorted.schedulers.items():
            part.put(described["schedulers"][name])
        for name, scaler in self.scalers.items():
            if described["scalers"][name] and scaler.is_enabled():
                scaler.load_state_dict(described["scalers"][name])
                scaler_reset(scaler, self.optimizers.values())
        self._load_graded(described.get("graded", ""))
        if "buffer_syncs" in described:  # an image of an older outlast does not have them
            self._sorted.buffer_syncs.put(described["buffer_syncs"])

    def shards(self) -> dict[str, Shard]:
        """Return where this rank's part is, for each distributed tensor of `shared_tensors`."""
        return {
            name: shard_of(tensor)
            for name, tensor in self.whole_tensors().items()
            if is_distributed(tensor)
        }

    @functools.cached_property
    def layout(self) -> TensorPiece:
        """Return the piece of an image that says how to find weights in it (layout.py)."""
        data = layout.encode(self.modules, self.parameters).encode()
        return TensorPiece(TensorSpec(layout.PIECE, "U8", (len(data),)), memoryview(data))

    # --- sizes and shapes -------------------------------------------------------------------------

    def bytes_needed(self) -> tuple[int, int]:
        """Return the sizes in bytes of an image of private state, and of one of shared state.

        They include headers, text, and the optimizer state that the first step will create.
        """
        text, tensors = self.private.tensors()
        private = _image_bytes(text, tensors) + (
            0 if self.source is None else self.source.position_bytes
        )
        text, tensors = self.shared_tensors()
        shared = _image_bytes(text, tensors)
        for optimizer in self.optimizers.values():
            if not any(optimizer.state.values()):
                estimate = optim_state.estimate_bytes(optimizer)
                shared += estimate.bytes + estimate.count * TENSOR_HEADER_BYTES
        return private, shared

    def signature(self) -> str:
        """Return names, dtypes and (global) shapes of all shared tensors, as one text.

        It is equal on all ranks that run the same script.
        """
        return "\n".join(
            f"{name} {tensor.dtype} {list(tensor.shape)}"
            for name, tensor in self.whole_tensors().items()
        )

    def check_signature(self) -> None:
        """Raise StateError if the shape or dtype of a tensor changed since the last call.

        The error names the first such tensor. New state and new groups of an optimizer are fine.

        Checking hundreds of tensors costs more than everything else that a step does here. So each
        call checks the buffers, and which modules and parameters there are. The shapes of
        parameters and optimizer tensors are checked in the first calls, and then every
        SHAPES_LOOK_STEPS calls.
        """
        if not self.distributed:  # fully_shard itself puts other parameters in place for a while
            self.modules.check_identity()
        for name in self.optimizers:
            self._added_groups(name)
        whole = self._shapes.looks_at_all()
        shapes = [
            (tensor.shape, tensor.dtype)
            for tensor in (self._unnamed() if whole else self.modules.live())
        ]
        # names are needed only for the message, and take most of the time
        if shapes == self._shapes.newest[whole]:
            return  # nothing has changed since the last check of this kind
        now = {
            name: (tensor.shape, tensor.dtype)
            for name, tensor in (*self.whole_tensors().items(), *self.modules.buffers().items())
        }
        for name, kind in now.items():
            if self._shapes.known.get(name, kind) != kind:
                (old, was), (shape, dtype) = self._shapes.known[name], kind
                hint = (
                    "state must keep its shapes between steps: give tensors their final size first"
                )
                raise StateError(
                    f"{name} was {was} {list(old)} and is now {dtype} {list(shape)}", hint=hint
                )
        self._shapes.known, self._shapes.newest[whole] = now, shapes

    # --- a step that may be repeated --------------------------------------------------------------

    def begin(self, random_now: random_state.RandomState | None = None) -> None:
        """Keep what `roll_back` needs, except parameters, which `edits` keeps.

        This is cheap, and is called at every step. `random_now` is the random state, if the caller
        has just captured it.
        """
        self._step.keep(random_now)

    def roll_back(self) -> None:
        """Restore everything to what it was at `begin`, and clear the gradients.

        That covers buffers, random state, hyper-parameters, schedulers, scalers and objects.
        Parameters are left alone, except those that the script itself edits. It raises StateError
        if an edited parameter was not copied.
        """
        self._step.put_back()
        self.edits.put_back()

    @property
    def undo_bytes(self) -> int:
        """Return the number of bytes that `keep_undo` copies at each step."""
        return sum(local(tensor).nbytes for tensor in self.whole_tensors().values())

    def keep_undo(self) -> None:
        """Copy the shared state, for a step that votes after its optimizer.

        The copy is on the same device, or on the host if the device has no room for it.
        """
        self._undo.keep(*self.shared_tensors())

    def undo(self) -> None:
        """Restore the copy that `keep_undo` made."""
        assert self._undo.copy is not None, "undo without keep_undo"
        self.load_shared(*self._undo.copy)

    def drop_undo(self) -> None:
        """Free the memory of `keep_undo`."""
        self._undo = UndoCopy()

    def watch_modules(self) -> AbstractContextManager[list[str]]:
        """Watch which modules run during the first step.

        When the context ends, its list holds the modules that ran and have parameters or buffers,
        but are not in this state.
        """
        return modules.watch(self.modules.named.values(), self.parameters.values())

    # --- inside -----------------------------------------------------------------------------------

    def _added_groups(self, name: str) -> list[list[str]]:
        known, before = self.parameters, self._sorted.groups[name]
        return optim_state.added_groups(name, self.optimizers[name], known, before)

    def _graded(self) -> str:
        """Return one character for each parameter: "1" if it has a gradient.

        An optimizer treats zeros and None differently.
        """
        gradients = (parameter.grad for parameter in self.parameters.values())
        return "".join(
            "0" if grad is None or grad.layout is not torch.strided else "1" for grad in gradients
        )

    def _load_graded(self, graded: str) -> None:
        """Clear each gradient to zeros or None, as it was on the rank that made the image.

        An image of an older outlast does not contain this. Then nothing is cleared.
        """
        if len(graded) == len(self.parameters):
            for parameter, mark in zip(self.parameters.values(), graded, strict=True):
                _clear_gradient(parameter, graded=mark == "1")

    def whole_tensors(self) -> dict[str, torch.Tensor]:
        """Return the live parameters and optimizer tensors, distributed tensors as a whole."""
        out = dict(self.parameters)
        for name, optimizer in self.optimizers.items():
            out.update(optim_state.tensors(name, optimizer))
        return out

    def _unnamed(self) -> Iterator[torch.Tensor]:
        """Yield parameters, optimizer tensors and buffers, without spending time on their names."""
        yield from self.parameters.values()
        for optimizer in self.optimizers.values():
            for values in optimizer.state.values():
                yield from (value for value in values.values() if isinstance(value, torch.Tensor))
        yield from self.modules.live()

    def _editable(self) -> dict[str, torch.Tensor]:
        """Return the parameters that a repeat may have to restore.

        There are none if the state is always restored from an image.
        """
        return {} if self.sharded else self.parameters

    def _optimized(self) -> Iterator[torch.Tensor]:
        """Yield the parameters that some optimizer updates."""
        for optimizer in self.optimizers.values():
            for group in optimizer.param_groups:
                yield from group["params"]

    def _sort(self, name: str, value: object, nets: dict[str, nn.Module]) -> None:
        """Sort one argument of `run.state` by its kind. Modules are added to `nets`."""
        if not name.isidentifier() or name in ("private", "shared"):
            raise StateError(
                f"run.state({name}=...): this name is taken or not a plain word",
                hint="use another argument name",
            )
        if isinstance(value, nn.Module):
            nets[name] = value
        elif isinstance(value, torch.optim.Optimizer):
            # hooks, groups and state are those of the optimizer inside a wrapper
            self.optimizers[name] = optim_state.unwrapped(value)
            self._sorted.groups[name] = len(value.param_groups)
        elif isinstance(value, torch.optim.lr_scheduler.LRScheduler):
            self._sorted.schedulers[name] = PrivatePart(value.state_dict, value.load_state_dict)
        elif isinstance(value, torch.amp.GradScaler):
            self.scalers[name] = value
        elif isinstance(value, (DataLoader, BatchSource)):
            if self.source is not None:
                raise StateError(
                    f"run.state({name}=...) is a second loader",
                    hint="a step has one loader; zip the data sets into one",
                )
            self._sorted.source = (
                value if isinstance(value, BatchSource) else open_source(value, name)
            )
        else:
            self._sorted.objects[name] = _object_part(name, value)

    def _add_loose_parameters(self) -> None:
        """Add the parameters that only an optimizer holds, and no module."""
        known = {id(parameter) for parameter in self.parameters.values()}
        for name, optimizer in self.optimizers.items():
            for place, parameter in optim_state.parameters(optimizer):
                if id(parameter) not in known:
                    known.add(id(parameter))
                    self.parameters[f"{name}.{place}"] = parameter


class _StepKeeper:
    """Keep what a repeat of the step in flight needs, and restore it."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._random: random_state.RandomState | None = None
        self._hyper: dict[str, list[dict[str, Any]]] = {}
        self._parts: tree.Encoded | None = None
        self._scalers: dict[str, tuple[torch.Tensor | None, torch.Tensor | None]] = {}
        self._graded: list[bool] = []
        self._buffer_syncs: list[bool] = []

    def keep(self, random_now: random_state.RandomState | None) -> None:
        state = self._state
        self._random = random_state.capture() if random_now is None else random_now
        state.modules.keep()
        self._hyper = {
            name: optim_state.keep_hyper(optimizer) for name, optimizer in state.optimizers.items()
        }
        if (
            self._parts is None
            or state._sorted.schedulers
            or state._sorted.objects
            or state.modules.has_extra
        ):
            encoded = tree.encode(self._get(), "kept")
            self._parts = tree.Encoded(
                encoded.text, {name: tensor.clone() for name, tensor in encoded.tensors.items()}
            )
        self._scalers = {
            name: (_clone(scaler._scale), _clone(scaler._growth_tracker))
            for name, scaler in _enabled(state.scalers)
        }
        self._graded = [parameter.grad is not None for parameter in state.parameters.values()]
        self._buffer_syncs = state._sorted.buffer_syncs.get()

    def put_back(self) -> None:
        assert self._random is not None and self._parts is not None, "roll_back without begin"
        state = self._state
        state.modules.put_back()
        for name, optimizer in state.optimizers.items():
            optim_state.put_hyper(optimizer, self._hyper[name])
        schedulers, objects, extra = tree.decode(
            self._parts.text, copies_of(self._parts.tensors, "kept/")
        )
        for parts, values in (
            (state._sorted.schedulers, schedulers),
            (state._sorted.objects, objects),
        ):
            for name, part in parts.items():
                part.put(values[name])
        state.modules.load_extra(extra)
        for name, scaler in _enabled(state.scalers):
            _put_scaler(scaler, *self._scalers[name])
            scaler_reset(scaler, state.optimizers.values())
        for parameter, graded in zip(state.parameters.values(), self._graded, strict=True):
            _clear_gradient(parameter, graded=graded)
        state._sorted.buffer_syncs.put(self._buffer_syncs)
        random_state.restore(self._random)

    def _get(self) -> list[dict[str, Any]]:
        parts = [
            {name: part.get() for name, part in parts.items()}
            for parts in (self._state._sorted.schedulers, self._state._sorted.objects)
        ]
        return [*parts, self._state.modules.extra()]


def _object_part(name: str, value: Any) -> PrivatePart:
    """Return how an object is read and set. Raises StateError if its type is not supported."""
    if isinstance(value, torch.Generator):
        return PrivatePart(value.get_state, value.set_state)
    if isinstance(value, random.Random):
        return PrivatePart(value.getstate, value.setstate)
    if isinstance(value, np.random.Generator):
        return PrivatePart(
            lambda: value.bit_generator.state,
            lambda saved: setattr(value.bit_generator, "state", saved),
        )
    if callable(getattr(value, "state_dict", None)) and callable(
        getattr(value, "load_state_dict", None)
    ):
        return PrivatePart(value.state_dict, value.load_state_dict)
    raise StateError(
        f"run.state({name}=...) is of type {type(value).__name__}, which has no state_dict() and"
        " load_state_dict()",
        hint=(
            "give modules, optimizers, schedulers, grad scalers, loaders, random generators, or"
            " objects with these two methods"
        ),
    )


def _clear_gradient(parameter: torch.Tensor, *, graded: bool) -> None:
    """Set the gradient to zeros if it is `graded`, and to None otherwise.

    After zero_grad(set_to_none=False) an optimizer treats zeros and None differently.
    """
    if not graded:
        parameter.grad = None
    elif parameter.grad is None:
        parameter.grad = torch.zeros_like(parameter)
    else:
        with torch.no_grad():
            parameter.grad.zero_()


def _enabled(scalers: Mapping[str, torch.amp.GradScaler]) -> list[tuple[str, torch.amp.GradScaler]]:
    """Return the scalers that are enabled. A scaler with enabled=False has no state at all."""
    return [(name, scaler) for name, scaler in scalers.items() if scaler.is_enabled()]


def _put_scaler(
    scaler: torch.amp.GradScaler, scale: torch.Tensor | None, growth: torch.Tensor | None
) -> None:
    """Restore the scaler's two tensors, which are all that it holds.

    Its state_dict() would copy them from the device, and wait for that at each step.
    """
    scaler._scale, scaler._growth_tracker = _clone(scale), _clone(growth)


def _clone(tensor: torch.Tensor | None) -> torch.Tensor | None:
    return None if tensor is None else tensor.clone()


def _image_bytes(text: str, tensors: Mapping[str, torch.Tensor]) -> int:
    """Return the bytes of an image with these tensors. Its text may grow to twice its length."""
    headers = sum(len(name) + TENSOR_HEADER_BYTES for name in tensors)
    return (
        sum(tensor.nbytes for tensor in tensors.values())
        + headers
        + 2 * len(text)
        + STATE_TEXT_BYTES
    )
