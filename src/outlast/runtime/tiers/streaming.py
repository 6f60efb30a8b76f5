"""Copy data that will not be read soon. The copy bypasses the caches if `_stream.c` could be built.

Both functions copy the same bytes. Only the time that they take differs (benchmarks/stall.py says
which one it measured).
"""

from __future__ import annotations

__all__ = ["PAST_CACHES", "copy", "plain"]


def plain(target: memoryview, source: memoryview) -> None:
    """Copy all bytes of `source` into `target`, which must have the same length (ValueError).

    Both are one-dimensional and contiguous, and do not overlap.
    """
    target[:] = source


try:
    from outlast.runtime.tiers._stream import copy
except ImportError:  # there was no C compiler when the package was built
    copy = plain

PAST_CACHES = copy is not plain
