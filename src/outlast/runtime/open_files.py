"""The limit of open files. It is raised before a run begins, or reported as too low.

A run that reaches this limit later cannot start a worker, open a log or accept a connection, and
trying again does not help, because the limit of a running process stays. So it is checked first.
"""

from __future__ import annotations

import resource

from outlast.errors import UsageError
from outlast.model import limits


def make_room(needed: int, who: str, *, start: str, pids: tuple[int, ...] = ()) -> None:
    """Raise the soft limit of open files of this process and of `pids` as far as is needed.

    who     who needs that number, with its verb: "3 workers need"
    start   what the user would start again with a higher limit

    Raises UsageError if the hard limit is lower.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise UsageError(
            f"{who} {needed:,} open files, and this process may have {hard:,} (RLIMIT_NOFILE)",
            hint=(
                f"start {start} with `ulimit -n {needed}`, or in a service with"
                f" LimitNOFILE={needed}"
            ),
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
    for pid in pids:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (needed, hard))


def make_room_for_start() -> None:
    """Make room for a launcher that does not know yet how many workers its run has."""
    needed = limits.RUN_FILES_COUNT + limits.WORKER_FILES_COUNT
    make_room(needed, "outlast run needs at least", start="outlast")


def make_room_for_run(workers: int, pids: tuple[int, ...] = ()) -> None:
    """Raise the limit of open files for a launcher and its processes, spares included."""
    needed = limits.RUN_FILES_COUNT + workers * limits.WORKER_FILES_COUNT
    each = "1 worker" if workers == 1 else f"{workers} workers, spares included,"
    make_room(needed, f"a run of {each} needs", start="outlast", pids=pids)
