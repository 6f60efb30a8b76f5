"""The random state of this process.

It covers Python's `random`, NumPy's legacy global generator, torch's CPU generator, and that of
this rank's GPU.

    capture(before)       returns a RandomState; `before` itself if nothing was drawn since
    restore(state)        puts it back, bit for bit
    fresh(seed)           reseeds as a process that was spawned, not forked
    isolated(seed)        a block whose draws depend on `seed` alone and leave no trace outside

Cost       Copying NumPy's state takes 45 us and Python's 25 us, putting them back 70 us; comparing
           or writing what they are in memory 2 us. Both keep the second Gaussian of a pair for the
           next call. It is part of the comparison: the words can be the same while another Gaussian
           is kept. Seeding forgets it, so it goes before raw words are written.
Limits     Other generators (torch.Generator, numpy.random.Generator) belong to those who made them:
           register them in run.state. Of several GPUs only that of this rank is kept
           (devices.mine), whichever is current.
"""

from __future__ import annotations

import array
import contextlib
import ctypes
import math
import random
import struct
import sys
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from outlast.errors import CorruptError
from outlast.runtime.worker.process import devices
from outlast.runtime.worker.tensors import tree

_MT_WORDS = 624
_MT_BYTES = _MT_WORDS * 4 + 4  # words and position, in the layout of NumPy's mt19937_state
_FLAG_BYTES = 8  # an int, and the padding that aligns the number after it
_PREFIX = "random:"


@dataclass(frozen=True, slots=True, eq=False)
class RandomState:
    """The state of all generators at one moment.

    `python` is random.getstate(), and `numpy` is np.random.get_state(legacy=False). The raw fields
    are copies of the memory, or b"" if its layout is not known. NumPy's ends with the Gaussian that
    is kept. `cpu_raw` are the bytes of `cpu`. `cuda` may be None.
    """

    python: tuple[Any, ...]
    python_raw: bytes
    numpy: dict[str, Any]
    numpy_raw: bytes
    cpu: torch.Tensor
    cpu_raw: bytes
    cuda: torch.Tensor | None


def capture(before: RandomState | None = None) -> RandomState:
    """Return the state as it is now.

    Parts that did not move since `before` (if not given: the last capture) are shared with it. If
    none moved, `before` itself is returned.
    """
    global _latest
    _latest = _capture(_latest if before is None else before)
    return _latest


def _capture(before: RandomState | None) -> RandomState:
    cpu_now, cuda_now = torch.get_rng_state(), _cuda()
    python_raw, raw, cpu_raw = _python_raw(), _numpy_raw(), cpu_now.numpy().tobytes()
    if before is None:
        return RandomState(
            random.getstate(), python_raw, _numpy_state(), raw, cpu_now, cpu_raw, cuda_now
        )
    python = before.python if _python_still(before, python_raw) else random.getstate()
    cpu_now = before.cpu if cpu_raw == before.cpu_raw else cpu_now
    cuda_now = before.cuda if _same(before.cuda, cuda_now) else cuda_now
    numpy = before.numpy if _numpy_still(before, raw) else _numpy_state()
    if (
        python is before.python
        and cpu_now is before.cpu
        and cuda_now is before.cuda
        and numpy is before.numpy
    ):
        return before
    return RandomState(python, python_raw, numpy, raw, cpu_now, cpu_raw, cuda_now)


def moved_since(before: RandomState) -> bool:
    """Return whether anything was drawn, seeded or set since `before`.

    The result is exact, and takes about 30 us.
    """
    return capture(before) is not before


def key(state: RandomState) -> int:
    """Return 32 bits that are the same for equal states, on every rank."""
    numpy = state.numpy_raw or repr(_plain(state.numpy)).encode()
    cached = f"{state.python[2]!r} {state.numpy['has_gauss']} {state.numpy['gauss']!r}".encode()
    words = zlib.crc32(numpy, zlib.crc32(state.python_raw or repr(state.python).encode()))
    device = b"" if state.cuda is None else state.cuda.cpu().numpy().tobytes()
    return zlib.crc32(device, zlib.crc32(state.cpu_raw, zlib.crc32(cached, words)))


def restore(state: RandomState) -> None:
    """Put `state` back, bit for bit."""
    global _latest
    _latest = state
    if state.python_raw:
        ctypes.memmove(_python_words(), state.python_raw, _MT_BYTES)
        _PYTHON.gauss_next = state.python[2]
    else:
        random.setstate(state.python)
    bits = _numpy_bits()
    if state.numpy_raw and not state.numpy["has_gauss"] and type(bits) is np.random.MT19937:
        np.random.seed(0)
        ctypes.memmove(bits.ctypes.state_address, state.numpy_raw, _MT_BYTES)
    else:
        np.random.set_state(state.numpy)
    torch.set_rng_state(state.cpu)
    if state.cuda is not None and torch.cuda.is_initialized():
        torch.cuda.set_rng_state(state.cuda, devices.mine())


def fresh(seed: int | None = None) -> None:
    """Seed all generators from the system's entropy, or from `seed` if it is given.

    A spawned process starts like that, and a forked one does not.
    """
    if seed is not None:
        seed_cpu(seed)
    else:
        random.seed()
        np.random.seed()
        torch.default_generator.seed()
    if torch.cuda.is_initialized():
        torch.cuda.seed_all() if seed is None else torch.cuda.manual_seed_all(seed)


def seed_cpu(seed: int) -> None:
    """Seed the three host generators with 64 bits. This takes 8 us and uses no device."""
    random.seed(seed)
    np.random.seed(seed & 0xFFFF_FFFF)
    torch.default_generator.manual_seed(seed)


