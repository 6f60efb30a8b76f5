"""Import what every training process needs, once, and check that the process may be forked."""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import pkgutil
import warnings

import torch

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


class PreloadFailed(Exception):
    """A module given with --preload cannot be imported. The message names it and the error."""


def import_all(preload: list[str]) -> None:
    """Import everything, run first optimizer steps (they import more), then import `preload`.

    All of it happens on one thread.
    """
    torch.set_num_threads(1)
    for name in _MODULES:
        importlib.import_module(name)
    ours = [
        f"{__package__}.{module.name}"
        for module in pkgutil.iter_modules([os.path.dirname(__file__)])
    ]
    for name in ("torchdata.stateful_dataloader", *ours):
        with contextlib.suppress(ImportError):  # the worker that needs it will raise
            importlib.import_module(name)
    _first_optimizer_steps()
    for name in preload:
        try:
            importlib.import_module(name)
        except BaseException as error:  # boundary: the user's module
            raise PreloadFailed(f"--preload {name}: {type(error).__name__}: {error}") from error
    gc.collect()
    gc.freeze()  # collections in a child then leave the pages shared


def _first_optimizer_steps() -> None:
    """Do first optimizer steps, without a backward: the threads of autograd would forbid forks."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        parameter = torch.nn.Parameter(torch.zeros(8))
        parameter.grad = torch.zeros(8)
        for options in ({}, {"foreach": True}, {"fused": True}):
            torch.optim.AdamW([parameter], **options).step()  # type: ignore[arg-type]
        torch.optim.SGD([parameter], lr=0.1, momentum=0.9).step()


def unfit_to_fork() -> str:
    """Say why a fork of this process would not work, or return "" if it would."""
    threads = len(os.listdir("/proc/self/task"))
    if threads > 1:
        return f"{threads - 1} threads were started while importing"
    if torch.cuda.is_initialized():
        return "CUDA was initialised while importing"
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return "a process group was made while importing"
    if torch.get_num_threads() != 1:
        return f"torch was set to {torch.get_num_threads()} threads while importing"
    return ""
