"""Prints of Python values: two values with the same content have the same print, in any process.

    print_of(value)      16 hexadecimal digits, or None for what cannot be compared
    parts_of(name, it)   the prints of what a run.state argument holds, by name

These can be compared: plain values, tensors and arrays, containers of these, random generators, and
objects with a `state_dict()`. Of an iterator over a sequence or a DataLoader, and of those of
itertools over such, the print covers how far it is. Of a generator, it covers where it stands and
what its variables hold.

Limits   Containers are read up to TRIAL_ITEMS items, and tensors up to TRIAL_TENSOR_BYTES. What is
         larger has no print. Of a distributed tensor, this rank's part counts.
"""

from __future__ import annotations

import collections
import contextlib
import inspect
import itertools
import random
import types
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
import xxhash
from torch.utils.data.dataloader import _BaseDataLoaderIter

from outlast.model.limits import TRIAL_ITEMS, TRIAL_TENSOR_BYTES
from outlast.runtime.worker.tensors.fingerprint import fingerprint
from outlast.runtime.worker.tensors.sharding import local

_PLAIN = (type(None), bool, int, float, complex, str, bytes)
_SEQUENCES = (list, tuple, collections.deque)
_COUNTED: tuple[type, ...] = (
    type(iter([])),
    type(iter(())),
    type(iter(range(0))),
    enumerate,
    zip,
    map,
)
_CHAINED = (itertools.cycle, itertools.count, itertools.islice, itertools.chain)
_DEPTH = 12


class _Unknown(Exception):
    """The value contains something that cannot be compared."""


def print_of(value: object) -> str | None:
    """Return the print of a value, or None if it has none."""
    hasher = xxhash.xxh3_64()
    try:
        _feed(hasher, value, _DEPTH)
    except _Unknown:
        return None
    return hasher.hexdigest()


def parts_of(name: str, value: object) -> Iterator[tuple[str, str]]:
    """Yield the prints of the entries of a value's `state_dict()`, or else the value's print."""
    entries = _entries(value)
    if not isinstance(entries, Mapping):
        if (whole := print_of(value)) is not None:
            yield name, whole
        return
    for key, entry in _flat(entries):
        if (part := print_of(entry)) is not None:
            yield f"{name}.{key}", part


def _flat(entries: Mapping[Any, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the entries; for an optimizer by parameter."""
    for key, value in entries.items():
        if isinstance(value, Mapping) and len(value) <= TRIAL_ITEMS:
            yield from ((f"{key}.{inner}", one) for inner, one in value.items())
        else:
            yield str(key), value


def _entries(value: object) -> object:
    """Return what `state_dict()` returns, or None if the value has none."""
    get = getattr(value, "state_dict", None)
    if not callable(get) or isinstance(value, type):
        return None
    with contextlib.suppress(Exception):  # boundary: the script's objects
        return get()  # type: ignore[no-any-return]
    return None


def _feed(hasher: xxhash.xxh3_64, value: Any, depth: int) -> None:
    if depth == 0:
        raise _Unknown
    if isinstance(value, _PLAIN):
        hasher.update(f"{type(value).__name__} {value!r};".encode(errors="surrogatepass"))
    elif isinstance(value, torch.Tensor):
        hasher.update(_tensor(value).encode())
    elif isinstance(value, np.ndarray | np.generic):
        hasher.update(_array(np.asarray(value)))
    elif isinstance(value, _SEQUENCES):
        _feed_all(hasher, "sequence", value, depth)
    elif isinstance(value, set | frozenset):
        _feed_all(hasher, "set", sorted(value, key=repr), depth)
    elif isinstance(value, Mapping):
        # optimizer state that was loaded may have its keys in another order
        items = sorted(value.items(), key=lambda item: repr(item[0]))
        _feed_all(hasher, "mapping", [part for item in items for part in item], depth)
    else:
        _feed_other(hasher, value, depth)


def _feed_all(hasher: xxhash.xxh3_64, kind: str, items: Any, depth: int) -> None:
    if len(items) > TRIAL_ITEMS:
        raise _Unknown
    hasher.update(f"{kind} {len(items)};".encode())
    for one in items:
        _feed(hasher, one, depth - 1)


def _feed_other(hasher: xxhash.xxh3_64, value: Any, depth: int) -> None:
    """Feed a value that is not plain data but can report its state."""
    if isinstance(value, torch.Generator):
        inner: object = value.get_state()
    elif isinstance(value, random.Random):
        inner = value.getstate()
    elif isinstance(value, np.random.Generator):
        inner = value.bit_generator.state
    elif isinstance(value, np.random.RandomState):
        inner = value.get_state(legacy=False)
    elif isinstance(value, _BaseDataLoaderIter):
        inner = value._num_yielded
    elif isinstance(value, _COUNTED):
        inner = _position(value)
    elif isinstance(value, _CHAINED):
        inner = _chained_position(value)
    elif isinstance(value, types.GeneratorType):
        inner = _standing(value)
    elif (inner := _entries(value)) is None:
        raise _Unknown
    hasher.update(f"{type(value).__name__} ".encode())
    _feed(hasher, inner, depth - 1)


def _position(value: Any) -> object:
    """Return how far an iterator is, and not what it goes through."""
    _, inner, *index = value.__reduce__()
    if index:
        return index
    return [one for one in inner if isinstance(one, int | _BaseDataLoaderIter | _COUNTED)]


def _chained_position(value: Any) -> object:
    """Return how far an iterator of itertools is.

    From Python 3.14 on only `count` can be asked.
    """
    if isinstance(value, itertools.count):
        return repr(value)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            _, *parts = value.__reduce__()
    except TypeError:
        raise _Unknown from None
    flat = [one for part in parts for one in (part if isinstance(part, tuple) else (part,))]
    return [len(one) if isinstance(one, list) else one for one in flat]


def _standing(value: types.GeneratorType[Any, Any, Any]) -> object:
    """Return where a generator stands: at which instruction, and with which variables.

    Times are left out, and so are values without a print. An iterator without a print may be the
    only thing that moves.
    """
    frame = value.gi_frame
    if frame is None:
        return "over"
    if inspect.getgeneratorstate(value) == inspect.GEN_CREATED:
        return "not begun"
    held = {"yield from": value.gi_yieldfrom, **frame.f_locals}
    found = {name: print_of(one) for name, one in held.items() if type(one) is not float}
    if any(text is None and isinstance(held[name], Iterator) for name, text in found.items()):
        raise _Unknown
    return [frame.f_lasti, {name: text for name, text in found.items() if text is not None}]


def _tensor(value: torch.Tensor) -> str:
    mine = local(value)
    if mine.is_meta or mine.layout is not torch.strided or mine.is_quantized:
        raise _Unknown
    if mine.nbytes > TRIAL_TENSOR_BYTES:
        raise _Unknown
    return fingerprint(mine.detach().resolve_conj().resolve_neg())


def _array(value: np.ndarray[Any, Any]) -> bytes:
    if value.dtype.hasobject or value.nbytes > TRIAL_TENSOR_BYTES:
        raise _Unknown
    data = np.ascontiguousarray(value)
    return f"array {data.dtype} {data.shape} ".encode() + data.tobytes()
