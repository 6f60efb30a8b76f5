"""Four ranks over gloo, TP pairs and DP pairs, one of which comes to grief; a thread of each leaves
its dump again and again, as a beacon does.

python gloo_rank.py FOLDER SCENARIO CULPRIT

The ranks are forks of one process, which imports torch once. It makes the file FOLDER/ended when
the first of them has ended.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

WORLD, STEPS, BAD_STEP = 4, 6, 3


def leave_dumps(folder: Path, rank: int) -> None:
    """JSON always; a pickle with stacks only once the main thread stands: to name the frames takes
    the interpreter's lock while the recorder's is held, and a main thread that is about to record
    holds the one and wants the other, for ever.
    """
    recorder = torch._C._distributed_c10d
    while True:
        as_json = recorder._dump_fr_trace_json(True, False)
        write(
            folder / f"json/node-a_{rank}.json",
            as_json.encode() if isinstance(as_json, str) else as_json,
        )
        if (folder / "stands").exists():
            write(folder / f"pickle/trace_rank_{rank}", recorder._dump_fr_trace(True, True, False))
        time.sleep(0.02)


def write(path: Path, raw: bytes) -> None:
    new = path.with_name(f"{path.name}.new")
    new.write_bytes(raw)
    os.replace(new, path)


def main() -> None:
    folder, scenario, culprit = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    for rank in range(WORLD):
        if not os.fork():
            run(folder, rank, scenario, culprit)
            os._exit(0)
    os.wait()
    (folder / "ended").touch()
    while True:
        os.wait()


def run(folder: Path, rank: int, scenario: str, culprit: int) -> None:
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/store",
        rank=rank,
        world_size=WORLD,
        timeout=timedelta(seconds=120),
    )
    tps, dps = (
        [dist.new_group(ranks) for ranks in ([0, 1], [2, 3])],
        [dist.new_group(ranks) for ranks in ([0, 2], [1, 3])],
    )
    tp, dp = tps[rank // 2], dps[rank % 2]
    threading.Thread(target=leave_dumps, args=(folder, rank), daemon=True).start()
    for step in range(STEPS):
        is_bad = step == BAD_STEP and rank == culprit
        if is_bad and scenario != "shape":
            (folder / "bad").touch()
            time.sleep(600)
        dist.all_reduce(torch.ones(6), group=tp)
        dist.all_reduce(torch.ones(8), group=dp)
        dist.all_reduce(torch.ones(1 << (18 if is_bad else 2)))
    time.sleep(600)


if __name__ == "__main__":
    main()
