"""Nested Python data as JSON text and tensors, and back, bit for bit. No pickle.

These values can be encoded:

    plain        None, bool, int of any size, float (NaN payloads and infinities are kept), complex,
                 str, bytes, range, slice
    containers   list, tuple, set, frozenset, deque, Counter, OrderedDict, defaultdict (its factory
                 is lost), and dict (in its order; keys that can be hashed)
    torch        tensors, dtypes, devices and sizes
    NumPy        arrays and scalars of plain dtypes
    classes      members of an Enum, and named tuples; they are found again by module and name,
                 among the modules already imported

Everything else is a StateError that names its path.

A tensor that occurs twice is stored once and comes back as one tensor. Tensors are not copied on
the way in: `Encoded.tensors` are live. Lists, dicts and other containers that occur twice come back
as two.

Not promised: requires_grad, gradients, strides of a non-contiguous tensor, subclasses of the types
above.
"""

from __future__ import annotations

import collections
import enum
import json
import math
import struct
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from outlast.errors import CorruptError, StateError

# larger ints are written in hexadecimal, because Python refuses to print an int of more than 4,300
# digits
JSON_INT_BITS = 63


@dataclass(frozen=True, slots=True)
class Encoded:
    """A value as JSON text, and the tensors that the text refers to by name."""

    text: str
    tensors: dict[str, torch.Tensor]


def encode(value: object, prefix: str) -> Encoded:
    """Return `value` as JSON text and named tensors. Every name begins with `prefix`.

    Raises StateError, which names the path of what cannot be kept.
    """
    encoder = _Encoder()
    node = encoder.node(value, prefix)
    return Encoded(json.dumps(node, separators=(",", ":"), allow_nan=False), encoder.tensors)


def decode(text: str, tensors: Mapping[str, torch.Tensor]) -> Any:
    """Return the value that `encode` was given.

    Tensors are the very objects in `tensors`; arrays are copies. Raises CorruptError if `encode`
    has not written `text`.
    """
    try:
        return _Decoder(tensors).value(json.loads(text))
    except (
        ValueError,
        KeyError,
        TypeError,
        IndexError,
        AttributeError,
        OverflowError,
        struct.error,
        RecursionError,
        StopIteration,
    ) as error:
        raise CorruptError(
            f"state text that cannot be decoded: {type(error).__name__}: {error}"
        ) from None


class _Encoder:
    def __init__(self) -> None:
        self.tensors: dict[str, torch.Tensor] = {}
        self._names: dict[int, str] = {}
        # arrays that are created on the way are kept alive, so that no id is used twice
        self._keep: list[object] = []

    def node(self, value: Any, path: str) -> Any:
        kind = type(value)
        if value is None or kind is bool or kind is str:
            return value
        if kind is int:
            return value if value.bit_length() <= JSON_INT_BITS else {"i": hex(value)}
        if kind is float:
            return value if math.isfinite(value) else {"f": struct.pack("<d", value).hex()}
        rule = _RULES.get(kind)
        if rule is not None:
            return rule(self, value, path)
        if isinstance(value, torch.Tensor):
            return {"T": self.tensor(value, path)}
        if isinstance(value, np.generic):
            return self.array(np.asarray(value), path, "n")
        if isinstance(value, enum.Enum):
            return {"e": [*_address(kind, path), value.name]}
        if isinstance(value, tuple) and hasattr(kind, "_fields"):
            return {"nt": [*_address(kind, path), self.items(value, path)]}
        raise _unknown(path, f"a {kind.__module__}.{kind.__qualname__}")

    def items(self, values: Iterable[Any], path: str) -> list[Any]:
        return [self.node(item, f"{path}/{index}") for index, item in enumerate(values)]

    def pairs(self, value: Mapping[Any, Any], path: str) -> list[Any]:
        return [
            [self.node(key, f"{path}/key {key!r}"), self.node(item, f"{path}/{key}")]
            for key, item in value.items()
        ]

    def mapping(self, value: dict[Any, Any], path: str) -> Any:
        if all(type(key) is str for key in value):
            return {"m": {key: self.node(item, f"{path}/{key}") for key, item in value.items()}}
        return {"d": self.pairs(value, path)}

    def members(self, value: Iterable[Any], path: str) -> list[Any]:
        nodes = [self.node(item, f"{path}/member") for item in value]
        return sorted(nodes, key=lambda node: json.dumps(node, separators=(",", ":")))

    def tensor(self, value: torch.Tensor, path: str) -> str:
        if (
            value.layout != torch.strided
            or value.is_quantized
            or value.device.type == "meta"
            or hasattr(value, "to_local")
        ):
            raise _unknown(path, f"a tensor of layout {value.layout} on {value.device}")
        known = self._names.get(id(value))
        if known is not None:
            return known
        name = path
        while name in self.tensors:
            name += "'"
        self.tensors[name] = value.detach()
        self._names[id(value)] = name
        self._keep.append(value)
        return name

    def array(self, value: np.ndarray[Any, Any], path: str, tag: str) -> Any:
        if (
            value.dtype.hasobject
            or value.dtype.names is not None
            or value.dtype.subdtype is not None
        ):
            raise _unknown(path, f"a NumPy array of {value.dtype}")
        data = bytearray(np.ascontiguousarray(value).tobytes())
        raw = (
            torch.frombuffer(data, dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)
        )
        return {tag: [self.tensor(raw, path), value.dtype.str, list(value.shape)]}


