"""Let outlast handle the errors of NCCL process groups, and abort them when a generation ends.

Torch watches NCCL with threads of its own. When a collective fails, or lasts too long, such a
thread tells all ranks to dump their flight recorders, waits for a minute, and ends the process.
That is right if no rank goes on without the lost one. Here the other ranks do.

A communicator that is aborted may wait for the whole GPU, so also for the collectives of other
communicators, whose peers are gone as well (NVIDIA/nccl#1013). So all are aborted at once, each by
a thread of its own.

Not shown: none of this has run with NCCL between several GPUs.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterable
from typing import Any

import torch.distributed as dist
from torch._C._distributed_c10d import Store

from outlast.model.limits import NCCL_ABORT_S

# the key of torch's store with which a rank tells all ranks to dump
_DUMP_SIGNAL = "exception_dump"


def leave_errors_to_outlast(store: Store) -> None:
    """Keep torch from ending this process for an error of NCCL, in groups made from here on.

    torchrun requests that torch does so, and so does our launcher, which cannot know whether the
    script calls outlast. A signal to dump that an earlier generation left in `store` is removed,
    because a new process would obey it, and end.
    """
    os.environ["TORCH_NCCL_ASYNC_ERROR_HANDLING"] = "0"
    os.environ.setdefault("TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC", "1")  # it waits four times as long
    with contextlib.suppress(RuntimeError):  # a store that cannot delete has no earlier generation
        store.delete_key(_DUMP_SIGNAL)


def abort(groups: Iterable[dist.ProcessGroup]) -> None:
    """End the collectives of these groups that run on GPUs. Gloo's go on.

    It returns when all have ended, or after `NCCL_ABORT_S`. It may be called again, by any thread.
    """
    threads, started = [], []
    for group in groups:
        for device in group._device_types:
            if device.type != "cpu":
                with contextlib.suppress(RuntimeError):
                    backend = group._get_backend(device)
                    threads.append(threading.Thread(target=_abort, args=(backend,), daemon=True))
    for thread in threads:
        # If no thread can be started, the rank is late, and is ended with its collective.
        with contextlib.suppress(RuntimeError):  # boundary: "can't start new thread"
            thread.start()
            started.append(thread)
    until_s = time.monotonic() + NCCL_ABORT_S
    for thread in started:
        thread.join(max(0.0, until_s - time.monotonic()))


def _abort(backend: Any) -> None:
    with contextlib.suppress(RuntimeError):  # it was aborted before
        backend.abort()
