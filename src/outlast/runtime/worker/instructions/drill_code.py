"""The faults that a process causes in itself when `outlast drill` orders one.

An order is a file `rank-<rank>` in the drill's folder, with {"id", "do"}. It is carried out once:
the process makes `fired-<id>` first, and a process that finds that file does nothing. So a step
that is repeated goes well.

In a traceback the code of a fault does not look like code of outlast. It runs under a file name of
its own, as if a line of the script had raised. So an exception is not taken for a bug of outlast,
and a diagnosis gives it the class of a script with such a line.

The worker of a DataLoader is killed. While the rank has none the order waits.
"""

from __future__ import annotations

import ctypes
import json
import linecache
import multiprocessing
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from outlast.model.drills.drill_faults import EXIT_CODE
from outlast.runtime import clock

_NAME = "fault_of_outlast_drill.py"
_CODE = {
    "raise": 'raise KeyError("sample 4711")',
    "shape": "import torch\ntorch.zeros(4, 8) @ torch.zeros(5, 3)",
    "nan": 'raise FloatingPointError("loss is nan")',
    "io": 'import errno\nraise OSError(errno.EIO, "Input/output error", "shard-00017.bin")',
    "uneven": 'raise IndexError("sample 4711 of a shard of 4000: this rank has less data")',
    "order": "import torch.distributed\ntorch.distributed.barrier()",
    "spin": "while True:\n    pass",
}
STARVED_BYTES = 256 << 20  # a process that is starved of memory asks for this much, and gets less
LOADER_TITLE = "pt_data_worker"  # as torch names the process of a DataLoader's worker
_LONG_S = 86_400


def obey(folder: str, *, rank: int, step: int) -> None:
    """Carry out the order for this rank, if there is one."""
    path = os.path.join(folder, f"rank-{rank}")
    try:
        with open(path, "rb") as file:
            order = json.loads(file.read())
    except FileNotFoundError:
        return
    loader = next(_loader_workers(), 0) if order["do"] == "loader" else 0
    if order["do"] == "loader" and not loader:
        return
    new = _take(folder, order, step)
    os.unlink(path)
    if not new:
        return  # a process that held this rank before has carried it out
    if loader:
        os.kill(loader, signal.SIGKILL)
    else:
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
        os._exit(EXIT_CODE)
    if do == "hang":
        time.sleep(_LONG_S)
    elif do == "oom":
        bytearray(b"1" * STARVED_BYTES)  # the drill has limited our memory: the kernel ends us here
    elif do == "deaf":
        _hold_interpreter_lock()
    elif do.startswith("flip_"):
        from outlast.runtime.worker.instructions import (
            drill_flips,  # it needs torch, and this module does not
        )

        drill_flips.flip(do.removeprefix("flip_"))
    else:
        source = _CODE[do]
        linecache.cache[_NAME] = (len(source), None, source.splitlines(keepends=True), _NAME)
        exec(compile(source, _NAME, "exec"), {})  # tidy: the code is above; only its name is needed


def _hold_interpreter_lock() -> None:
    """Wait without end in C, without releasing the interpreter lock.

    A sleep would end at the first signal, such as the one that asks for the stacks.
    """
    libc = ctypes.PyDLL(None)  # unlike CDLL, it keeps the interpreter lock
    mutex = ctypes.create_string_buffer(64)  # zeros are a pthread mutex that no thread holds
    for _ in range(2):
        libc.pthread_mutex_lock(mutex)


def _loader_workers() -> Iterator[int]:
    """Yield the pids of this process's DataLoader workers."""
    for one in multiprocessing.active_children():
        if one.pid is not None and _title_of(one.pid) == LOADER_TITLE:
            yield one.pid


def _title_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""
