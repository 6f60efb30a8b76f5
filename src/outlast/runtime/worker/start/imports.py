"""Import what every training process needs, once, and check that the process may be forked."""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import pkgutil
import warnings
from collections.abc import Iterator

import torch

from outlast.model.texts import some
from outlast.runtime.worker.process import gpu_count

_MODULES = (
    "numpy",
    "torch.distributed",
    "torch.distributed.checkpoint",
    "torch.distributed.device_mesh",
    "torch.distributed.fsdp",
    "torch.nn.parallel",
    "torch.optim.lr_scheduler",
    "torch.utils.data",
    "torch.multiprocessing",
)
# The adapters import transformers and Lightning, which takes seconds. Users name them with
# --preload. A worker without torch's checkpoints needs nothing of dcp but what others import.
_LEFT_OUT = ("adapters", "dcp")
# The kernel names of threads that no fork needs begin like this. jemalloc, which pyarrow brings,
# stops its own threads around each fork, and NVML's thread serves cuda-checkpoint. Whether forks
# can use CUDA is checked separately.
_FORK_SAFE_THREADS = ("jemalloc_bg_thd", "cuda0")


class PreloadFailed(Exception):
    """A module given with --preload cannot be imported. The message names it and the error."""


def import_all(preload: list[str]) -> None:
    """Import everything, run first optimizer steps (they import more), then import `preload`.

    All of it happens on one thread.

    Raises PreloadFailed if a module of `preload` raises.
    """
    torch.set_num_threads(1)
    gpu_count.ask_in_a_child()
    for name in _MODULES:
        importlib.import_module(name)
    for name in ("torchdata.stateful_dataloader", *_own_modules()):
        with contextlib.suppress(ImportError):  # the worker that needs it will raise
            importlib.import_module(name)
    if torch.cuda.is_available():
        # A step would ask whether CUDA is recording a graph, and so use CUDA. Most of the time of a
        # first step is this import.
        importlib.import_module("torch._dynamo")
    else:
        _first_optimizer_steps()
    for name in preload:
        try:
            importlib.import_module(name)
        except BaseException as error:  # boundary: the user's module
            raise PreloadFailed(f"--preload {name}: {type(error).__name__}: {error}") from error
    gc.collect()
    gc.freeze()  # collections in a child then leave the pages shared


def _own_modules() -> Iterator[str]:
    """Yield the modules of the worker, without those of the adapters."""
    package, home = "outlast.runtime.worker", os.path.dirname(os.path.dirname(__file__))
    for one in pkgutil.iter_modules([home]):
        yield f"{package}.{one.name}"
        if one.ispkg and one.name not in _LEFT_OUT:
            inside = pkgutil.iter_modules([os.path.join(home, one.name)])
            yield from (f"{package}.{one.name}.{each.name}" for each in inside)


def _first_optimizer_steps() -> None:
    """Execute first optimizer steps without a backward: autograd's threads forbid forks."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        parameter = torch.nn.Parameter(torch.zeros(8))
        parameter.grad = torch.zeros(8)
        for options in ({}, {"foreach": True}, {"fused": True}):
            torch.optim.AdamW([parameter], **options).step()  # type: ignore[arg-type]
        torch.optim.SGD([parameter], lr=0.1, momentum=0.9).step()


def unfit_to_fork() -> str:
    """Return why a fork of this process would not work, or "" if it would."""
    if threads := _threads_that_forbid_forks():
        few = "a thread was" if len(threads) == 1 else f"{len(threads)} threads were"
        named = sorted({name for name in threads if name})
        return f"{few} started while importing{f' ({some(named)})' if named else ''}"
    if torch.cuda.is_initialized() or gpu_count.forks_lack_them():
        return "CUDA was initialised while importing"
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return "a process group was made while importing"
    if torch.get_num_threads() != 1:
        return f"torch was set to {torch.get_num_threads()} threads while importing"
    return ""


def _threads_that_forbid_forks() -> list[str]:
    """Return the kernel names of the threads that a fork would lose; "" for one of Python's."""
    names: dict[int, str] = {}
    for thread in os.listdir("/proc/self/task"):
        with contextlib.suppress(OSError), open(f"/proc/self/task/{thread}/comm") as file:
            names[int(thread)] = file.read().strip()
    process = names.pop(os.getpid())  # Python's threads have the name of their process
    return [
        "" if name == process else name
        for name in names.values()
        if not name.startswith(_FORK_SAFE_THREADS)
    ]
