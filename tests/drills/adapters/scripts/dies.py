"""The example of outlast.hf, in which one rank is killed in the middle of the second evaluation.

DIES   the rank to kill
ONCE   a file that shows that the kill has happened
"""

import os
import runpy
import signal
from pathlib import Path
from typing import Any

import transformers.trainer
from transformers import TrainerCallback


class Dies(TrainerCallback):
    def __init__(self) -> None:
        self.looks = 0

    def on_prediction_step(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        self.looks += state.global_step == 10
        once = Path(os.environ["ONCE"])
        if self.looks == 5 and args.process_index == int(os.environ["DIES"]) and not once.exists():
            once.touch()
            os.kill(os.getpid(), signal.SIGKILL)


transformers.trainer.DEFAULT_CALLBACKS.append(Dies)
runpy.run_path(str(Path(__file__).parents[4] / "examples" / "hf_trainer.py"), run_name="__main__")
