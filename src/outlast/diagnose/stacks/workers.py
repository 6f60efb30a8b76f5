"""Stacks that wait at a queue.

Processes of a data loader: they bear the rank of who started them, and most of the time they wait
to be asked for a batch.

This module is pure: no clock, no files, no torch.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

_LOOP = re.compile(r"^_worker_loop \(.{0,40}_utils/worker\.py")
_QUEUE = re.compile(
    r"multiprocessing/(?:connection|queues|synchronize)\.py|selectors\.py|queue\.py|threading\.py"
)


def waits_for_work(frames: Sequence[str]) -> bool:
    """Whether this is a worker that has nothing to do, which says nothing of how its rank stands.

    `frames`: "function (file:line)", innermost first.
    """
    return _LOOP.match(informative_frame(frames)) is not None


def informative_frame(frames: Sequence[str]) -> str:
    """The innermost frame that is not Python's own machinery for waiting: `select` tells nobody
    what is waited for. "" where there is none.
    """
    return next((frame for frame in frames if not _QUEUE.search(frame)), "")
