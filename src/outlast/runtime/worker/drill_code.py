"""The faults that a process causes in itself when `outlast drill` orders one.

An order is a file `rank-<rank>` in the drill's folder, with {"id", "do"}. It is carried out once:
the process makes `fired-<id>` first, and a process that finds that file does nothing. So a step
that is repeated goes well.

In a traceback the code of a fault does not look like code of outlast. It runs under a file name of
its own, so that an exception is not taken for a bug of outlast. A diagnosis gives it the class of a
script with such a line.
"""

from __future__ import annotations

import ctypes
import json
import linecache
import os
import time
from typing import Any

from outlast.runtime import clock

_NAME = "<a fault of outlast drill>"
_CODE = {
    "raise": 'raise KeyError("sample 4711")',
    "shape": "import torch\ntorch.zeros(4, 8) @ torch.zeros(5, 3)",
    "nan": 'raise FloatingPointError("loss is nan")',
    "io": 'import errno\nraise OSError(errno.EIO, "Input/output error", "shard-00017.bin")',
    "spin": "while True:\n    pass",
}
_LONG_S = 86_400


def obey(folder: str, *, rank: int, step: int) -> None:
    """Carry out the order for this rank, if there is one."""
    path = os.path.join(folder, f"rank-{rank}")
    try:
        with open(path, "rb") as file:
            order = json.loads(file.read())
    except FileNotFoundError:
        return
    new = _take(folder, order, step)
    os.unlink(path)
    if new:  # else a process that held this rank before has carried it out
        _strike(order["do"])


def _take(folder: str, order: dict[str, Any], step: int) -> bool:
    told = {"at_s": clock.now_s(), "pid": os.getpid(), "step": step}
    part = os.path.join(folder, f".fired-{order['id']}-{os.getpid()}")
    with open(part, "w") as file:
        file.write(json.dumps(told))
    try:
        os.link(part, os.path.join(folder, f"fired-{order['id']}"))
    except FileExistsError:
        return False
    finally:
        os.unlink(part)
    return True


def _strike(do: str) -> None:
    if do == "exit":
        os._exit(3)
    if do == "hang":
        time.sleep(_LONG_S)
    elif do == "deaf":
        _hold_interpreter_lock()
    else:
        source = _CODE[do]
        linecache.cache[_NAME] = (len(source), None, source.splitlines(keepends=True), _NAME)
        exec(compile(source, _NAME, "exec"), {})  # tidy: the code is above; only its name is needed


def _hold_interpreter_lock() -> None:
    """Wait for ever in C, without letting go of the interpreter lock.

    A sleep would end at the first signal, such as the one that asks for the stacks.
    """
    libc = ctypes.PyDLL(None)  # unlike CDLL, it keeps the interpreter lock
    mutex = ctypes.create_string_buffer(64)  # zeros: a pthread mutex that nobody holds
    for _ in range(2):
        libc.pthread_mutex_lock(mutex)
