"""The example of accelerate, in which one rank is killed between two batches of an update.

DIES   the rank to kill
ONCE   a file that shows that the kill has happened
"""

import os
import runpy
import signal
from pathlib import Path
from typing import Any

import accelerate

before = accelerate.Accelerator.backward
calls = 0


def dies(self: Any, loss: Any, **more: Any) -> None:
    global calls
    before(self, loss, **more)
    calls += 1
    once = Path(os.environ["ONCE"])
    if calls == 21 and self.process_index == int(os.environ["DIES"]) and not once.exists():
        once.touch()
        os.kill(os.getpid(), signal.SIGKILL)


accelerate.Accelerator.backward = dies
example = Path(__file__).parents[4] / "examples" / "accelerate_loop.py"
runpy.run_path(str(example), run_name="__main__")
