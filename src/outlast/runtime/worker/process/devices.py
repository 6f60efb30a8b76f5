"""Which device a rank computes on: the GPUs of a node are given to its local ranks in turn.

Local rank r has GPU r modulo the number of GPUs, so if there are more ranks than GPUs, several
ranks share one. NCCL refuses two ranks on one GPU. Then gloo carries their collectives, through the
memory of the host. Without GPUs the device is the CPU.

A rank takes its device before its process group is built. So NCCL, `.cuda()` and everything else
that uses the current device use this one. A script may make another one current later. A survivor
that builds the next group in place still does so on its own device (`current`).

A hot spare has no rank, and so no device. If it used CUDA it would create a context on GPU 0: some
hundred megabytes, which stay there for as long as the process lives, whatever rank it is given
later. So its main thread parks where it would first use CUDA (`before_first_use`). Asking how many
GPUs there are creates no context. Not covered: CUDA that a script uses before outlast.join(), or
first uses in a thread of its own.
"""

from __future__ import annotations

import contextlib
import mmap
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any
from weakref import WeakSet

import torch
import torch.distributed as dist


def of(local_rank: int) -> torch.device:
    """Return the device of this local rank."""
    if torch.cuda.is_available():
        return torch.device("cuda", local_rank % torch.cuda.device_count())
    return torch.device("cpu")


def are_shared(local_world_size: int) -> bool:
    """Return whether a node with these ranks has GPUs, but fewer GPUs than ranks."""
    return 0 < torch.cuda.device_count() < local_world_size and torch.cuda.is_available()


def backend(local_world_size: int) -> str:
    """Return the backend of groups for nodes with this many ranks each.

    NCCL carries collectives on GPUs if each rank has a GPU of its own. Every rank must get the same
    answer, so a run needs nodes with the same number of GPUs.
    """
    if not torch.cuda.is_available() or are_shared(local_world_size):
        return "gloo"
    return "cpu:gloo,cuda:nccl" if dist.is_nccl_available() else "gloo"


def take(local_rank: int) -> torch.device:
    """Make the device of this local rank the current one of this process, and return it."""
    global _asked, _mine
    _asked = None  # from here on CUDA may be used
    device = of(local_rank)
    if device.type == "cuda":
        torch.cuda.set_device(device)
        _mine = device
    return device


@contextlib.contextmanager
def current(device: torch.device) -> Iterator[None]:
    """Make `device` the current one, and afterwards the one that the script has chosen again."""
    before = torch.cuda.current_device() if device.type == "cuda" else None
    changed = before is not None and before != device.index
    if changed:
        torch.cuda.set_device(device)
    try:
        yield
    finally:
        if changed:
            torch.cuda.set_device(before)


def mine() -> torch.device:
    """Return the GPU that this process has taken, or else the current one. There must be a GPU."""
    return _mine or torch.device("cuda", torch.cuda.current_device())


def wait_for_work() -> bool:
    """Wait until the GPU of this process has finished all its work.

    A call of torch returns before the GPU has done its work, and so does a collective of NCCL. This
    raises what CUDA raises if some of that work failed. Return False if no GPU is in use.
    """
    if not torch.cuda.is_initialized():
        return False
    torch.cuda.synchronize(mine())
    return True


def copy_stream(device: torch.device) -> torch.cuda.Stream:
    """Return the stream of this process on which state is copied from and to that GPU."""
    if device not in _streams:
        _streams[device] = torch.cuda.Stream(device)
    return _streams[device]


def pin(memory: memoryview) -> None:
    """Register with CUDA the whole mapping that `memory` is in, once.

    The GPU then copies straight into it: 55 GB/s instead of 15 (H200). That takes 60 ms for each
    GiB, the first time. If CUDA refuses, for example because no more memory may be locked, copies
    are slower, but correct. Memory that is not a mapping is left as it is.
    """
    mapping = memory.obj
    if not isinstance(mapping, mmap.mmap) or mapping in _pinned:
        return
    _pinned.add(mapping)
    address = torch.frombuffer(mapping, dtype=torch.uint8).data_ptr()
    runtime = torch.cuda.cudart()
    if not hasattr(runtime, "cudaHostRegister"):  # another vendor's build of torch
        return
    if runtime.cudaHostRegister(address, len(mapping), 0) == runtime.cudaError.success:
        weakref.finalize(mapping, runtime.cudaHostUnregister, address).atexit = False


def before_first_use(ask: Callable[[], object]) -> None:
    """Call `ask` once, in the main thread, just before that would first use CUDA.

    `ask` may `take` a device, which uses CUDA. After a `take` it is not called any more.
    """
    global _asked
    if not torch.cuda.is_available() or torch.cuda.is_initialized():
        return
    _asked = ask
    original: Callable[[], Any] = torch.cuda._lazy_init
    if getattr(original, "is_outlasts", False):
        return

    def asking() -> Any:
        global _asked
        if _asked is not None and threading.current_thread() is threading.main_thread():
            asked, _asked = _asked, None
            asked()
        return original()

    asking.is_outlasts = True  # type: ignore[attr-defined]
    # torch's C++ looks this function up in torch.cuda; other modules have a name of their own for
    # it
    for module in list(sys.modules.values()):
        if getattr(module, "__dict__", {}).get("_lazy_init") is original:
            module._lazy_init = asking  # type: ignore[attr-defined]


_mine: torch.device | None = None
_streams: dict[torch.device, torch.cuda.Stream] = {}
_pinned: WeakSet[mmap.mmap] = WeakSet()
_asked: Callable[[], object] | None = None
