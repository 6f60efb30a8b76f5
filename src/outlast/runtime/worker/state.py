"""What a rank's state is, and how it is captured and put back bit for bit.

Nothing here communicates.

    kind        what                                                               where
    shared      parameters; optimizer tensors and hyper-parameters;                `shared_tensors`,
                `load_shared` schedulers; grad scalers; which parameters have a gradient.
                Replicated, this rank's shards (DTensors), or this rank's own (values that differ by
                rank)
    private     module buffers, random state, the loader's position,               `private`
                (private.py) generators, objects with state_dict()

Schedulers and scalers move after the optimizer, in the tail of a step, and are the same on all
ranks: so a rank that is replaced takes them from the peer that gives the parameters, which has run
that tail, and not from its own image, which was sealed before it.

Both are given as JSON text and live tensors, so copy them before the next step. A rank is made
whole by `private.load` and `load_shared`.

Not kept: attributes of modules that are neither parameters nor buffers, the values of gradients
carried over from one step into the next, requires_grad, training mode, and random generators that
were not registered.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader

from outlast.errors import StateError
from outlast.model.limits import SHAPES_LOOK_STEPS, STATE_TEXT_BYTES, TENSOR_HEADER_BYTES
from outlast.runtime.worker import modules, optim_state, random_state, tree
from outlast.runtime.worker.edits import Edits
from outlast.runtime.worker.hooks import scaler_reset
from outlast.runtime.worker.loaders import BatchSource, open_source
from outlast.runtime.worker.private import UNLIKE, Part, PrivateState, own
from outlast.runtime.worker.sharding import Shard, is_distributed, is_sharded, local, shard_of


@dataclass(slots=True)
class _Sorted:
    """What was given to `run.state`, by kind."""

    given: dict[str, object]
    optimizers: dict[str, torch.optim.Optimizer] = field(default_factory=dict)
    scalers: dict[str, torch.amp.GradScaler] = field(default_factory=dict)
    schedulers: dict[str, Part] = field(default_factory=dict)
    objects: dict[str, Part] = field(default_factory=dict)
    source: BatchSource | None = None


class _UndoCopy:
    """A copy of the shared state, in memory that is kept from step to step."""

    def __init__(self) -> None:
        self.copy: tuple[str, dict[str, torch.Tensor]] | None = None
        self._memory: dict[str, torch.Tensor] = {}

    def keep(self, text: str, live: Mapping[str, torch.Tensor]) -> None:
        """Copy `live`."""
        for name, tensor in live.items():
            mine = self._memory.get(name)
            if mine is None or mine.shape != tensor.shape or mine.dtype != tensor.dtype:
                self._memory[name] = modules.room_like(tensor)
        copies = {name: self._memory[name] for name in live}
        modules.copy_all((copies[name], tensor) for name, tensor in live.items())
        self.copy = (text, copies)


class _KnownShapes:
    """The shapes and dtypes that were found last, for `State.check_signature`.

    known    of each tensor, by name
    newest   without names: of all tensors (True), of buffers alone (False)
    """

    def __init__(self) -> None:
        self.known: dict[str, tuple[torch.Size, torch.dtype]] = {}
        self.newest: dict[bool, list[tuple[torch.Size, torch.dtype]]] = {True: [], False: []}
        self._looks = 0

    def looks_at_all(self) -> bool:
        """Count one more look. Return True if it is at all tensors, and not at buffers alone."""
        self._looks += 1
        return self._looks % SHAPES_LOOK_STEPS == 1 or self._looks <= 3


class State:
    """What was given to `run.state`, sorted.

    Arguments that are None are left out (`scaler=None`).
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
        self.distributed = any(is_sharded(parameter) for parameter in self.parameters.values())
        # tensors of the shared half differ between ranks: each rank keeps all of its own
        self.own = False
        self.edits = Edits(self._editable, self._optimized)
        self._step = _StepKeeper(self)
        self._undo = _UndoCopy()
        self._shapes = _KnownShapes()

    @property
    def given(self) -> dict[str, object]:
        """What was given, by its name."""
        return self._sorted.given

    @property
    def optimizers(self) -> dict[str, torch.optim.Optimizer]:
        """The optimizers, by name."""
        return self._sorted.optimizers

    @property
    def scalers(self) -> dict[str, torch.amp.GradScaler]:
        """The gradient scalers, by name."""
        return self._sorted.scalers

    @property
    def source(self) -> BatchSource | None:
        """The loader; None: there is none."""
        return self._sorted.source

    @property
    def sharded(self) -> bool:
        """Whether nobody else holds what this rank holds: distributed tensors, or values that
        differ between ranks.
        """
        return self.distributed or self.own

    def bind(self, rank: int, world_size: int) -> None:
        """Give the loader its share."""
        if self.source is not None:
            self.source.bind(rank, world_size)

    # --- shared state -----------------------------------------------------------------------------

    def shared_tensors(self) -> tuple[str, dict[str, torch.Tensor]]:
        """Text and live local tensors: parameters and, once there are any, optimizer state."""
        described = {
            "optimizers": {
                name: optim_state.describe(optimizer) for name, optimizer in self.optimizers.items()
            },
            "schedulers": {name: part.get() for name, part in self._sorted.schedulers.items()},
            "scalers": {name: scaler.state_dict() for name, scaler in self.scalers.items()},
            "graded": self._graded(),
        }
        parts = tree.encode(described, "shared")
        return parts.text, {
            **{name: local(tensor) for name, tensor in self.whole_tensors().items()},
            **parts.tensors,
        }

    def load_shared(self, text: str, tensors: Mapping[str, torch.Tensor]) -> None:
        """In place: parameters and optimizer tensors that fit keep their identity.

        Optimizer state that is missing is made, superfluous removed.
        """
        self.edits.forget()
        described = tree.decode(text, own(tensors, "shared/"))
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
            optim_state.load(name, optimizer, described["optimizers"][name], plain)
        for name, part in self._sorted.schedulers.items():
            part.put(described["schedulers"][name])
        for name, scaler in self.scalers.items():
            if described["scalers"][name] and scaler.is_enabled():
                scaler.load_state_dict(described["scalers"][name])
                scaler_reset(scaler, self.optimizers.values())
        self._load_graded(described.get("graded", ""))

    def shards(self) -> dict[str, Shard]:
        """For each distributed tensor of `shared_tensors`: where this rank's part lies."""
        return {
            name: shard_of(tensor)
            for name, tensor in self.whole_tensors().items()
            if is_distributed(tensor)
        }

    # --- sizes and shapes -------------------------------------------------------------------------

    def bytes_needed(self) -> tuple[int, int]:
        """Memory for an image of (private, shared) state, headers and text included, and optimizer
        state that the first step will make.
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
        """Names, dtypes and (global) shapes of all shared tensors: equal on all ranks that run the
        same script.
        """
        return "\n".join(
            f"{name} {tensor.dtype} {list(tensor.shape)}"
            for name, tensor in self.whole_tensors().items()
        )

    def check_signature(self) -> None:
        """StateError naming the first tensor whose shape or dtype is not what it was at the last
        call. New optimizer state is fine.

        Looking at hundreds of tensors costs more than all else that a step does here: which modules
        and parameters these are, and the buffers, is looked at in every call; the shapes of
        parameters and of what the optimizers hold in the first calls and in every 16th.
        """
        if not self.distributed:  # fully_shard itself puts other parameters in place for a while
            self.modules.check_identity()
        whole = self._shapes.looks_at_all()
        shapes = [
            (tensor.shape, tensor.dtype)
            for tensor in (self._unnamed() if whole else self.modules.live())
        ]
        # names are for the message only: making them costs most of the time
        if shapes == self._shapes.newest[whole]:
            return
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
        """Keep what `roll_back` needs, but parameters (`edits`).

        Cheap: called at every step. `random_now`: the random state, by whoever has just looked.
        """
        self._step.keep(random_now)

    def roll_back(self) -> None:
        """Buffers, random state, hyper-parameters, schedulers, scalers and objects as at `begin`;
        gradients cleared.

        Parameters are left alone, but for those that the script itself edits. Raises StateError
        where one of a phase was not copied.
        """
        self._step.put_back()
        self.edits.put_back()

    @property
    def undo_bytes(self) -> int:
        """What `keep_undo` copies at each step."""
        return sum(local(tensor).nbytes for tensor in self.whole_tensors().values())

    def keep_undo(self) -> None:
        """Copy the shared state into memory that is kept, for a step that votes after its
        optimizer.

        The copy lies beside the original, or on the host where the device has no room for it.
        """
        self._undo.keep(*self.shared_tensors())

    def undo(self) -> None:
        """Put back what `keep_undo` copied."""
        assert self._undo.copy is not None, "undo without keep_undo"
        self.load_shared(*self._undo.copy)

    def drop_undo(self) -> None:
        """Give the memory of `keep_undo` back."""
        self._undo = _UndoCopy()

    def watch_modules(self) -> AbstractContextManager[list[str]]:
        """For the first step: the list is filled, when the block ends, with modules that ran, hold
        values, and are not in this state.
        """
        return modules.watch(self.modules.named.values(), self.parameters.values())

    # --- inside -----------------------------------------------------------------------------------

    def _graded(self) -> str:
        """Return one character for each parameter: "1" if it has a gradient, for the optimizer
        treats zeros and None differently.
        """
        gradients = (parameter.grad for parameter in self.parameters.values())
        return "".join(
            "0" if grad is None or grad.layout is not torch.strided else "1" for grad in gradients
        )

    def _load_graded(self, graded: str) -> None:
        """Clear gradients to zeros or None, as the image's rank had them.

        An image of an older outlast says nothing of them.
        """
        if len(graded) == len(self.parameters):
            for parameter, mark in zip(self.parameters.values(), graded, strict=True):
                _clear_gradient(parameter, graded=mark == "1")

    def whole_tensors(self) -> dict[str, torch.Tensor]:
        """Parameters and optimizer tensors as torch holds them: distributed ones whole. Live."""
        out = dict(self.parameters)
        for name, optimizer in self.optimizers.items():
            out.update(optim_state.tensors(name, optimizer))
        return out

    def _unnamed(self) -> Iterator[torch.Tensor]:
        """Parameters, buffers and optimizer tensors."""
        yield from self.parameters.values()
        for optimizer in self.optimizers.values():
            for values in optimizer.state.values():
                yield from (value for value in values.values() if isinstance(value, torch.Tensor))
        yield from self.modules.live()

    def _editable(self) -> dict[str, torch.Tensor]:
        """Return the parameters that a repeat may have to put back: none where state is always
        restored from an image.
        """
        return {} if self.sharded else self.parameters

    def _optimized(self) -> Iterator[torch.Tensor]:
        for optimizer in self.optimizers.values():
            for group in optimizer.param_groups:
                yield from group["params"]

    def _sort(self, name: str, value: object, nets: dict[str, nn.Module]) -> None:
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
        elif isinstance(value, torch.optim.lr_scheduler.LRScheduler):
            self._sorted.schedulers[name] = Part(value.state_dict, value.load_state_dict)
        elif isinstance(value, torch.amp.GradScaler):
            self.scalers[name] = value
        elif isinstance(value, DataLoader):
            if self.source is not None:
                raise StateError(
                    f"run.state({name}=...) is a second loader",
                    hint="a step has one loader; zip the data sets into one",
                )
            self._sorted.source = open_source(value, name)
        else:
            self._sorted.objects[name] = _object_part(name, value)

    def _add_loose_parameters(self) -> None:
        """Parameters that only an optimizer knows."""
        known = {id(parameter) for parameter in self.parameters.values()}
        for name, optimizer in self.optimizers.items():
            for place, parameter in optim_state.parameters(optimizer):
                if id(parameter) not in known:
                    known.add(id(parameter))
                    self.parameters[f"{name}.{place}"] = parameter


class _StepKeeper:
    """What a repeat of the step in flight needs."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._random: random_state.RandomState | None = None
        self._hyper: dict[str, list[dict[str, Any]]] = {}
        self._parts: tree.Encoded | None = None
        self._scalers: dict[str, tuple[torch.Tensor | None, torch.Tensor | None]] = {}
        self._graded: list[bool] = []

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

    def put_back(self) -> None:
        assert self._random is not None and self._parts is not None, "roll_back without begin"
        state = self._state
        state.modules.put_back()
        for name, optimizer in state.optimizers.items():
            optim_state.put_hyper(optimizer, self._hyper[name])
        schedulers, objects, extra = tree.decode(
            self._parts.text, own(self._parts.tensors, "kept/")
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
        random_state.restore(self._random)

    def _get(self) -> list[dict[str, Any]]:
        parts = [
            {name: part.get() for name, part in parts.items()}
            for parts in (self._state._sorted.schedulers, self._state._sorted.objects)
        ]
        return [*parts, self._state.modules.extra()]


def _object_part(name: str, value: Any) -> Part:
    if isinstance(value, torch.Generator):
        return Part(value.get_state, lambda saved: (value.set_state(saved), None)[1])
    if isinstance(value, random.Random):
        return Part(value.getstate, value.setstate)
    if isinstance(value, np.random.Generator):
        return Part(
            lambda: value.bit_generator.state,
            lambda saved: setattr(value.bit_generator, "state", saved),
        )
    if callable(getattr(value, "state_dict", None)) and callable(
        getattr(value, "load_state_dict", None)
    ):
        return Part(value.state_dict, value.load_state_dict)
    raise StateError(
        f"run.state({name}=...) is a {type(value).__name__}, which has no state_dict() and"
        " load_state_dict()",
        hint=(
            "give modules, optimizers, schedulers, grad scalers, loaders, random generators, or"
            " objects with these two methods"
        ),
    )


def _clear_gradient(parameter: torch.Tensor, *, graded: bool) -> None:
    """None; but zeros where there was a gradient at `begin`: after zero_grad(set_to_none=False) an
    optimizer treats zeros and None differently.
    """
    if not graded:
        parameter.grad = None
    elif parameter.grad is None:
        parameter.grad = torch.zeros_like(parameter)
    else:
        with torch.no_grad():
            parameter.grad.zero_()


def _enabled(scalers: Mapping[str, torch.amp.GradScaler]) -> list[tuple[str, torch.amp.GradScaler]]:
    """Return the scalers that scale; one that was made with enabled=False has no state at all."""
    return [(name, scaler) for name, scaler in scalers.items() if scaler.is_enabled()]


def _put_scaler(
    scaler: torch.amp.GradScaler, scale: torch.Tensor | None, growth: torch.Tensor | None
) -> None:
    """state_dict() would copy from the device and wait for it at each step; these two tensors are
    all it holds.
    """
    scaler._scale, scaler._growth_tracker = _clone(scale), _clone(growth)


def _clone(tensor: torch.Tensor | None) -> torch.Tensor | None:
    return None if tensor is None else tensor.clone()


def _image_bytes(text: str, tensors: Mapping[str, torch.Tensor]) -> int:
    headers = sum(len(name) + TENSOR_HEADER_BYTES for name in tensors)
    return (
        sum(tensor.nbytes for tensor in tensors.values())
        + headers
        + 2 * len(text)
        + STATE_TEXT_BYTES
    )
