"""Whether an exception is a bug of outlast, or of what runs beside it in the process."""

from __future__ import annotations

import pytest

from outlast.model.own_bugs import is_own_bug, raised_here

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
    ],
)
def test_what_the_script_has_used_up_is_no_bug_of_the_code_that_needs_it(error: str) -> None:
    assert not raised_here(AREA, error)
    assert not is_own_bug(traceback(AREA, error))


@pytest.mark.parametrize("error", ["KeyError: 7", "OSError: [Errno 9] Bad file descriptor"])
def test_another_error_is_the_bug_of_the_package_whose_code_raised_it(error: str) -> None:
    assert is_own_bug(traceback(AREA, error))
    assert not is_own_bug(traceback("train.py", error))
