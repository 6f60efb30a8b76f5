"""Count GPUs without using CUDA in this process, so that it can still be forked.

If a process has used CUDA, or has only counted GPUs with it, none of its forks can use CUDA. And
NVML, with which torch counts if it may, starts a thread (driver 580). But modules ask for GPUs
while they are imported. So in a process that is going to be forked a short-lived child counts in
its place, and another child reports at the end whether forks can use CUDA.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from typing import Any

import torch

_BY_CUDA = "_cuda_getDeviceCount"  # a function of torch._C
_BY_NVML = "_device_count_nvml"  # a function of torch.cuda
_originals: list[tuple[Any, str, Any]] = []


def ask_in_a_child() -> None:
    """Let a child of this process count the GPUs from here on, once.

    The child starts now. This does nothing for a torch without CUDA.
    """
    if _originals or not hasattr(torch._C, _BY_CUDA):
        return
    _originals.append((torch._C, _BY_CUDA, getattr(torch._C, _BY_CUDA)))
    if hasattr(torch.cuda, _BY_NVML):
        _originals.append((torch.cuda, _BY_NVML, getattr(torch.cuda, _BY_NVML)))
    answer = _ask_child()
    counts: list[int] = []

    def count() -> int:
        if not counts:
            counts.append(answer())
        return counts[0]

    for owner, name, _ in _originals:
        setattr(owner, name, count)


def ask_directly() -> None:
    """Undo `ask_in_a_child`. A worker calls this, because its environment may show other GPUs."""
    while _originals:
        owner, name, original = _originals.pop()
        setattr(owner, name, original)


def forks_lack_them() -> bool:
    """Return whether a child forked now counts fewer GPUs than one did at `ask_in_a_child`.

    If it does, something has used CUDA in this process meanwhile.
    """
    return bool(_originals) and _ask_child()() < getattr(torch._C, _BY_CUDA)()


def _ask_child() -> Callable[[], int]:
    """Fork a child that asks CUDA.

    What is returned waits for its answer, and returns 0 if the child dies of that.
    """
    direct = _originals[0][2]
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(reader)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # a fork that cannot use CUDA prints a long warning
                os.write(writer, str(direct()).encode())
        finally:
            os._exit(0)
    os.close(writer)

    def answer() -> int:
        with os.fdopen(reader, "rb") as file:
            text = file.read()
        os.waitpid(child, 0)
        return int(text or b"0")

    return answer
