"""Whether this process is a fork that the script made of a rank, and so not a rank itself.

Such a process has everything that the rank had: the socket to the launcher, the shared memory, the
frames of the step in flight. It must use none of these.
"""

from __future__ import annotations

import os

_rank_pid = 0


def begin_rank() -> None:
    """Note that the script begins in this process."""
    global _rank_pid
    _rank_pid = os.getpid()


def is_fork() -> bool:
    """Return True in a process that the script has forked, and False in a rank."""
    return _rank_pid not in (0, os.getpid())
