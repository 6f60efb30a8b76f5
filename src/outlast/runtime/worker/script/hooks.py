"""Hooks on the script's optimizers: the first call of a step asks for the vote.

They also refuse what cannot be repeated. The hooks are on the optimizer objects, so they are called
under GradScaler, LR schedulers, fused and foreach alike. A GradScaler that skips the step calls no
optimizer. Then its `update` asks for the vote, because what follows it (an average of the weights)
must follow the vote in each step. A block with neither of these votes at its end, for which the
caller is responsible.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch.amp import grad_scaler as _grad_scaler
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

from outlast.errors import TransactionError
from outlast.runtime.worker.process.peers import is_peer_failure
from outlast.runtime.worker.script.unnamed import UnnamedOptimizers

OURS = str(Path(__file__).resolve().parents[3]) + os.sep
_OUTSIDE = (OURS, str(Path(torch.__file__).parent) + os.sep)
_STANDARD, _INSTALLED = str(Path(os.__file__).parent) + os.sep, f"{os.sep}site-packages{os.sep}"
_PLUMBING = tuple(str(module.__file__) for module in (contextlib, functools, threading))
_DECORATORS = os.sep + "typing_extensions.py"  # torch's wrapper for deprecated functions


def user_frame() -> FrameType | None:
    """Return the innermost frame that is neither outlast's nor torch's."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if _is_the_users(frame):
            return frame
        frame = frame.f_back
    return None


def user_line() -> str:
    """Return `file:line in function` of the innermost frame outside outlast and torch, or "".

    A line of the script is preferred to one of a library that the script calls.
    """
    innermost = frame = user_frame()
    while frame is not None:
        if _is_the_users(frame) and not _is_of_a_library(frame):
            return line_of(frame)
        frame = frame.f_back
    return line_of(innermost)


def _is_of_a_library(frame: FrameType) -> bool:
    name = frame.f_code.co_filename
    return name.startswith(_STANDARD) or _INSTALLED in name


def innermost_line(frames: Iterable[FrameType]) -> str:
    """Return the line of the first frame that is neither outlast's nor torch's, or ""."""
    return next((line_of(frame) for frame in frames if _is_the_users(frame)), "")


def _is_the_users(frame: FrameType) -> bool:
    name = frame.f_code.co_filename
    if name == "<string>" and frame.f_back is None:
        return False  # this is how outlast started this interpreter (runtime/interpreter.py)
    return not (
        name.startswith((*_OUTSIDE, "<frozen")) or name in _PLUMBING or name.endswith(_DECORATORS)
    )


def line_of(frame: FrameType | None) -> str:
    return (
        ""
        if frame is None
        else f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}"
    )


_backward = torch.autograd.backward
_update = torch.amp.GradScaler.update
_watchers: set[OptimizerHooks] = set()


@functools.wraps(_backward)
def _watched_backward(*args: Any, **kwargs: Any) -> None:
    for hooks in tuple(_watchers):
        hooks._backward_begins()
    try:
        _backward(*args, **kwargs)
    except RuntimeError as error:
        for hooks in tuple(_watchers):
            hooks._backward_failed(error)
        raise


@functools.wraps(_update)
def _watched_update(scaler: torch.amp.GradScaler, *args: Any, **kwargs: Any) -> None:
    for hooks in tuple(_watchers):
        hooks._scaler_updates(scaler)
    _update(scaler, *args, **kwargs)


@dataclass(slots=True)
class _StepCalls:
    """The calls that the script has made in this step.

    lines     by the id of an optimizer: the line that called its `step`
    asked     the line that asked for the step's vote; "": none has
    applied   an optimizer was applied, and no backward has run since
    """

    lines: dict[int, str] = field(default_factory=dict)
    asked: str = ""
    applied: bool = False