_RULES: dict[type, Callable[[_Encoder, Any, str], Any]] = {
    dict: _Encoder.mapping,
    list: _Encoder.items,
    tuple: lambda self, value, path: {"t": self.items(value, path)},
    bytes: lambda self, value, path: {"b": value.hex()},
    complex: lambda self, value, path: {"c": struct.pack("<dd", value.real, value.imag).hex()},
    set: lambda self, value, path: {"set": self.members(value, path)},
    frozenset: lambda self, value, path: {"frozenset": self.members(value, path)},
    collections.OrderedDict: lambda self, value, path: {"o": self.pairs(value, path)},
    collections.defaultdict: lambda self, value, path: self.mapping(value, path),
    collections.Counter: lambda self, value, path: {"counter": self.pairs(value, path)},
    collections.deque: lambda self, value, path: {"q": [value.maxlen, self.items(value, path)]},
    range: lambda self, value, path: {
        "range": self.items((value.start, value.stop, value.step), path)
    },
    slice: lambda self, value, path: {
        "slice": self.items((value.start, value.stop, value.step), path)
    },
    torch.Size: lambda self, value, path: {"size": list(value)},
    torch.dtype: lambda self, value, path: {"dtype": str(value).removeprefix("torch.")},
    torch.device: lambda self, value, path: {"device": str(value)},
    np.ndarray: lambda self, value, path: self.array(value, path, "N"),
}


class _Decoder:
    def __init__(self, tensors: Mapping[str, torch.Tensor]) -> None:
        self._tensors = tensors

    def value(self, node: Any) -> Any:
        if isinstance(node, list):
            return [self.value(item) for item in node]
        if not isinstance(node, dict):
            return node
        (tag, body) = next(iter(node.items()))
        if tag in _SCALARS:
            return _SCALARS[tag](body)
        return self._container(tag, body)

    def pairs(self, body: Any) -> list[tuple[Any, Any]]:
        return [(self.value(key), self.value(item)) for key, item in body]

    def _container(self, tag: str, body: Any) -> Any:
        if tag == "m":
            return {key: self.value(item) for key, item in body.items()}
        if tag == "T":
            return self._tensors[body]
        if tag in ("N", "n"):
            return self._array(body) if tag == "N" else self._array(body)[()]
        if tag == "q":
            return collections.deque(self.value(body[1]), maxlen=body[0])
        if tag == "nt":
            return _find(body[0], body[1], tuple)._make(self.value(body[2]))
        if tag in _PAIRS:
            return _PAIRS[tag](self.pairs(body))
        if tag in _SEQUENCES:
            return _SEQUENCES[tag](self.value(body))
        raise CorruptError(f"state text with an unknown tag {tag!r}")

    def _array(self, body: Any) -> np.ndarray[Any, Any]:
        name, dtype, shape = body
        data = self._tensors[name].detach().cpu().contiguous().numpy().tobytes()
        return np.frombuffer(data, dtype=np.dtype(dtype)).reshape(shape).copy()


_SCALARS: dict[str, Callable[[Any], Any]] = {
    "i": lambda body: int(body, 16),
    "f": lambda body: struct.unpack("<d", bytes.fromhex(body))[0],
    "c": lambda body: complex(*struct.unpack("<dd", bytes.fromhex(body))),
    "b": bytes.fromhex,
    "size": torch.Size,
    "dtype": lambda body: _dtype(body),
    "device": torch.device,
    "e": lambda body: _find(body[0], body[1], enum.Enum)[body[2]],
}
_PAIRS: dict[str, Callable[[Any], Any]] = {
    "d": dict,
    "o": collections.OrderedDict,
    "counter": lambda pairs: collections.Counter(dict(pairs)),
}
_SEQUENCES: dict[str, Callable[[Any], Any]] = {
    "t": tuple,
    "set": set,
    "frozenset": frozenset,
    "range": lambda parts: range(*parts),
    "slice": lambda parts: slice(*parts),
}


def _dtype(name: str) -> torch.dtype:
    found = getattr(torch, name)
    if not isinstance(found, torch.dtype):
        raise CorruptError(f"{name!r} is not a torch dtype")
    return found


def _address(kind: type, path: str) -> tuple[str, str]:
    if "<locals>" in kind.__qualname__ or _lookup(kind.__module__, kind.__qualname__) is not kind:
        raise _unknown(
            path,
            f"a {kind.__module__}.{kind.__qualname__}, which cannot be found again by its name",
        )
    return kind.__module__, kind.__qualname__


def _lookup(module: str, qualname: str) -> Any:
    found: Any = sys.modules.get(module)
    for part in qualname.split("."):
        found = getattr(found, part, None)
    return found


def _find(module: str, qualname: str, base: type) -> Any:
    """Return the class of that name, among modules already imported, if it is a `base`.

    So a text can neither import nor call anything.
    """
    found = _lookup(module, qualname)
    if not (isinstance(found, type) and issubclass(found, base)):
        raise CorruptError(
            f"state text names {module}.{qualname}, which is not a {base.__name__} here"
        )
    return found


def _unknown(path: str, what: str) -> StateError:
    hint = "keep it out of state_dict(), or turn it into numbers, strings, lists, dicts or tensors"
    return StateError(f"{path} is {what}: it cannot be saved bit for bit", hint=hint)
