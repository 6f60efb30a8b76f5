"""What a worker records while `outlast check` tries its script for a few steps.

`outlast check` runs a script twice: undisturbed, and with ranks killed and replaced. In both runs
each rank writes fingerprints of what it can see (`prints.py`) at the beginning and at the end of
each step. `outlast.diagnose.scripts.trial_comparison` compares them.

    records/<rank>-begin-<step>.json    the prints of the script's variables
    records/<rank>-end-<step>.json      these, and the prints of what run.state holds
    steps.jsonl                         for a script without outlast calls: its optimizer steps

A variable is named by its file, its function ("<module>" for globals) and its name. Attributes of
objects whose class the script defines have names of their own. The variables are those of the
functions that are active at the loop, and the globals of the modules in the script's folder.

Limits   Not seen: variables of functions that are not active, and inside a generator that goes
         through run.steps, state of native libraries, modules in other folders, and all steps
         after the last one.
"""

from __future__ import annotations

import collections.abc
import contextlib
import functools
import inspect
import io
import json
import os
import sys
import time
import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from outlast.diagnose.scripts.trial_comparison import ALSO_KEPT, GRADIENTS, UNSEEN
from outlast.model.limits import TRIAL_SPARE_WAIT_S
from outlast.runtime import clock
from outlast.runtime.worker.instructions.trial_plan import TrialPlan
from outlast.runtime.worker.run_state.prints import parts_of, print_of
from outlast.runtime.worker.run_state.state import State
from outlast.runtime.worker.run_state.values import Values
from outlast.runtime.worker.script.touched import TouchedFiles, watch_torch_save
from outlast.runtime.worker.steps.step import Step
from outlast.runtime.worker.steps.transaction import Transaction
from outlast.runtime.worker.tensors import random_state
from outlast.runtime.worker.tensors.sharding import local

# kinds of values that can be changed in place
_CHANGEABLE = (torch.Tensor, np.ndarray, list, dict, set)
_DEPTH = 3  # how many levels of attributes are followed
_OURS = os.path.abspath(os.path.join(__file__, *[os.pardir] * 4)) + os.sep


class Trial:
    """Record what one worker of a tried script sees. `begin` creates the one of this process."""

    def __init__(self, plan: TrialPlan, *, run_folder: str, vault: str) -> None:
        self.plan = plan
        self._records = plan.folder / "records"
        self._records.mkdir(exist_ok=True)
        self._files = TouchedFiles(plan.folder / "touched", (str(plan.folder), run_folder, vault))

    def begin(self, worker: int) -> None:
        """Begin to watch files, and let draws without a seed be the same in two runs.

        A process that replaces another has a number of its own, so its draws are its own too.
        """
        random_state.fresh(seed=1_000_003 * (worker + 1))
        watch_torch_save(self._files)
        self._files.begin()

    def last_step(self, until: int) -> int:
        return min(until, self.plan.steps)

    def watch(
        self, transaction: Transaction, steps: Iterator[Step], *, until: int
    ) -> Iterator[Step]:
        """Yield the steps, and record what is there before and after each.

        After the last one the script ends by SystemExit, if it would have gone on.
        """
        state, member = transaction.state, transaction.member
        seen = Variables(Path(self.plan.home), state)
        for step in steps:
            number, counts = step.number, not transaction.is_rehearsal
            if counts:
                self._wait_for_spare(number)
                loop = seen.innermost(sys._getframe(1))
                self._write(f"{member.rank()}-begin-{number}", seen.prints(loop), loop)
            yield step
            if counts:
                loop = seen.innermost(sys._getframe(1))
                found = {**seen.prints(loop), **state_prints(state)}
                self._write(f"{member.rank()}-end-{number}", found, loop)
        if until > self.plan.steps:
            raise SystemExit(0)

    def _wait_for_spare(self, number: int) -> None:
        """Wait before the first step in which a rank is killed, until a spare is ready."""
        if number != self.plan.spare_step:
            return
        end_s = clock.now_s() + TRIAL_SPARE_WAIT_S
        while not self.plan.parked.exists() and clock.now_s() < end_s:
            time.sleep(0.02)

    def _write(self, name: str, prints: Mapping[str, str], loop: types.FrameType) -> None:
        place = {
            "file": loop.f_code.co_filename,
            "line": loop.f_lineno,
            "function": loop.f_code.co_name,
        }
        part = self._records / f".{name}.{os.getpid()}"
        part.write_text(json.dumps({"pid": os.getpid(), "loop": place, "prints": prints}))
        part.replace(self._records / f"{name}.json")

    def stepped(self, rank: int, number: int, *, known: bool, count: int) -> None:
        """Record an optimizer step of a script without outlast calls.

        After the last one, SystemExit ends the script.
        """
        line = {"rank": rank, "pid": os.getpid(), "step": number if known else None, "count": count}
        with (self.plan.folder / "steps.jsonl").open("a") as file:
            file.write(json.dumps(line) + "\n")
        if count >= self.plan.steps:
            raise SystemExit(0)


