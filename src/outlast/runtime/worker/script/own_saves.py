"""Remember after which step a script without outlast calls has saved each of its files.

Many optimizers (SGD) do not count their steps. After a restart it would then be unknown from which
step the script's own checkpoint goes on. So each file that the script writes by `torch.save` or
safetensors is recorded in the run's folder, with the number of steps before it. When a later
process loads the file, that number is looked up.

A file is identified by its device, inode, size and time of change, whether the script gives its
path or a file object. A file that is written under another name first, and then renamed, is the
same one. A copy is another file.

Other optimizers (Adam) count their steps. If a script loads its weights and not its optimizer, the
optimizer counts from 1 again. In this case, too, the loaded file shows the step. If no file shows
it, the step is known in two cases only. Either the run has done no step yet, or all files that the
process has loaded existed before the first step of the run. A file existed before if it is older
than that step, or if a process has loaded it before that step. In all other cases, what was loaded
may be a state of this run, and it is not known of which step.

If one optimizer takes over from another, neither of their counts is that of the run. That is
recorded as well. From then on, only a file can show the step.

A process has started from the beginning if, before its first step, it has loaded no file and has
called no module's `load_state_dict`. Weights that it copies from one of its models to another one
(a target network) do not count as loaded. They are recognised by their identity: a module's
`state_dict` has returned these tensors, and nothing has been written to them since.

Not seen: saves to other file objects (io.BytesIO), saves by other libraries, weights that come into
a model without `load_state_dict`, and writes to a tensor that torch does not count (by `.data`, or
by an array of numpy that shares its memory). Copies of the tensors that a `state_dict` has returned
(a deep copy) count as loaded weights.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import stat
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from outlast.runtime import clock

NAME = "own-saves.jsonl"
_OLDER_S = 60.0  # the clock of the machine that keeps the files may be wrong by as much
_PARTS_MAX_COUNT = 100_000  # of a loaded file that are looked at
_OTHERS_MAX_COUNT = 1_000  # files that were there before the first step, and are recorded


@dataclass(slots=True)
class _Loaded:
    """This is what a process has loaded before its first step.

    anything          it has loaded weights from somewhere
    step              the step of the files of this run; None: there were none, or of several steps
    several_steps     it has loaded files of different steps
    unknown_file      it has loaded a file that may hold a step of this run
    unknown_weights   one of its models has loaded weights from no known file
    """

    anything: bool = False
    step: int | None = None
    several_steps: bool = False
    unknown_file: bool = False
    unknown_weights: bool = False

    def note_step(self, step: int) -> None:
        """Note that a file of this run was loaded, which was saved after `step`."""
        if not self.several_steps:
            self.several_steps = self.step not in (None, step)
            self.step = None if self.several_steps else step


class OwnSaves:
    """The files of one run's script, as all of its processes have saved them.

    `behind`, `behind_by_weights` and `behind_by_count` return the step of the run from which this
    process goes on, or None if that is not known.
    """

    def __init__(self, run_folder: str) -> None:
        self._path = Path(run_folder) / NAME
        self._read: tuple[int, list[dict[str, Any]]] = (0, [])  # its size, and its records
        self._loaded = _Loaded()
        self._other_count = False  # several optimizers have done the steps of this process
        self._others: list[list[int]] = []  # loaded files that this run has not saved
        # mark -> a tensor from a known file, or from a model of this process
        self._parts: weakref.WeakValueDictionary[_Mark, Any] = weakref.WeakValueDictionary()

    def behind(self) -> int | None:
        """Return the step from which this process goes on, if its optimizer counts no steps."""
        loaded = self._loaded
        if not loaded.anything:
            return 0
        return None if loaded.several_steps or loaded.unknown_file else loaded.step

    def behind_by_weights(self, *, begun: bool) -> int | None:
        """Return the step from which this process goes on, if its optimizer counts from 1.

        It is the step of the file of this run that the process has loaded. It is 0 if the process
        has loaded no such file, because other files hold no steps of this run. It is None if the
        process has loaded files of different steps, or something that may hold a step of this run.

        begun   the run has done steps before this process
        """
        loaded = self._loaded
        if loaded.several_steps or (begun and loaded.unknown_file):
            return None
        if loaded.step is None and begun and loaded.unknown_weights:
            return None
        return loaded.step or 0

    def behind_by_count(self, number: int) -> int | None:
        """Return the step from which this process goes on, by the optimizer's own count.

        If another optimizer has done steps of this run as well, only a file shows the step.

        number   the optimizer's count after its first call in this process
        """
        if not any("other_count" in one for one in self._noted()):
            return number - 1
        return self.behind() if self._loaded.anything else None

    def on_other_count(self) -> None:
        """Record, once, that the steps of the run are not those of one optimizer."""
        if not self._other_count:
            self._other_count = True
            self._write({"other_count": True})

    def on_first_step(self) -> None:
        """Record when the run did its first step, and what was loaded before it.

        Neither these files nor older files hold a step of the run.
        """
        if self._first_step_s() is None:
            self._write({"first_step_s": clock.wall_s()})
        if self._others:
            self._write({"others": self._others[:_OTHERS_MAX_COUNT]})

    def on_save(self, where: Any, *, step: int) -> None:
        """Record that `where` was saved after `step`."""
        if (key := _key(where, written=True)) is not None:
            self._write({"file": key, "step": step})

    def on_load(self, where: Any, loaded: Any = None) -> None:
        """Look up after which step `where` was saved, if this run has saved it."""
        self._loaded.anything = True
        key = _key(where)
        noted = (one["step"] for one in self._noted() if key and one.get("file") == key)
        step = next(noted, None)
        if step is None and not self._is_other(key):
            self._loaded.unknown_file = True
            self._others += [] if key is None else [key]
            return
        if step is not None:
            self._loaded.note_step(step)
        self._know(loaded)

    def on_own_weights(self, state: Any) -> None:
        """Record that the `state_dict` of a module of this process has returned `state`.

        If the module has loaded weights before, that was recorded then.
        """
        self._know(state)

    def on_weights(self, state: Any) -> None:
        """Record that a module has loaded `state`, unless all of its tensors are known."""
        if not all(self._parts.get(_mark(part)) is part for part in _parts(state)):
            self._loaded.anything = self._loaded.unknown_weights = True

    def forget_parts(self) -> None:
        """Forget the known tensors. The process trains, so it will not ask again where it began."""
        self._parts.clear()

    def _know(self, state: Any) -> None:
        for part in _parts(state):
            if part is not _REST:
                self._parts[_mark(part)] = part

    def _is_other(self, key: list[int] | None) -> bool:
        """Return whether a file existed before the first step of the run."""
        if key is None:
            return False
        first_s = self._first_step_s()
        is_older = first_s is not None and key[-1] / 1e9 < first_s - _OLDER_S
        return is_older or any(key in one.get("others", ()) for one in self._noted())

    def _first_step_s(self) -> float | None:
        times = (one["first_step_s"] for one in self._noted() if "first_step_s" in one)
        return min(times, default=None)

    def _write(self, record: dict[str, Any]) -> None:
        with contextlib.suppress(OSError):
            fd = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                os.write(fd, (json.dumps(record) + "\n").encode())
            finally:
                os.close(fd)

    def _noted(self) -> list[dict[str, Any]]:
        """Return the records, the newest first. A line that is incomplete is left out.

        Records are only appended, so the file is read again only if its size has changed.
        """
        with contextlib.suppress(OSError):
            if (size := self._path.stat().st_size) != self._read[0]:
                noted = []
                for line in self._path.read_text().splitlines():
                    with contextlib.suppress(ValueError):
                        noted.append(json.loads(line))
                self._read = (size, noted[::-1])
        return self._read[1]


def _key(where: Any, *, written: bool = False) -> list[int] | None:
    """Return what identifies a file, or None if `where` is neither a path nor an open file.

    written   True if something was just written to it, so an open file is flushed first
    """
    try:
        if isinstance(where, str | os.PathLike):
            found = os.stat(where)
        else:
            number = where.fileno()
            if written:
                where.flush()  # so that size and time are those of the complete file
            found = os.fstat(number)
    except (OSError, ValueError, AttributeError, TypeError, RuntimeError):
        return None  # io.BytesIO has no descriptor, and other objects have no such method
    if not stat.S_ISREG(found.st_mode):
        return None
    return [found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns]


_Mark = tuple[int, int]


def _mark(part: Any) -> _Mark:
    """Return the identity of a tensor, and how often something was written to it in place.

    The second number matters because some readers fill the tensors of a `state_dict` in place.
    """
    try:
        return id(part), part._version
    except (AttributeError, RuntimeError):
        return id(part), 0  # no tensor, or one of inference mode, which is not counted


class _Rest:
    """Stands for the parts of a loaded object that were not looked at, as there are too many."""


_REST = _Rest()


def _parts(loaded: Any) -> Iterator[Any]:
    """Yield the tensors in a loaded object, and other parts that can have weak references.

    No more than _PARTS_MAX_COUNT objects are looked at, numbers included. If there are more, _REST
    comes last.
    """
    waiting, seen = [loaded], 0
    while waiting and seen < _PARTS_MAX_COUNT:
        one = waiting.pop()
        seen += 1
        if isinstance(one, dict):
            waiting += itertools.islice(one.values(), _PARTS_MAX_COUNT + 1)
        elif isinstance(one, list | tuple):
            waiting += one[: _PARTS_MAX_COUNT + 1]
        else:
            with contextlib.suppress(TypeError):  # numbers and texts have no weak references
                weakref.ref(one)
                yield one
    if waiting:
        yield _REST
