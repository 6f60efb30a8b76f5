"""Stacks of processes that wait at a queue.

The workers of a data loader have the rank of the process that started them. Most of the time they
wait to be asked for a batch.

This module is pure: no clock, no files, no torch.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

_LOOP = re.compile(r"^_worker_loop \(.{0,40}_utils/worker\.py")
_QUEUE = re.compile(
    r"multiprocessing/(?:connection|queues|synchronize)\.py|selectors\.py|queue\.py|threading\.py"
    r"|\basyncio/\w+\.py|concurrent/futures/"
)


def waits_for_work(frames: Sequence[str]) -> bool:
    """Return True for a worker that has nothing to do, which says nothing about its rank.

    The `frames` are "function (file:line)", innermost first.
    """
    return _LOOP.match(informative_frame(frames)) is not None


def is_loader(frames: Sequence[str]) -> bool:
    """Return True if this is the stack of a data loader's worker, whatever the worker does."""
    return any(_LOOP.match(frame) for frame in frames)


def informative_frame(frames: Sequence[str]) -> str:
    """Return the innermost frame that is not Python's own machinery for waiting; "" if none is.

    A frame such as `select` does not tell what is waited for.
    """
    return next((frame for frame in frames if not _QUEUE.search(frame)), "")