@contextlib.contextmanager
def isolated(seed: int) -> Iterator[RandomState]:
    """Let draws in the block depend on `seed` alone.

    The block gets the random state from before it, which is restored afterwards.
    """
    before = capture()
    seed_cpu(seed)
    try:
        yield before
    finally:
        restore(before)


def encode(
    state: RandomState, last: tuple[RandomState, tree.Encoded] | None = None
) -> tree.Encoded:
    """Return JSON text and a few small tensors whose names begin with `random:`.

    Parts that did not move since `last` are taken from there.
    """
    moving = {f"{_PREFIX}torch": state.cpu} | (
        {} if state.cuda is None else {f"{_PREFIX}cuda": state.cuda}
    )
    if last is not None and state.python is last[0].python and state.numpy is last[0].numpy:
        return tree.Encoded(last[1].text, {**last[1].tensors, **moving})
    version, words, gauss = state.python
    python = torch.frombuffer(array.array("I", words), dtype=torch.int32)
    rest = tree.encode({"python": [version, gauss], "numpy": state.numpy}, f"{_PREFIX}numpy")
    return tree.Encoded(rest.text, {f"{_PREFIX}python": python, **moving, **rest.tensors})


def decode(text: str, tensors: Mapping[str, torch.Tensor]) -> RandomState:
    """Return the state that was given to `encode`. The tensors are copied.

    Raises CorruptError if they are not what `encode` writes.
    """
    rest = tree.decode(text, tensors)
    try:
        words = tuple(
            array.array("I", tensors[f"{_PREFIX}python"].cpu().contiguous().numpy().tobytes())
        )
        version, gauss = rest["python"]
        cuda = tensors.get(f"{_PREFIX}cuda")
        cpu = tensors[f"{_PREFIX}torch"].cpu().clone()
        return RandomState(
            (version, words, gauss),
            b"",
            rest["numpy"],
            b"",
            cpu,
            cpu.numpy().tobytes(),
            None if cuda is None else cuda.cpu().clone(),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise CorruptError(f"a random state that cannot be decoded: {error!r}") from None


def _cuda() -> torch.Tensor | None:
    return torch.cuda.get_rng_state(devices.mine()) if torch.cuda.is_initialized() else None


def _same(left: torch.Tensor | None, right: torch.Tensor | None) -> bool:
    return left is right or (left is not None and right is not None and torch.equal(left, right))


def _python_raw() -> bytes:
    """Return index and words of Python's global generator.

    CPython stores them after the object's head.
    """
    return ctypes.string_at(_python_words(), _MT_BYTES) if _LAID_OUT else b""


def _python_words() -> int:
    return id(_PYTHON) + object.__basicsize__


def _python_still(before: RandomState, raw: bytes) -> bool:
    if raw and raw == before.python_raw:
        return bool(before.python[2] == _PYTHON.gauss_next)
    return bool(before.python == random.getstate())


def _numpy_state() -> dict[str, Any]:
    return dict(np.random.get_state(legacy=False))  # type: ignore[arg-type]


def _numpy_raw() -> bytes:
    """Return the words of NumPy's global generator, and the Gaussian that it keeps.

    NumPy publishes the address of the words. Return b"" for a bit generator of another kind, and if
    the Gaussian was not found.
    """
    bits = _numpy_bits()
    if type(bits) is not np.random.MT19937 or _GAUSSIAN_AT < 0:
        return b""
    gaussian = id(np.random.mtrand._rand) + _GAUSSIAN_AT
    words = ctypes.string_at(bits.ctypes.state_address, _MT_BYTES)
    return words + ctypes.string_at(gaussian - _FLAG_BYTES, 4) + ctypes.string_at(gaussian, 8)


def _numpy_bits() -> Any:
    # np.random.get_bit_generator() exists only since NumPy 1.24
    return np.random.mtrand._rand._bit_generator  # type: ignore[attr-defined]


def _numpy_still(before: RandomState, raw: bytes) -> bool:
    if raw and before.numpy_raw:
        return raw == before.numpy_raw
    return bool(_plain(_numpy_state()) == _plain(before.numpy))


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return value.tobytes() if isinstance(value, np.ndarray) else value


def _is_laid_out(generator: random.Random) -> bool:
    """Return whether the raw words are where `_python_raw` reads them.

    There is one int for the index, then 624 words of 32 bits.
    """
    if (
        sys.implementation.name != "cpython"
        or type(generator).__mro__[1].__basicsize__ < object.__basicsize__ + _MT_BYTES
    ):
        return False
    index, *words = array.array(
        "I", ctypes.string_at(id(generator) + object.__basicsize__, _MT_BYTES)
    )
    return bool((*words, index) == generator.getstate()[1])


def _gaussian_at() -> int:
    """Return where a RandomState of NumPy stores the Gaussian that it keeps; -1: not found.

    An int that is `_FLAG_BYTES` before it says whether there is one.
    """
    probe = np.random.RandomState(0)
    state: Any = probe.get_state(legacy=False)

    def memory(kept: int, gaussian: float) -> bytes:
        probe.set_state({**state, "has_gauss": kept, "gauss": gaussian})
        return ctypes.string_at(id(probe), type(probe).__basicsize__)

    wanted = struct.pack("d", math.pi)
    full, empty = memory(1, math.pi), memory(0, 0.0)
    at = full.find(wanted)
    flag = slice(at - _FLAG_BYTES, at - _FLAG_BYTES + 4)
    found = at >= _FLAG_BYTES and full.count(wanted) == 1
    told = (full[flag], empty[flag]) == (struct.pack("i", 1), struct.pack("i", 0))
    return at if found and told else -1


# the generator behind random.random and the others
_PYTHON: Any = random.getstate.__self__  # type: ignore[attr-defined]
_LAID_OUT = _is_laid_out(_PYTHON)
_GAUSSIAN_AT = _gaussian_at()
_latest: RandomState | None = None