@dataclass
class Variables:
    """Find the script's variables, and print those that can be compared.

    home    the script's folder: code elsewhere does not belong to the script
    state   what it holds is compared separately, and does not count as a variable
    """

    home: Path
    state: State
    _found: dict[str, str] = field(default_factory=dict)
    _kept: set[int] = field(default_factory=set)  # what run.values keeps and can be changed

    def innermost(self, frame: types.FrameType) -> types.FrameType:
        """Return the innermost frame of the script. A progress bar may be above it."""
        inner: types.FrameType | None = frame
        while inner is not None and not self._is_looked_at(inner.f_code):
            inner = inner.f_back
        return inner or frame

    def prints(self, loop: types.FrameType) -> dict[str, str]:
        """Return the prints of all variables.

        For those without a print, return "?" and their type.
        """
        self._found = {}
        values = [one for one in self.state.given.values() if isinstance(one, Values)]
        self._kept = {
            id(one)
            for all_of in values
            for one in vars(all_of).values()
            if isinstance(one, _CHANGEABLE)
        }
        held = {id(one) for one in self.state.given.values()}
        frame: types.FrameType | None = loop
        while frame is not None:
            code = frame.f_code
            if self._is_looked_at(code) and code.co_name != "<module>":
                self._add_all(f"{code.co_filename}:{code.co_name}:", frame.f_locals, held)
            frame = frame.f_back
        if any(map(_has_gradient, self.state.parameters.values())):
            place = f"{loop.f_code.co_filename}:{loop.f_code.co_name}"
            self._found[f"{place}:{GRADIENTS}"] = UNSEEN + GRADIENTS
        for module in list(sys.modules.values()):
            path = getattr(module, "__file__", None)
            if isinstance(path, str) and self._is_the_scripts(path):
                self._add_all(f"{path}:<module>:", vars(module), held)
        return self._found

    def _is_looked_at(self, code: types.CodeType) -> bool:
        return self._is_the_scripts(code.co_filename) and not code.co_flags & inspect.CO_GENERATOR

    def _is_the_scripts(self, path: str) -> bool:
        return (
            path.startswith(f"{self.home}{os.sep}")
            and not path.startswith(_OURS)
            and "site-packages" not in path
        )

    def _add_all(self, prefix: str, values: Mapping[str, Any], held: set[int]) -> None:
        for name, value in list(values.items()):
            if not name.startswith("__"):
                self._add(prefix + name, value, held, _DEPTH)

    def _add(self, name: str, value: Any, held: set[int], depth: int) -> None:
        if isinstance(value, torch.nn.Module):
            self._add_attributes(name, value)
        elif isinstance(value, types.FunctionType) and depth:
            self._add_closure(name, value, held, depth)
        if id(value) in held or self._is_held(value) or _is_no_data(value):
            return
        if (text := print_of(value)) is not None:
            kind = type(value).__name__
            self._found[name] = f"{text} {kind}{ALSO_KEPT if id(value) in self._kept else ''}"
        elif isinstance(value, collections.abc.Iterator) or self._is_a_cache(value):
            self._found[name] = f"{UNSEEN}{type(value).__name__}"
        elif depth and self._is_of_the_script(value):
            held = held | {id(value)}
            for attribute, inner in list(getattr(value, "__dict__", {}).items()):
                self._add(f"{name}.{attribute}", inner, held, depth - 1)

    def _add_closure(
        self, name: str, function: types.FunctionType, held: set[int], depth: int
    ) -> None:
        """Add the variables that a function of the script keeps from where it was defined."""
        if not self._is_the_scripts(function.__code__.co_filename):
            return
        names = function.__code__.co_freevars
        for inner, cell in zip(names, function.__closure__ or (), strict=True):
            with contextlib.suppress(ValueError):  # it has no value yet
                self._add(f"{name}.{inner}", cell.cell_contents, held, depth - 1)

    def _add_attributes(self, name: str, model: torch.nn.Module) -> None:
        """Add what a module of the script keeps in addition to parameters and buffers.

        No state_dict contains these values.
        """
        for path, module in model.named_modules():
            if not self._is_of_the_script(module):
                continue
            for attribute, value in vars(module).items():
                text = None if attribute.startswith("_") else print_of(value)
                if text is not None and attribute != "training":
                    self._found[".".join(filter(None, (name, path, attribute)))] = (
                        f"{text} {type(value).__name__}"
                    )

    def _is_held(self, value: Any) -> bool:
        """Return whether run.state has the model's parameters already, under another wrapper."""
        if not isinstance(value, torch.nn.Module):
            return False
        known = {id(one) for one in self.state.parameters.values()}
        return all(id(one) in known for one in value.parameters()) and any(
            True for _ in value.parameters()
        )

    def _is_a_cache(self, value: Any) -> bool:
        """Return whether this is a function of the script that functools caches."""
        if not isinstance(value, functools._lru_cache_wrapper):
            return False
        code = getattr(value.__wrapped__, "__code__", None)
        return self._is_the_scripts(getattr(code, "co_filename", ""))

    def _is_of_the_script(self, value: Any) -> bool:
        module = sys.modules.get(type(value).__module__)
        return self._is_the_scripts(getattr(module, "__file__", None) or "")


