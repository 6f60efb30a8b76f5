"""What a worker says about an error of the script."""

from __future__ import annotations

import pytest

from outlast.runtime.worker.error_text import one_line


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ValueError("bad\nsample"), "ValueError: bad"),
        (AssertionError(), "AssertionError"),  # a bare `assert`
        (KeyboardInterrupt(), "KeyboardInterrupt"),
        (ValueError(" \n "), "ValueError"),
    ],
)
def test_an_error_is_told_as_python_prints_it(error: BaseException, said: str) -> None:
    """Without a message, no colon stands before nothing."""
    assert one_line(error) == said
