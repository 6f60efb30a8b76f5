"""GPUs are assigned to local ranks, and CUDA is not used before a device was chosen.

Nothing here needs a GPU: the functions of torch.cuda that matter are replaced, and record how they
are called. tests/drills/test_devices.py does the same with the processes of a run.
"""

from __future__ import annotations

import threading
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402

from outlast.runtime.worker.member.membership import Membership  # noqa: E402
from outlast.runtime.worker.process import devices  # noqa: E402
from outlast.runtime.worker.tensors import random_state  # noqa: E402

GPUS = 4
Calls = list[tuple[str, Any]]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    """Yield the calls made to torch.cuda, in order, on a machine with four GPUs."""
    made: Calls = []
    current = [0]

    def set_device(device: Any) -> None:
        current[0] = torch.device("cuda", device).index if isinstance(device, int) else device.index
        made.append(("set_device", current[0]))

    def get_rng_state(device: Any) -> Any:
        made.append(("get_rng_state", device))
        return torch.tensor([device.index], dtype=torch.uint8)

    def lazy_init() -> None:
        made.append(("init", current[0]))

    fakes = {
        "is_available": lambda: True,
        "is_initialized": lambda: False,
        "set_device": set_device,
        "device_count": lambda: GPUS,
        "current_device": lambda: current[0],
        "get_rng_state": get_rng_state,
        "_lazy_init": lazy_init,
        "set_rng_state": lambda state, device: made.append(("set_rng_state", device)),
    }
    for name, fake in fakes.items():
        monkeypatch.setattr(torch.cuda, name, fake)
    monkeypatch.setattr(torch.cuda.random, "_lazy_init", lazy_init)
    monkeypatch.setattr(devices, "_mine", None)
    monkeypatch.setattr(devices, "_asked", None)
    monkeypatch.setattr(random_state, "_latest", None)
    return made


def cuda(index: int) -> Any:
    return torch.device("cuda", index)


def test_local_ranks_share_gpus_in_turn(calls: Calls) -> None:
    assert [devices.of(rank) for rank in range(6)] == [cuda(rank % GPUS) for rank in range(6)]
    assert calls == [], "asking chooses nothing"
    assert devices.take(5) == devices.mine() == cuda(1)
    assert calls == [("set_device", 1)]


def test_without_gpus_the_device_is_the_cpu() -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    assert devices.of(3) == devices.take(3) == torch.device("cpu")


def test_a_device_is_current_for_a_while_only(calls: Calls) -> None:
    devices.take(2)
    torch.cuda.set_device(0)
    with devices.current(devices.of(2)):
        assert torch.cuda.current_device() == 2
        with devices.current(devices.of(2)):
            pass
    assert torch.cuda.current_device() == 0
    assert calls == [("set_device", one) for one in (2, 0, 2, 0)]
    with devices.current(torch.device("cpu")):
        pass
    assert len(calls) == 4


@pytest.mark.parametrize("module", [torch.cuda, torch.cuda.random], ids=["cuda", "cuda.random"])
def test_the_first_use_of_cuda_asks_once(calls: Calls, module: Any) -> None:
    """The first use is caught wherever torch keeps that function: some of its modules have a name
    of their own for it.
    """
    devices.before_first_use(lambda: devices.take(3))
    module._lazy_init()
    module._lazy_init()
    assert calls == [("set_device", 3), ("init", 3), ("init", 3)]
    devices.before_first_use(lambda: calls.append(("asked", None)))
    module._lazy_init()
    assert calls[3:] == [("asked", None), ("init", 3)], "armed again, and not twice"


def test_a_rank_that_has_a_device_is_not_asked_again(calls: Calls) -> None:
    devices.before_first_use(lambda: pytest.fail("it was asked"))
    devices.take(1)
    torch.cuda._lazy_init()
    assert calls == [("set_device", 1), ("init", 1)]


def test_a_thread_of_the_script_is_not_held_up(calls: Calls) -> None:
    """Only the main thread can park."""
    devices.before_first_use(lambda: pytest.fail("it was asked"))
    thread = threading.Thread(target=lambda: torch.cuda._lazy_init())
    thread.start()
    thread.join()
    assert calls == [("init", 0)]


def test_random_state_is_that_of_the_ranks_own_gpu(
    calls: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Method: another device is current at that moment, as it may be in a script."""
    devices.take(2)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    torch.cuda.set_device(0)
    state = random_state.capture()
    assert state.cuda is not None
    assert state.cuda.tolist() == [2]
    random_state.restore(state)
    asked = [call for call in calls if call[0].endswith("rng_state")]
    assert asked == [("get_rng_state", cuda(2)), ("set_rng_state", cuda(2))]


@pytest.mark.parametrize(
    ("gpus", "ranks", "expected"),
    [(4, 4, "cpu:gloo,cuda:nccl"), (4, 1, "cpu:gloo,cuda:nccl"), (4, 5, "gloo"), (0, 4, "gloo")],
)
def test_nccl_is_used_where_each_rank_has_a_gpu_of_its_own(
    calls: Calls, monkeypatch: pytest.MonkeyPatch, gpus: int, ranks: int, expected: str
) -> None:
    monkeypatch.setattr(dist, "is_nccl_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    assert devices.backend(ranks) == expected
    assert devices.are_shared(ranks) == (gpus == 4 and ranks == 5)


def test_under_torchrun_the_device_is_chosen_before_the_group(
    calls: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Method: local rank 3 of the second node, in a world of eight ranks."""
    given = {"RANK": "7", "LOCAL_RANK": "3", "LOCAL_WORLD_SIZE": "4", "WORLD_SIZE": "8"}
    for name, value in {**given, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(dist, "is_nccl_available", lambda: True)
    monkeypatch.setattr(
        dist,
        "init_process_group",
        lambda backend, device_id: calls.append((backend, device_id)),
    )
    monkeypatch.setattr(dist, "get_rank", lambda: 7)
    monkeypatch.setattr(dist, "get_world_size", lambda: 8)
    member = Membership.of(None, reenters=False)
    assert calls == [("set_device", 3), ("cpu:gloo,cuda:nccl", cuda(3))]
    assert member.local_rank() == 3
