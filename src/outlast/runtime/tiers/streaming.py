"""Copying what will not be read soon: past the caches where `_stream.c` could be built, as any
other copy elsewhere.

Both copy the same bytes; only their time differs (benchmarks/stall.py says which one it measured).
"""

from __future__ import annotations

__all__ = ["PAST_CACHES", "copy", "plain"]


def plain(target: memoryview, source: memoryview) -> None:
    """All bytes of `source` into `target`, which must have as many: ValueError.

    Both one-dimensional and contiguous, not overlapping.
    """
    target[:] = source


try:
    from outlast.runtime.tiers._stream import copy
except ImportError:  # there was no C compiler when the package was built
    copy = plain

PAST_CACHES = copy is not plain
