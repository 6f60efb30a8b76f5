"""GPUs are counted in a child process, so that the process that asks can still be forked.

Nothing here needs a GPU: a function stands for CUDA's count, and records which process calls it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from outlast.runtime.worker.process import gpu_count  # noqa: E402
from outlast.runtime.worker.start import imports  # noqa: E402


@pytest.fixture
def askers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """Yield a file with a line for each process that has asked CUDA for its two GPUs."""
    path = tmp_path / "askers"
    path.touch()

    def count() -> int:
        with path.open("a") as file:
            file.write(f"{os.getpid()}\n")
        return 2

    monkeypatch.setattr(torch._C, "_cuda_getDeviceCount", count, raising=False)
    yield path
    gpu_count.ask_directly()


def test_a_child_asks_cuda_once(askers: Path) -> None:
    gpu_count.ask_in_a_child()
    gpu_count.ask_in_a_child()
    assert [torch._C._cuda_getDeviceCount() for _ in range(3)] == [2, 2, 2]
    assert torch.cuda._device_count_nvml() == 2
    (asker,) = map(int, askers.read_text().split())
    assert asker != os.getpid()
    gpu_count.ask_directly()
    assert torch._C._cuda_getDeviceCount() == 2
    assert [int(one) for one in askers.read_text().split()] == [asker, os.getpid()]


def test_a_child_that_dies_while_it_asks_has_seen_no_gpu(
    monkeypatch: pytest.MonkeyPatch, askers: Path
) -> None:
    monkeypatch.setattr(torch._C, "_cuda_getDeviceCount", lambda: os._exit(3))
    gpu_count.ask_in_a_child()
    assert torch._C._cuda_getDeviceCount() == 0
    assert not gpu_count.forks_lack_them()


def test_a_process_that_has_used_cuda_is_unfit_to_fork(
    monkeypatch: pytest.MonkeyPatch, askers: Path
) -> None:
    """Method: the function stands for CUDA. It answers 0 in forks of a process that has
    used CUDA.
    """
    used = []
    monkeypatch.setattr(torch._C, "_cuda_getDeviceCount", lambda: 0 if used else 2)
    assert not gpu_count.forks_lack_them(), "nobody has asked for a child"
    gpu_count.ask_in_a_child()
    assert torch._C._cuda_getDeviceCount() == 2
    assert not gpu_count.forks_lack_them()
    used.append(True)
    assert gpu_count.forks_lack_them()
    monkeypatch.setattr(imports, "_threads_that_forbid_forks", list)
    assert imports.unfit_to_fork() == "CUDA was initialised while importing"


def test_a_library_thread_forbids_forks_unless_it_stops_for_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Method: threads with the names that drivers and allocators give theirs."""
    import threading

    from outlast.runtime.linux import set_name

    stop = threading.Event()

    def named(name: str) -> None:
        set_name(name)  # of this thread
        ready.set()
        stop.wait()

    threads = []
    for name in ("grpc_poller", "jemalloc_bg_thd", "cuda00001800007"):
        ready = threading.Event()
        threads.append(threading.Thread(target=named, args=(name,)))
        threads[-1].start()
        ready.wait()
    try:
        found = imports._threads_that_forbid_forks()
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert "grpc_poller" in found
    assert not {"jemalloc_bg_thd", "cuda00001800007"} & set(found)
