"""Drop lines that C++ code writes to stderr about something that outlast does on purpose."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator


@contextlib.contextmanager
def without_complaint(*words: bytes) -> Iterator[None]:
    """Drop lines with any of `words` that C++ writes to stderr while the block runs.

    All other lines are written at the end.
    """
    _flush()
    real, held = os.dup(2), os.memfd_create("stderr", os.MFD_CLOEXEC)
    os.dup2(held, 2)
    try:
        yield
    finally:
        _flush()
        os.dup2(real, 2)
        said = os.pread(held, os.fstat(held).st_size, 0)
        os.close(real)
        os.close(held)
        lines = said.splitlines(keepends=True)
        rest = [line for line in lines if not any(one in line for one in words)]
        if len(rest) < len(lines):  # a message of many lines has empty ones
            rest = [line for line in rest if line.strip()]
        if rest:
            os.write(2, b"".join(rest))


def _flush() -> None:
    """Flush what Python has buffered for stderr. The script may have closed or replaced it."""
    with contextlib.suppress(AttributeError, OSError, ValueError):
        sys.stderr.flush()
