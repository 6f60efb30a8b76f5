"""What groups of NCCL are told. These tests have no NCCL: objects that stand for it record the
calls.
"""

from __future__ import annotations

import os
import threading
from datetime import timedelta
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402

from outlast.runtime.worker.communication import groups, nccl_groups  # noqa: E402

DUMP_WAIT = "TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC"
ERRORS = "TORCH_NCCL_ASYNC_ERROR_HANDLING"


class Backend:
    """A communicator that ends only once all others are told to end, as NCCL's may."""

    def __init__(self, all_told: threading.Barrier) -> None:
        self.aborted = False
        self._all_told = all_told

    def abort(self) -> None:
        self._all_told.wait(timeout=10.0)
        self.aborted = True


class Group:
    """A group with these backends, by type of device."""

    def __init__(self, **backends: Any) -> None:
        self._backends = backends

    @property
    def _device_types(self) -> list[Any]:
        return [torch.device(kind) for kind in self._backends]

    def _get_backend(self, device: Any) -> Any:
        return self._backends[device.type]


@pytest.mark.parametrize("count", [1, 3])
def test_all_communicators_are_aborted_at_once(count: int) -> None:
    """If they were aborted one after another, the first would wait for the second."""
    told = threading.Barrier(count)
    backends = [Backend(told) for _ in range(count)]
    nccl_groups.abort([Group(cpu=None, cuda=backend) for backend in backends])  # type: ignore[misc]
    assert all(backend.aborted for backend in backends)


def test_a_communicator_that_cannot_be_aborted_is_passed_over() -> None:
    class Gone(Backend):
        def abort(self) -> None:
            raise RuntimeError("it was aborted before")

    other = Backend(threading.Barrier(1))
    gone = Gone(threading.Barrier(1))
    nccl_groups.abort([Group(cuda=gone), Group(cuda=other)])  # type: ignore[list-item]
    assert other.aborted


@pytest.mark.parametrize("given", [None, "15000"])
def test_errors_are_left_to_outlast(monkeypatch: pytest.MonkeyPatch, given: str | None) -> None:
    """The launcher has set the variable as torchrun does. The user may set how long dumps
    may take.
    """
    monkeypatch.setenv(ERRORS, "1")
    monkeypatch.delenv(DUMP_WAIT, raising=False)
    if given is not None:
        monkeypatch.setenv(DUMP_WAIT, given)
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    store.set("exception_dump", "1")
    nccl_groups.leave_errors_to_outlast(store)
    assert os.environ[ERRORS] == "0"
    assert os.environ[DUMP_WAIT] == (given or "1")
    assert not store.check(["exception_dump"])
    nccl_groups.leave_errors_to_outlast(store)


def test_only_groups_of_nccl_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    monkeypatch.setattr(nccl_groups, "leave_errors_to_outlast", lambda store: told.append("nccl"))
    for backend, expected in (("gloo", []), ("cpu:gloo,cuda:nccl", ["nccl"])):
        monkeypatch.setattr(groups, "_initialise", lambda *_: (_ for _ in ()).throw(OSError))
        monkeypatch.setattr(groups, "destroy", lambda group: None)
        store = dist.TCPStore(
            "127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=5)
        )
        with pytest.raises(OSError):
            groups.build(
                store=store, generation=1, rank=0, world_size=1, backend=backend, timeout_s=5.0
            )
        assert told == expected
