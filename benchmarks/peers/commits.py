"""What every contestant shares: the batch of a step, and how it says that a step is committed.

A contestant appends one line of JSON for each step that it has committed to the file named by
COMMITS; times are CLOCK_MONOTONIC seconds. `generation` grows whenever the contestant's membership
changes, however it counts that. `ended_s` is when the block of the step was left, if that is known:
under sharded state a step is committed later. The model and the corpus are those of
examples/train_gpt.py; BATCH takes the place of its batch size.

Two contestants may be measured in turns, both alive (overhead.py): TURNS names a folder with the
pipe `arrived`, into which a rank says that it waits, and `go-<rank>`, from which it reads that it
may go on; TURN_STEPS is how many steps a turn has.
"""

import json
import os
import socket
import time
from pathlib import Path

import torch
from train_gpt import BATCH as EXAMPLES_BATCH
from train_gpt import Corpus

HOST = socket.gethostname()
BATCH = int(os.environ.get("BATCH", EXAMPLES_BATCH))  # sequences per step, over all ranks together

_file = (
    os.open(os.environ["COMMITS"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    if "COMMITS" in os.environ
    else -1
)


def now_s() -> float:
    """Return the time by the clock of all processes."""
    return time.clock_gettime(time.CLOCK_MONOTONIC)


def committed(
    *, rank: int, step: int, generation: int, members: int, ended_s: float | None = None
) -> None:
    """Append a line to the file of commits, at once, so that it outlives this process."""
    line = {
        "rank": rank,
        "pid": os.getpid(),
        "step": step,
        "generation": generation,
        "members": members,
        "host": HOST,
        "at_s": now_s(),
        "ended_s": ended_s,
    }
    os.write(_file, json.dumps(line).encode() + b"\n")


def a_turn_ends(step: int) -> bool:
    """Return whether the rank has to `wait_for_turn` before its next step."""
    return "TURNS" in os.environ and step % int(os.environ["TURN_STEPS"]) == 0


def wait_for_turn(rank: int) -> None:
    turns = Path(os.environ["TURNS"])
    with (
        (turns / "arrived").open("wb", buffering=0) as arrived,
        (turns / f"go-{rank}").open("rb", buffering=0) as go,
    ):
        arrived.write(b".")
        go.read(1)


def batch_of(corpus: Corpus, step: int, rank: int, world_size: int) -> list[torch.Tensor]:
    """Return this rank's part of the batch of a step."""
    chosen = torch.randint(len(corpus), (BATCH,), generator=torch.Generator().manual_seed(step))
    mine = chosen[rank::world_size].tolist()
    return [torch.stack(parts) for parts in zip(*(corpus[index] for index in mine), strict=True)]
