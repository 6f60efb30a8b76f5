"""Decide whether an exception is a bug of outlast, or of other code in the same process."""

from __future__ import annotations

import pytest

from outlast.model.own_bugs import (
    is_called_by_outlast,
    is_damage,
    is_own_bug,
    is_shortage,
    raised_here,
)

AREA = "/usr/lib/python3/site-packages/outlast/runtime/tiers/area.py"


def traceback(path: str, error: str) -> str:
    return f'Traceback (most recent call last):\n  File "{path}", line 7, in f\n    g()\n{error}\n'


@pytest.mark.parametrize(
    "error",
    [
        "OSError: [Errno 24] Too many open files: '/dev/shm/x/slot-1'",
        "OSError: [Errno 27] File too large",
        "OSError: [Errno 28] No space left on device",
        "MemoryError",
        "RuntimeError: can't start new thread",
        "outlast.errors.UsageError: no such file",
        "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by"
        " peer [127.0.0.1]:4242",
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB.",
        "RuntimeError: CUDA error: uncorrectable ECC error encountered",
        "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:2006",
    ],
)
def test_what_the_script_has_used_up_is_no_bug_of_the_code_that_needs_it(error: str) -> None:
    assert not raised_here(AREA, error)
    assert not is_own_bug(traceback(AREA, error))


@pytest.mark.parametrize("error", ["KeyError: 7", "OSError: [Errno 9] Bad file descriptor"])
def test_another_error_is_the_bug_of_the_package_whose_code_raised_it(error: str) -> None:
    assert is_own_bug(traceback(AREA, error))
    assert not is_own_bug(traceback("train.py", error))


VOTE = "/srv/src/outlast/runtime/worker/steps/vote.py"
TORCH = "/usr/lib/python3/site-packages/torch/distributed/distributed_c10d.py"
THREADS = "/usr/lib/python3.11/threading.py"


@pytest.mark.parametrize(
    ("paths", "expected"),
    [
        (("train.py", VOTE), True),
        (("train.py", VOTE, TORCH, THREADS), True),
        (("train.py", VOTE, TORCH, "net.py"), False),
        (("train.py", VOTE, "/usr/lib/python3/site-packages/transformers/trainer.py"), False),
        (("train.py", TORCH), False),
        ((), False),
    ],
)
def test_outlast_called_what_raised_if_no_script_is_below_it(
    paths: tuple[str, ...], expected: bool
) -> None:
    frames = "".join(f'  File "{path}", line 7, in f\n    g()\n' for path in paths)
    told = f"Traceback (most recent call last):\n{frames}RuntimeError: x\n"
    assert is_called_by_outlast(told) is expected


def test_what_outlast_raises_on_purpose_is_about_the_script() -> None:
    assert not is_called_by_outlast(traceback(VOTE, "outlast.errors.StateError: a dict"))


@pytest.mark.parametrize(
    ("error", "damage", "shortage"),
    [
        ("outlast.errors.CorruptError: an image does not match its seal", True, False),
        ("outlast.errors.CapacityError: 2 slots could not be allocated", False, True),
        ("outlast.errors.StateError: a dict", False, False),
        ("outlast.errors.DivergedError: w differs between ranks 0 and 1", False, False),
        ("CorruptError: of another library", False, False),
    ],
)
def test_damage_and_shortage_are_not_about_the_script(
    error: str, damage: bool, shortage: bool
) -> None:
    told = traceback(VOTE, error)
    assert (is_damage(told), is_shortage(told)) == (damage, shortage)
    assert not is_damage("")
    assert not is_shortage("")
