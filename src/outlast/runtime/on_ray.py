"""Run one function over a few large tasks on a Ray cluster (extra `outlast[ray]`).

The result does not depend on which machine works on a task.

The cluster's nodes need outlast itself, in the same version, because functions are sent by name.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterable, Sequence
from importlib.util import find_spec
from typing import Any, TypeVar

from outlast.errors import OutlastError, UsageError
from outlast.runtime.pool import OnCores

KNOCK_S = 5.0
A = TypeVar("A")
T = TypeVar("T")


def on_ray(address: str) -> OnCores:
    """Return a `map` over tasks that runs on the cluster.

    `address`: as `ray.init` takes it; `auto` finds the cluster of this machine, `local` starts one
    that ends with this process.

    Raises UsageError where ray is not installed, or there is no cluster.
    """
    if find_spec("ray") is None:
        raise UsageError("--ray needs the package ray", hint="pip install 'outlast[ray]'")
    # a cluster that is started here sends no usage statistics, unless its owner wants it to
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    import ray

    _knock(address)
    try:
        ray.init(
            address=address, logging_level="ERROR", log_to_driver=False, ignore_reinit_error=True
        )
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise _nobody_at(address, error) from None

    def mapped(function: Callable[[A], T], tasks: Sequence[A], /) -> Iterable[T]:
        remote: Any = ray.remote(_call)
        try:
            results: list[T] = ray.get([remote.remote(function, task) for task in tasks])
        except ray.exceptions.RayTaskError as error:
            cause = error.cause if isinstance(getattr(error, "cause", None), OutlastError) else None
            raise cause or error from None
        return results

    return mapped


def _knock(address: str) -> None:
    """Raise UsageError unless a process listens there. Ray itself would wait for minutes."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if not colon:
        return
    if not port.isascii() or not port.isdigit():
        raise UsageError(
            f"{address!r} is not an address of a Ray cluster",
            hint="HOST:PORT, ray://HOST:PORT, auto or local",
        )
    try:
        socket.create_connection((host, int(port)), timeout=KNOCK_S).close()
    except (OSError, OverflowError) as error:
        raise _nobody_at(address, error) from None


def _nobody_at(address: str, error: Exception) -> UsageError:
    return UsageError(
        f"there is no Ray cluster at {address}: {error}",
        hint="`ray start --head` starts one; --ray auto finds it",
    )


def _call(function: Callable[[A], T], task: A) -> T:
    return function(task)
