"""Four GPUs that do not exist, for `--preload fake_cuda`. The calls to them are recorded.

torch.cuda answers as it does on a machine with four GPUs and NCCL. Tensors and models stay on the
CPU, and groups use gloo. Each call that chooses a device, makes a context or builds a group is a
line of $FAKE_CUDA: its process, its name, and its arguments.
"""

from __future__ import annotations

import json
import os
import threading
from typing import Any

import torch
import torch.distributed as dist

from outlast.runtime.worker.communication import nccl_groups, shared_rows

GPUS = 4
_real_init = dist.init_process_group
_real_put = shared_rows.SharedRows.put
_current = threading.local()
_contexts: set[int] = set()
_working, _aborted = threading.Event(), threading.Event()
# GPUs 1 and 3 draw the same numbers, and so do 0 and 2
_generators = [torch.Generator().manual_seed(number % 2) for number in range(GPUS)]


def note(call: str, **said: Any) -> None:
    with open(os.environ["FAKE_CUDA"], "a") as file:
        file.write(json.dumps({"pid": os.getpid(), "call": call, **said}) + "\n")


def index_of(device: Any) -> int:
    if isinstance(device, int):
        return device
    index = torch.device(device).index
    return torch.cuda.current_device() if index is None else index


def lazy_init() -> None:
    """Initialize CUDA, which makes a context on the current device."""
    if torch.cuda.current_device() not in _contexts:
        _contexts.add(torch.cuda.current_device())
        note("context", device=torch.cuda.current_device())


def set_device(device: Any) -> None:
    note("set_device", device=index_of(device))
    _current.device = index_of(device)
    torch.cuda._lazy_init()


def get_rng_state(device: Any = "cuda") -> torch.Tensor:
    return _generators[index_of(device)].get_state()


def set_rng_state(state: torch.Tensor, device: Any = "cuda") -> None:
    note("set_rng_state", device=index_of(device))
    _generators[index_of(device)].set_state(state)


def draw(device: Any) -> float:
    """Return a random number of this GPU's generator."""
    return float(torch.rand(1, generator=_generators[index_of(device)]))


def init_process_group(backend: str | None = None, **given: Any) -> None:
    device = given.pop("device_id", None)
    if given.get("world_size") != 1:
        note(
            "init_process_group",
            backend=backend,
            device=None if device is None else str(device),
            rank=given.get("rank"),
            current=torch.cuda.current_device(),
        )
    _real_init("gloo", **given)


def begin_work() -> None:
    """Give the GPU work that ends only if it is aborted, as a collective does without its peer."""
    _working.set()


def synchronize(device: Any = None) -> None:
    """Return once the GPU has nothing to do. Work that was aborted ends without an error."""
    while _working.is_set():
        note("waits", device=index_of(device))
        _aborted.wait()
        _working.clear()


def abort(groups: Any) -> None:
    _aborted.set()


def put(self: Any, number: int, record: bytes) -> None:
    """Leave a record of this rank for the others. It is recorded once it is there."""
    _real_put(self, number, record)
    note("put", rank=self._participant.rank, act=self._act, number=number)


torch.cuda.is_available = lambda: True
torch.cuda.device_count = lambda: GPUS
torch.cuda.current_device = lambda: getattr(_current, "device", 0)
torch.cuda.is_initialized = lambda: bool(_contexts)
torch.cuda.set_device = set_device
torch.cuda._lazy_init = lazy_init
torch.cuda.synchronize = synchronize
nccl_groups.abort = abort
shared_rows.SharedRows.put = put
torch.cuda.get_rng_state = get_rng_state
torch.cuda.set_rng_state = set_rng_state
torch.cuda.manual_seed_all = lambda seed: None  # the generators of the GPUs that do not exist
dist.is_nccl_available = lambda: True
dist.init_process_group = init_process_group
torch.nn.Module.to = lambda self, *args, **kwargs: self
