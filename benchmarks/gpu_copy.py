"""How fast state comes from a GPU into the vault, and back, by the ways there are.

    python benchmarks/gpu_copy.py [--gib 1]

What outlast does is "registered"; the peer is `tensor.cpu()`, as torch.save and most checkpoints
do it. Each way copies the same bytes; the median of RUNS is shown, with the least and the most.
One process has the GPU to itself. It needs a GPU.
"""

from __future__ import annotations

import argparse
import mmap
import statistics
import time
from collections.abc import Callable

import torch

RUNS = 7


def timed(name: str, copy: Callable[[], object], nbytes: int) -> None:
    copy()
    torch.cuda.synchronize()
    took_s = []
    for _ in range(RUNS):
        began_s = time.perf_counter()
        copy()
        torch.cuda.synchronize()
        took_s.append(time.perf_counter() - began_s)
    middle_s = statistics.median(took_s)
    print(
        f"{name:44} {middle_s * 1e3:8.1f} ms ({min(took_s) * 1e3:.1f} to {max(took_s) * 1e3:.1f})"
        f" {nbytes / middle_s / 1e9:6.1f} GB/s",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Time copies between a GPU and shared memory.")
    parser.add_argument("--gib", type=float, default=1.0, help="how much to copy (default: 1)")
    size = int(parser.parse_args().gib * 2**30)
    print(f"torch {torch.__version__}, {torch.cuda.get_device_name()}")
    state = torch.randint(0, 255, (size,), dtype=torch.uint8, device="cuda")
    shared, registered = (
        torch.frombuffer(mmap.mmap(-1, size), dtype=torch.uint8).zero_() for _ in range(2)
    )
    began_s = time.perf_counter()
    torch.cuda.check_error(torch.cuda.cudart().cudaHostRegister(registered.data_ptr(), size, 0))
    print(f"registering takes {time.perf_counter() - began_s:.3f} s, once")
    timed("to fresh memory, tensor.cpu()", lambda: state.cpu(), size)
    timed("to shared memory", lambda: shared.copy_(state), size)
    timed("to shared memory, registered", lambda: registered.copy_(state, non_blocking=True), size)
    timed("from shared memory", lambda: state.copy_(shared), size)
    timed(
        "from shared memory, registered", lambda: state.copy_(registered, non_blocking=True), size
    )


if __name__ == "__main__":
    main()
