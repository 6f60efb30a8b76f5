"""One rank of four over gloo, TP pairs and DP pairs, that comes to grief; a thread of its own
leaves its dump again and again, as a beacon does.

python gloo_rank.py FOLDER RANK SCENARIO CULPRIT
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

STEPS, BAD_STEP = 6, 3


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
    folder, rank, scenario, culprit = (
        Path(sys.argv[1]),
        int(sys.argv[2]),
        sys.argv[3],
        int(sys.argv[4]),
    )
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/store",
        rank=rank,
        world_size=4,
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