def _is_no_data(value: Any) -> bool:
    return (
        isinstance(value, type | types.ModuleType | types.FunctionType | types.BuiltinFunctionType)
        or type(value).__module__.startswith("outlast.")
        or (isinstance(value, torch.Tensor) and value.is_meta)
        or (isinstance(value, torch.nn.Module) and not value.state_dict())
        # it goes through run.steps, or is a file that is only written
        or (isinstance(value, types.GeneratorType) and value.gi_running)
        or (isinstance(value, io.IOBase) and not _is_readable(value))
        or (isinstance(value, np.random.RandomState) and value is np.random.mtrand._rand)  # type: ignore[attr-defined]
    )


def _has_gradient(parameter: torch.Tensor) -> bool:
    """Return whether this rank has a gradient of it that is not zero. It does not communicate."""
    return parameter.grad is not None and bool(local(parameter.grad).any())


def _is_readable(file: io.IOBase) -> bool:
    with contextlib.suppress(ValueError):  # it is closed
        return file.readable()
    return False


def state_prints(state: State) -> dict[str, str]:
    """Return the prints of everything that run.state keeps, by its parts."""
    found: dict[str, str] = {}
    for name, value in state.given.items():
        found.update((f"state:{key}", text) for key, text in parts_of(name, value))
    noise = random_state.encode(random_state.capture())
    found |= {
        f"state:random state {key.partition(':')[2]}": text
        for key, tensor in noise.tensors.items()
        if (text := print_of(tensor)) is not None
    }
    return found


def begin(plan: TrialPlan, *, worker: int, run_folder: str, vault: str) -> None:
    """Start to watch this process. The session calls it, if `outlast check` asks."""
    global _current
    _current = Trial(plan, run_folder=run_folder, vault=vault)
    _current.begin(worker)


def stepped(rank: int, step: int, *, known: bool, count: int) -> None:
    """Record an optimizer step of a script without outlast calls, if this process is watched."""
    if _current is not None:
        _current.stepped(rank, step, known=known, count=count)


def current() -> Trial | None:
    """Return this process's trial, or None unless `outlast check` asked for one."""
    return _current


_current: Trial | None = None
