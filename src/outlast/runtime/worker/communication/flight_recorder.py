"""Give each rank's flight recorder a pipe, so that it can be asked for while the job hangs.

NCCL's process group does this by itself (TORCH_NCCL_DEBUG_INFO_PIPE_FILE). Gloo's does not: it
writes nothing, not even after a time-out. `record_collectives` adds the same pipe for any backend.
"""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from pathlib import Path

import torch.distributed as dist
from torch._C._distributed_c10d import _dump_fr_trace  # type: ignore[attr-defined]

from outlast.errors import UsageError


def record_collectives(folder: str | os.PathLike[str], *, rank: int | None = None) -> Path:
    """Answer requests for this rank's flight recorder, and return the path of the pipe for them.

        torch.distributed.init_process_group("gloo")
        outlast.record_collectives("incident")

    A byte into `incident/pipe_<rank>.pipe` makes the rank write `incident/trace_rank_<rank>`.
    `outlast diagnose --collect` asks all ranks at once, so that their dumps are of one moment.
    Until then a thread waits in a read, which costs nothing.

    folder   where the pipe and the dump are made; a folder on a local disk
    rank     this process's rank; None takes the one of torch.distributed

    A process that is stopped, or that holds the interpreter lock, does not answer. It raises
    UsageError if no rank is known or the folder cannot be written.
    """
    if rank is None:
        if not dist.is_initialized():
            raise UsageError(
                "record_collectives was called before the process group was there",
                hint="call it after torch.distributed.init_process_group(), or give rank=",
            )
        rank = dist.get_rank()
    place = Path(folder).resolve()
    pipe = place / f"pipe_{rank}.pipe"
    try:
        place.mkdir(parents=True, exist_ok=True)
        pipe.unlink(missing_ok=True)  # an earlier attempt's pipe
        os.mkfifo(pipe)
        # It is open for both directions: a read then waits, and does not end when a writer closes
        # the pipe.
        descriptor = os.open(pipe, os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        raise UsageError(
            f"{pipe} cannot be made: {error.strerror}", hint="name a folder on a local disk"
        ) from None
    target = place / f"trace_rank_{rank}"
    threading.Thread(
        target=_answer, args=(descriptor, target), name="outlast-recorder", daemon=True
    ).start()
    return pipe


def _answer(descriptor: int, target: Path) -> None:
    while os.read(descriptor, 4096):
        # A full disk must not end the thread, because the next request may find room.
        with suppress(OSError):
            _write(target)


def _write(target: Path) -> None:
    part = target.with_name(f".{target.name}.part")
    part.write_bytes(_dump_fr_trace(True, True, False))
    part.replace(target)
