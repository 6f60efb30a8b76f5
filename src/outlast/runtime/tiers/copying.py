"""Copy buffers one behind the other into an image, and take the checksum of what was written: xxh3_64.

On one core, block by block: a block is hashed while it is in cache, which costs a quarter of the copy. On two, a thread hashes behind the
copy; both let the interpreter lock go for a block. That hides most of the quarter, where a core has nothing else to do.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from queue import SimpleQueue

import xxhash

from outlast.model.limits import CHECKSUM_BLOCK_BYTES, COPY_BLOCK_BYTES

Copy = Callable[[memoryview, Sequence[memoryview]], int]


def copy_on_one_core(target: memoryview, buffers: Sequence[memoryview]) -> int:
    """The checksum. A small buffer costs one slice assignment."""
    digest, size_of_block = xxhash.xxh3_64(), CHECKSUM_BLOCK_BYTES
    at = hashed = 0
    for data in buffers:
        end = at + len(data)
        if end - hashed < size_of_block:
            target[at:end] = data
            at = end
            continue
        edge = max(at, hashed + size_of_block)
        target[at:edge] = data[: edge - at]
        digest.update(target[hashed:edge])
        hashed = edge
        while end - hashed >= size_of_block:
            block = target[hashed : hashed + size_of_block]
            block[:] = data[hashed - at : hashed - at + size_of_block]
            digest.update(block)
            hashed += size_of_block
        target[hashed:end] = data[hashed - at :]
        at = end
    digest.update(target[hashed:at])
    return digest.intdigest()


def copy_on_two_cores(target: memoryview, buffers: Sequence[memoryview]) -> int:
    """The same checksum. Where no thread can be started, one core has to do."""
    import numpy  # copies without the interpreter lock; the launcher, which writes no images, need not load it

    digest = xxhash.xxh3_64()
    written: SimpleQueue[memoryview | None] = SimpleQueue()

    def hash_behind() -> None:
        while (block := written.get()) is not None:
            digest.update(block)

    behind = threading.Thread(target=hash_behind, name="outlast-checksum", daemon=True)
    try:
        behind.start()
    except RuntimeError:
        return copy_on_one_core(target, buffers)
    try:
        at = hashed = 0
        for data in buffers:
            for start in range(0, len(data), COPY_BLOCK_BYTES):
                part = data[start : start + COPY_BLOCK_BYTES]
                numpy.copyto(numpy.frombuffer(target[at : at + len(part)], numpy.uint8), numpy.frombuffer(part, numpy.uint8))
                at += len(part)
                if at - hashed >= COPY_BLOCK_BYTES:
                    written.put(target[hashed:at])
                    hashed = at
        written.put(target[hashed:at])
    finally:
        written.put(None)
        behind.join()
    return digest.intdigest()
