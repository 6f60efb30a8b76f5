"""A dispatch that has to know every case. The type checker proves that it does."""

from __future__ import annotations

from typing import NoReturn


def assert_never(value: NoReturn) -> NoReturn:
    """Fail: `value` is of a case that is not handled. The type checker reports it before."""
    raise AssertionError(f"nobody handles {value!r}")
