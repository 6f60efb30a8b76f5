"""`MessageBatch`: join equal messages of several workers of a node, and send them as one.

A regroup then costs the coordinator one message for each node, and not one for each rank.

A message that may be shared waits up to BATCH_WAIT_S for others like it. At most one message of
each worker waits: if a worker sends another one, the waiting messages are sent first. So each
worker's messages keep their order, and none waits long for a worker that is dead. This module is
pure.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields as dataclass_fields
from dataclasses import replace
from operator import attrgetter
from typing import Any

from outlast.model.messages import (
    Committed,
    Finished,
    FromAgent,
    FromWorker,
    FromWorkers,
    Inventory,
    Joined,
    Registered,
    Underway,
)

# the kinds of messages that may be shared
_SHARED = (Registered, Inventory, Underway, Joined, Committed, Finished)
# Fields that may differ in a shared message. The largest value is sent: that of the last worker.
_MEASURED: dict[type, tuple[str, ...]] = {Joined: ("group_s", "restore_s"), Committed: ("at_s",)}

# for each kind of message: how to get the fields that have to be equal
_FIELDS: dict[type, attrgetter[Any]] = {}


class MessageBatch:
    """Collect messages of one node's workers, and join those that are alike."""

    def __init__(self) -> None:
        self._waiting: dict[int, Any] = {}  # worker -> its message

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def takes(self, message: FromWorker | FromAgent) -> bool:
        """Return True if `message` may be added. Otherwise send the batch first."""
        return isinstance(message, _SHARED) and message.worker not in self._waiting

    def add(self, message: FromWorker | FromAgent) -> None:
        """Add `message`. `takes` must have returned True for it."""
        assert isinstance(message, _SHARED), message
        self._waiting[message.worker] = message

    def takes_all(self, workers: Iterable[int], message: FromWorker) -> bool:
        """Return True if `message` may be added as a message of each of `workers`."""
        return isinstance(message, _SHARED) and not any(
            worker in self._waiting for worker in workers
        )

    def add_all(self, workers: Iterable[int], message: FromWorker) -> None:
        """Add `message`, which names the first of `workers`, for each. `takes_all` allows it."""
        self._waiting.update(dict.fromkeys(workers, message))

    def is_full(self, workers: Iterable[int]) -> bool:
        """Return True if each of `workers` has a message in the batch."""
        return all(worker in self._waiting for worker in workers)

    def take(self) -> list[FromWorker | FromWorkers]:
        """Empty the batch, and return its messages. Equal ones are joined to one FromWorkers."""
        alike: dict[object, tuple[list[int], list[Any]]] = {}
        kinds: dict[int, object] = {}  # by the id of a message that several have said at once
        for worker, message in self._waiting.items():
            kind = kinds.get(id(message))
            if kind is None:
                kind = kinds[id(message)] = _shared_part(message)
            workers, words = alike.setdefault(kind, ([], []))
            workers.append(worker)
            words.append(message)
        self._waiting.clear()
        return [
            words[0] if len(words) == 1 else FromWorkers(tuple(workers), _joined(words))
            for workers, words in alike.values()
        ]


def _shared_part(message: Any) -> object:
    """Return what has to be equal in messages that may be sent as one."""
    fields = _FIELDS.get(type(message))
    if fields is None:
        own = ("worker", *_MEASURED.get(type(message), ()))
        fields = _FIELDS[type(message)] = attrgetter(
            "generation", *(one.name for one in dataclass_fields(message) if one.name not in own)
        )
    return type(message), fields(message)


def _joined(same: list[Any]) -> Any:
    """Return messages that are alike as one, with the largest of what was measured."""
    return replace(
        same[0],
        worker=0,
        **{
            name: max(getattr(one, name) for one in same)
            for name in _MEASURED.get(type(same[0]), ())
        },
    )
