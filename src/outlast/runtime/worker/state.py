"""What a rank's state is, and how it is captured and put back bit for bit. Nothing here communicates.

    kind        what                                                               where
    shared      parameters; optimizer tensors and hyper-parameters;                `shared_tensors`, `load_shared`
                schedulers; grad scalers; which parameters have a gradient.
                Replicated, or (DTensors) this rank's shards
    private     module buffers, random state, the loader's position,               `private_tensors`, `load_private`
                generators, objects with state_dict()

Schedulers and scalers move after the optimizer, in the tail of a step, and are the same on all ranks: so a rank that is replaced
takes them from the peer that gives the parameters, which has run that tail, and not from its own image, which was sealed before it.

Both are given as JSON text and live tensors, so copy them before the next step. A rank is made whole by `load_private` and `load_shared`.

Not kept: attributes of modules that are neither parameters nor buffers, the values of gradients carried over from one step
into the next, requires_grad, training mode, and random generators that were not registered.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader

from outlast.errors import CorruptError, StateError
from outlast.model.limits import SHAPES_LOOK_STEPS, STATE_TEXT_BYTES, TENSOR_HEADER_BYTES
from outlast.runtime.worker import modules, optim_state, random_state, tree
from outlast.runtime.worker.hooks import scaler_reset
from outlast.runtime.worker.loaders import BatchSource, open_source
from outlast.runtime.worker.sharding import Shard, is_distributed, is_sharded, local, shard_of

_UNLIKE = "it was saved by a run.state(...) with other arguments"


@dataclass(frozen=True, slots=True)
class _Part:
    """Something small that is read and set as plain data."""

    get: Callable[[], Any]
    put: Callable[[Any], None]


class State:
    """What was given to `run.state`, sorted. Arguments that are None are left out (`scaler=None`)."""

    def __init__(self, **named: object) -> None:
        self.given = {name: value for name, value in named.items() if value is not None}
        self.optimizers: dict[str, torch.optim.Optimizer] = {}
        self.scalers: dict[str, torch.amp.GradScaler] = {}
        self.source: BatchSource | None = None
        self._schedulers: dict[str, _Part] = {}
        self._objects: dict[str, _Part] = {}
        nets: dict[str, nn.Module] = {}
        for name, value in self.given.items():
            self._sort(name, value, nets)
        self.modules = modules.Modules(nets)
        self.parameters: dict[str, torch.Tensor] = dict(self.modules.parameters)
        self._add_loose_parameters()
        self.sharded = any(is_sharded(parameter) for parameter in self.parameters.values())
        self._step = _StepKeeper(self)
        self._undo: tuple[str, dict[str, torch.Tensor]] | None = None
        self._undo_memory: dict[str, torch.Tensor] = {}
        self._random: tuple[random_state.RandomState, tree.Encoded] | None = None
        self._given: tuple[str, list[tuple[int, int]]] = ("", [])  # what private_tensors gave last: text of objects, marks of buffers
        self._known: dict[str, tuple[torch.Size, torch.dtype]] = {}
        self._shapes: dict[bool, list[tuple[torch.Size, torch.dtype]]] = {True: [], False: []}  # of everything; of buffers
        self._looks = 0

    def bind(self, rank: int, world_size: int) -> None:
        """Give the loader its share."""
        if self.source is not None:
            self.source.bind(rank, world_size)

    # --- private state -------------------------------------------------------------------------------

    def private_tensors(self) -> tuple[str, dict[str, torch.Tensor]]:
        """Text and live tensors. Called at every step."""
        parts = self._private_parts()
        self._given = (parts.text, self.modules.marks())
        state = random_state.capture(None if self._random is None else self._random[0])
        if self._random is None or state is not self._random[0]:
            self._random = (state, random_state.encode(state, self._random))
        noise = self._random[1]
        return json.dumps([parts.text, noise.text]), {**self.modules.buffers(), **parts.tensors, **noise.tensors}

    def private_moved(self) -> bool:
        """Did anything private change since `private_tensors`? May say yes for nothing (objects that hold tensors); blind to buffers written through .data."""
        if self.random_moved() or self.modules.marks() != self._given[1]:
            return True
        if not self._objects and not self.modules.has_extra:
            return False  # what is left is the loader's position, which no step moves
        parts = self._private_parts()
        return parts.text != self._given[0] or (bool(self._objects) and bool(parts.tensors))

    def load_private(self, text: str, tensors: Mapping[str, torch.Tensor]) -> None:
        """Tensors are copied. StateError where they do not fit this State; CorruptError where the text is not ours."""
        parts, noise = _texts(text)
        position, objects, extra = tree.decode(parts, _own(tensors, "private/"))
        if set(objects) != set(self._objects) or (position is None) != (self.source is None):
            theirs, mine = sorted(objects), sorted(self._objects)
            raise StateError(f"the saved state holds objects {theirs}, this one {mine}, or only one of them has a loader", hint=_UNLIKE)
        self.modules.load_buffers({name: value for name, value in tensors.items() if not name.startswith(("private/", "random:"))})
        self.modules.load_extra(extra)
        for name, part in self._objects.items():
            part.put(objects[name])
        if self.source is not None:
            self.source.seek(position)
        random_state.restore(random_state.decode(noise, tensors))  # last: nothing above may move it

    def random_moved(self) -> bool:
        """Whether random numbers were drawn since the last `private_tensors`."""
        return self._random is None or random_state.moved_since(self._random[0])

    # --- shared state --------------------------------------------------------------------------------

    def shared_tensors(self) -> tuple[str, dict[str, torch.Tensor]]:
        """Text and live local tensors: parameters and, once there are any, optimizer state."""
        described = {
            "optimizers": {name: optim_state.describe(optimizer) for name, optimizer in self.optimizers.items()},
            "schedulers": {name: part.get() for name, part in self._schedulers.items()},
            "scalers": {name: scaler.state_dict() for name, scaler in self.scalers.items()},
            "graded": self._step.graded(),
        }
        parts = tree.encode(described, "shared")
        return parts.text, {**{name: local(tensor) for name, tensor in self.whole_tensors().items()}, **parts.tensors}

    def load_shared(self, text: str, tensors: Mapping[str, torch.Tensor]) -> None:
        """In place: parameters and optimizer tensors that fit keep their identity. Optimizer state that is missing is made, superfluous removed."""
        described = tree.decode(text, _own(tensors, "shared/"))
        for kind, mine in (("optimizers", self.optimizers), ("schedulers", self._schedulers), ("scalers", self.scalers)):
            if set(described[kind]) != set(mine):
                raise StateError(f"the saved state has {kind} {sorted(described[kind])}, this one {sorted(mine)}", hint=_UNLIKE)
        modules.overwrite(self.parameters, tensors)
        plain = {name: value for name, value in tensors.items() if name not in self.parameters}
        for name, optimizer in self.optimizers.items():
            optim_state.load(name, optimizer, described["optimizers"][name], plain)
        for name, part in self._schedulers.items():
            part.put(described["schedulers"][name])
        for name, scaler in self.scalers.items():
            if described["scalers"][name]:
                scaler.load_state_dict(described["scalers"][name])
            scaler_reset(scaler, self.optimizers.values())
        self._load_graded(described.get("graded", ""))

    def shards(self) -> dict[str, Shard]:
        """For each distributed tensor of `shared_tensors`: where this rank's part lies."""
        return {name: shard_of(tensor) for name, tensor in self.whole_tensors().items() if is_distributed(tensor)}

    # --- sizes and shapes ----------------------------------------------------------------------------

    def bytes_needed(self) -> tuple[int, int]:
        """Memory for an image of (private, shared) state, headers and text included, and optimizer state that the first step will make."""
        text, tensors = self.private_tensors()
        private = _image_bytes(text, tensors) + (0 if self.source is None else self.source.position_bytes)
        text, tensors = self.shared_tensors()
        shared = _image_bytes(text, tensors)
        for optimizer in self.optimizers.values():
            if not any(optimizer.state.values()):
                estimate = optim_state.estimate_bytes(optimizer)
                shared += estimate.bytes + estimate.count * TENSOR_HEADER_BYTES
        return private, shared

    def signature(self) -> str:
        """Names, dtypes and (global) shapes of all shared tensors: equal on all ranks that run the same script."""
        return "\n".join(f"{name} {tensor.dtype} {list(tensor.shape)}" for name, tensor in self.whole_tensors().items())

    def check_signature(self) -> None:
        """StateError naming the first tensor whose shape or dtype is not what it was at the last call. New optimizer state is fine.

        Looking at hundreds of tensors costs more than all else that a step does here: which modules and parameters these are, and the
        buffers, is looked at in every call; the shapes of parameters and of what the optimizers hold in the first calls and in every 16th."""
        if not self.sharded:  # fully_shard itself puts other parameters in place for a while
            self.modules.check_identity()
        self._looks += 1
        whole = self._looks % SHAPES_LOOK_STEPS == 1 or self._looks <= 3
        shapes = [(tensor.shape, tensor.dtype) for tensor in (self._unnamed() if whole else self.modules.live())]
        if shapes == self._shapes[whole]:  # names are for the message only: making them costs most of the time
            return
        now = {name: (tensor.shape, tensor.dtype) for name, tensor in (*self.whole_tensors().items(), *self.modules.buffers().items())}
        for name, kind in now.items():
            if self._known.get(name, kind) != kind:
                (old, was), (shape, dtype) = self._known[name], kind
                hint = "state must keep its shapes between steps: give tensors their final size first"
                raise StateError(f"{name} was {was} {list(old)} and is now {dtype} {list(shape)}", hint=hint)
        self._known, self._shapes[whole] = now, shapes

    # --- a step that may be repeated -----------------------------------------------------------------

    def begin(self, random_now: random_state.RandomState | None = None) -> None:
        """Keep what `roll_back` needs. Cheap: called at every step. `random_now`: the random state, by whoever has just looked."""
        self._step.keep(random_now)

    def roll_back(self) -> None:
        """Buffers, random state, hyper-parameters, schedulers, scalers and objects as at `begin`; gradients cleared. Parameters are left alone."""
        self._step.put_back()

    @property
    def undo_bytes(self) -> int:
        """What `keep_undo` copies at each step."""
        return sum(local(tensor).nbytes for tensor in self.whole_tensors().values())

    def keep_undo(self) -> None:
        """Copy the shared state into memory that is kept, for a step that goes on with the model after its optimizer."""
        text, live = self.shared_tensors()
        for name, tensor in live.items():
            mine = self._undo_memory.get(name)
            if mine is None or mine.shape != tensor.shape or mine.dtype != tensor.dtype or mine.device != tensor.device:
                self._undo_memory[name] = torch.empty_like(tensor)
        copies = {name: self._undo_memory[name] for name in live}
        modules.copy_all((copies[name], tensor) for name, tensor in live.items())
        self._undo = (text, copies)

    def undo(self) -> None:
        """Put back what `keep_undo` copied."""
        assert self._undo is not None, "undo without keep_undo"
        self.load_shared(*self._undo)

    def watch_modules(self) -> AbstractContextManager[list[str]]:
        """For the first step: the list is filled, when the block ends, with modules that ran, hold values, and are not in this state."""
        return modules.watch(self.modules.named.values(), self.parameters.values())

    # --- inside --------------------------------------------------------------------------------------

    def _private_parts(self) -> tree.Encoded:
        position = None if self.source is None else self.source.position()
        return tree.encode([position, {name: part.get() for name, part in self._objects.items()}, self.modules.extra()], "private")

    def _load_graded(self, graded: str) -> None:
        """Clear gradients to zeros or None, as the image's rank had them. An image of an older outlast says nothing of them."""
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

    def _sort(self, name: str, value: object, nets: dict[str, nn.Module]) -> None:
        if not name.isidentifier() or name in ("private", "shared"):
            raise StateError(f"run.state({name}=...): this name is taken or not a plain word", hint="use another argument name")
        if isinstance(value, nn.Module):
            nets[name] = value
        elif isinstance(value, torch.optim.Optimizer):
            self.optimizers[name] = value
        elif isinstance(value, torch.optim.lr_scheduler.LRScheduler):
            self._schedulers[name] = _Part(value.state_dict, value.load_state_dict)
        elif isinstance(value, torch.amp.GradScaler):
            self.scalers[name] = value
        elif isinstance(value, DataLoader):
            if self.source is not None:
                raise StateError(f"run.state({name}=...) is a second loader", hint="a step has one loader; zip the data sets into one")
            self.source = open_source(value, name)
        else:
            self._objects[name] = _object_part(name, value)

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
        self._graded: list[bool] | None = None

    def keep(self, random_now: random_state.RandomState | None) -> None:
        state = self._state
        self._random = random_state.capture() if random_now is None else random_now
        state.modules.keep()
        self._hyper = {name: optim_state.keep_hyper(optimizer) for name, optimizer in state.optimizers.items()}
        if self._parts is None or state._schedulers or state._objects or state.modules.has_extra:
            encoded = tree.encode(self._get(), "kept")
            self._parts = tree.Encoded(encoded.text, {name: tensor.clone() for name, tensor in encoded.tensors.items()})
        self._scalers = {name: (_clone(scaler._scale), _clone(scaler._growth_tracker)) for name, scaler in state.scalers.items()}
        self._graded = [parameter.grad is not None for parameter in state.parameters.values()]

    def graded(self) -> str:
        """Return one character for each parameter: "1" if it has a gradient, for the optimizer treats zeros and None differently.

        An image may be taken at a commit, before the script clears its gradients. A script in whose last step none
        was there at `begin` is one that drops them, so they do not count.
        """
        if self._graded is not None and not any(self._graded):
            return "0" * len(self._graded)
        gradients = (parameter.grad for parameter in self._state.parameters.values())
        return "".join("0" if grad is None or grad.layout is not torch.strided else "1" for grad in gradients)

    def put_back(self) -> None:
        assert self._random is not None and self._parts is not None and self._graded is not None, "roll_back without begin"
        state = self._state
        state.modules.put_back()
        for name, optimizer in state.optimizers.items():
            optim_state.put_hyper(optimizer, self._hyper[name])
        schedulers, objects, extra = tree.decode(self._parts.text, _own(self._parts.tensors, "kept/"))
        for parts, values in ((state._schedulers, schedulers), (state._objects, objects)):
            for name, part in parts.items():
                part.put(values[name])
        state.modules.load_extra(extra)
        for name, scaler in state.scalers.items():
            _put_scaler(scaler, *self._scalers[name])
            scaler_reset(scaler, state.optimizers.values())
        for parameter, graded in zip(state.parameters.values(), self._graded, strict=True):
            _clear_gradient(parameter, graded=graded)
        random_state.restore(self._random)

    def _get(self) -> list[dict[str, Any]]:
        parts = [{name: part.get() for name, part in parts.items()} for parts in (self._state._schedulers, self._state._objects)]
        return [*parts, self._state.modules.extra()]


