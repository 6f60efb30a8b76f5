"""The example of outlast.lightning, in which one rank is killed in the middle of a validation.

DIES   the rank to kill
ONCE   a file that shows that the kill has happened
"""

import os
import runpy
import signal
from pathlib import Path
from typing import Any

from lightning.pytorch.callbacks import EMAWeightAveraging

before = EMAWeightAveraging.on_validation_batch_end


def dies(self: Any, trainer: Any, module: Any, outputs: Any, batch: Any, index: int) -> None:
    before(self, trainer, module, outputs, batch, index)
    once = Path(os.environ["ONCE"])
    mine = trainer.global_rank == int(os.environ["DIES"])
    if trainer.global_step == 10 and index == 1 and mine and not once.exists():
        once.touch()
        os.kill(os.getpid(), signal.SIGKILL)


EMAWeightAveraging.on_validation_batch_end = dies
example = Path(__file__).parents[4] / "examples" / "lightning_fit.py"
runpy.run_path(str(example), run_name="__main__")
