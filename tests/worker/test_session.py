"""What a worker reports about an error of the script."""

from __future__ import annotations

import pytest

from outlast.runtime.worker.process.error_text import one_line


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ValueError("bad\nsample"), "ValueError: bad"),
        (AssertionError(), "AssertionError"),  # from a bare `assert`
        (KeyboardInterrupt(), "KeyboardInterrupt"),
        (ValueError(" \n "), "ValueError"),
    ],
)
def test_an_error_is_reported_as_python_prints_it(error: BaseException, said: str) -> None:
    """An error without a message has no colon after its name."""
    assert one_line(error) == said
