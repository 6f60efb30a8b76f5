"""Run a script that knows nothing of any launcher, and note each call of its optimizers.

    timed.py SCRIPT [ARGUMENTS]

The file that COMMITS names gets a line for each call, as from the other contestants. `generation`
is torchrun's count of restarts, which `outlast run` gives to such scripts too. PACED_S is what each
call takes longer, so that a small script lasts until it is struck.
"""

from __future__ import annotations

import os
import runpy
import sys
import time
from typing import Any

from commits import committed
from torch.optim.optimizer import register_optimizer_step_post_hook

calls = 0


def note(*_: Any) -> None:
    global calls
    calls += 1
    committed(
        rank=int(os.environ["RANK"]),
        step=calls,
        generation=int(os.environ["TORCHELASTIC_RESTART_COUNT"]),
        members=int(os.environ["WORLD_SIZE"]),
    )
    time.sleep(float(os.environ["PACED_S"]))


def main() -> None:
    register_optimizer_step_post_hook(note)
    del sys.argv[0]
    sys.path.insert(0, os.path.dirname(os.path.abspath(sys.argv[0])))
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