def _object_part(name: str, value: Any) -> _Part:
    if isinstance(value, torch.Generator):
        return _Part(value.get_state, lambda saved: (value.set_state(saved), None)[1])
    if isinstance(value, random.Random):
        return _Part(value.getstate, value.setstate)
    if isinstance(value, np.random.Generator):
        return _Part(lambda: value.bit_generator.state, lambda saved: setattr(value.bit_generator, "state", saved))
    if callable(getattr(value, "state_dict", None)) and callable(getattr(value, "load_state_dict", None)):
        return _Part(value.state_dict, value.load_state_dict)
    raise StateError(
        f"run.state({name}=...) is a {type(value).__name__}, which has no state_dict() and load_state_dict()",
        hint="give modules, optimizers, schedulers, grad scalers, loaders, random generators, or objects with these two methods",
    )


def _clear_gradient(parameter: torch.Tensor, *, graded: bool) -> None:
    """None; but zeros where there was a gradient at `begin`: after zero_grad(set_to_none=False) an optimizer treats zeros and None differently."""
    if not graded:
        parameter.grad = None
    elif parameter.grad is None:
        parameter.grad = torch.zeros_like(parameter)
    else:
        with torch.no_grad():
            parameter.grad.zero_()


def _put_scaler(scaler: torch.amp.GradScaler, scale: torch.Tensor | None, growth: torch.Tensor | None) -> None:
    """state_dict() would copy from the device and wait for it at each step; these two tensors are all it holds."""
    scaler._scale, scaler._growth_tracker = _clone(scale), _clone(growth)


def _clone(tensor: torch.Tensor | None) -> torch.Tensor | None:
    return None if tensor is None else tensor.clone()


def _own(tensors: Mapping[str, torch.Tensor], prefix: str) -> dict[str, torch.Tensor]:
    """Copies of the tensors that a tree text refers to: what is decoded from them will be kept by whoever gets it."""
    return {name: tensor.detach().clone() for name, tensor in tensors.items() if name.startswith(prefix)}


def _texts(text: str) -> tuple[str, str]:
    try:
        parts, noise = json.loads(text)
    except (ValueError, TypeError) as error:
        raise CorruptError(f"a private state that cannot be decoded: {error}") from None
    return parts, noise


def _image_bytes(text: str, tensors: Mapping[str, torch.Tensor]) -> int:
    headers = sum(len(name) + TENSOR_HEADER_BYTES for name in tensors)
    return sum(tensor.nbytes for tensor in tensors.values()) + headers + 2 * len(text) + STATE_TEXT_BYTES