class OptimizerHooks:
    """Watch the registered optimizers and backward, between `begin` and `end` of each step.

    before_first  called before the step's first optimizer call, or of the `update` of a scaler
                  that has skipped it; may raise to keep it from running
    after_undo    called before a backward that runs after an optimizer was applied in this
                  step (GANs). Only an undo copy can then undo that optimizer. Called at most once a
                  step
    unnamed       judges the optimizers that were not registered
    """

    def __init__(
        self,
        optimizers: Iterable[Optimizer],
        scalers: Iterable[torch.amp.GradScaler] = (),
        *,
        before_first: Callable[[], None],
        after_undo: Callable[[], None] = lambda: None,
        unnamed: UnnamedOptimizers | None = None,
    ) -> None:
        self.optimizers = list(optimizers)
        self._unnamed = unnamed
        self._scalers = [scaler for scaler in scalers if scaler.is_enabled()]
        self._before_first = before_first
        self._after_undo = after_undo
        self._step = _StepCalls()
        self._inside = False
        self._handles: list[Any] = []
        # the error that a backward pass of this step raised for a lost peer; the gradients are
        # incomplete, even if the script catches the error
        self.lost: RuntimeError | None = None
        # what this step was refused for, even if the script catches the error
        self.refused: TransactionError | None = None

    @property
    def called(self) -> int:
        """Return how many optimizers were called in this step; 0 after a GradScaler that
        skipped.
        """
        return len(self._step.lines)

    @property
    def first_line(self) -> str:
        """Return the line that called the first one, or the `update` that skipped them all.

        It is "" before that.
        """
        return self._step.asked

    def begin(self) -> None:
        """Begin a step. The first one installs the hooks."""
        self._install()
        self._step = _StepCalls()
        self._inside = True
        if self._unnamed is not None:
            self._unnamed.begin()
        self.lost = self.refused = None

    def end(self) -> None:
        """Let calls pass unseen until the next `begin`."""
        self._inside = False

    def remove(self) -> None:
        self._inside = False
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        _watchers.discard(self)
        if not _watchers and torch.autograd.backward is _watched_backward:
            torch.autograd.backward = _backward
            torch.amp.GradScaler.update = _update  # type: ignore[method-assign]

    def _install(self) -> None:
        if self._handles:
            return
        if self._unnamed is not None:
            self._handles.append(register_optimizer_step_pre_hook(self._pre_of_any))
        if not self.optimizers:
            return
        for optimizer in self.optimizers:
            if not hasattr(optimizer, "_optimizer_step_pre_hooks"):
                # its class never calls torch's constructor, but the optimizer inside it does ask
                continue
            self._handles += [
                optimizer.register_step_pre_hook(self._pre),
                optimizer.register_step_post_hook(self._post),
            ]
        _watchers.add(self)
        torch.autograd.backward = _watched_backward  # Tensor.backward calls it by this name
        torch.amp.GradScaler.update = _watched_update  # type: ignore[assignment, method-assign]

    def _backward_begins(self) -> None:
        if self._inside and self._step.applied:
            self._step.applied = False
            self._after_undo()

    def _backward_failed(self, error: RuntimeError) -> None:
        if self._inside and is_peer_failure(error):
            self.lost = error

    def _pre(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not self._inside:
            return
        line = user_line()
        try:
            self._refuse(optimizer, args, kwargs, line)
        except TransactionError as error:
            self.refused = error
            raise
        self._step.lines[id(optimizer)] = line
        self._ask(line)

    def _pre_of_any(
        self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        if not self._inside or self._unnamed is None:
            return
        try:
            self._unnamed.check(optimizer, user_line)
        except TransactionError as error:
            self.refused = error
            raise

    def _post(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._step.applied = self._inside

    def _scaler_updates(self, scaler: torch.amp.GradScaler) -> None:
        """Note that all optimizers of `scaler` have been stepped or skipped by now."""
        if self._inside and any(scaler is one for one in self._scalers) and not self._step.asked:
            self._ask(user_line())
            # a backward pass that follows comes after the vote, as it does after an optimizer
            self._step.applied = True

    def _ask(self, line: str) -> None:
        """Ask for the vote, if this is the first in the step to do so."""
        if self._step.asked:
            return
        self._step.asked = line or "the optimizer's step"
        try:
            self._before_first()
        except BaseException:
            self._step.asked = ""
            # a script that catches this error does not get past it with its next optimizer either
            self._step.lines.clear()
            raise

    def _refuse(
        self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any], line: str
    ) -> None:
        name = type(optimizer).__name__
        if kwargs.get("closure") is not None or any(
            callable(arg) for arg in args if arg is not optimizer
        ):
            raise TransactionError(
                f"{line}: {name}.step was given a closure, which would run forward and backward"
                " after the vote",
                hint="call loss.backward() first and step() without arguments",
            )
        if torch._C._current_graph_task_id() != -1:
            raise TransactionError(
                f"{line}: {name}.step was called while a backward is running; a step that is half"
                " applied cannot be repeated",
                hint="call step() after loss.backward()",
            )
        if id(optimizer) in self._step.lines:
            raise TransactionError(
                f"{line}: {name}.step is called a second time in this step; the first was at"
                f" {self._step.lines[id(optimizer)]}",
                hint=(
                    "one `with step:` block is one update of each optimizer; use one block for"
                    " each, or run.steps(..., accumulate=n)"
                ),
            )


def scaler_reset(scaler: torch.amp.GradScaler, optimizers: Iterable[Optimizer] = ()) -> None:
    """Prepare an interrupted scaler, and the fused optimizers that it stepped, for a repeat.

    Its load_state_dict does not do that.
    """
    scaler._per_optimizer_states = defaultdict(_grad_scaler._refresh_per_optimizer_state)
    for optimizer in optimizers:
        if getattr(optimizer, "_step_supports_amp_scaling", False):
            # the scaler sets it around step(), and an exception leaves it set
            for name in ("grad_scale", "found_inf"):
                optimizer.__dict__.pop(name, None)
