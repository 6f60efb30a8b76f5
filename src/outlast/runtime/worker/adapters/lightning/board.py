"""A board in the run's folder, on which rank 0 leaves plain values for the other ranks.

Lightning broadcasts some values before training, such as the folder of its checkpoints. A process
that replaces a rank reaches these places alone, and a collective would wait without end. So rank 0
leaves each value in a file, under the number of the broadcast. A process that replaces rank 0 finds
what its predecessor left, and uses that.

Limits     One node: the folder is on its disk. Values are None, numbers, texts, and lists and
           dicts of these. All ranks broadcast the same values in the same order.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

from outlast.errors import UsageError

_LOOK_EACH_S = 0.01


class Board:
    """The values that were left so far, in the order in which the script reaches them."""

    def __init__(self, run_folder: str, rank: int) -> None:
        self._folder = Path(run_folder) / "lightning"
        self._rank = rank
        self._count = 0

    def share(self, value: Any) -> Any:
        """Return the value that rank 0 gives here, on each rank.

        It waits for that value as long as rank 0 is alive. Raises UsageError for a value that is
        not plain.
        """
        self._count += 1
        path = self._folder / f"{self._count}.json"
        if self._rank == 0 and not path.exists():
            self._leave(path, value)
        while not path.exists():
            time.sleep(_LOOK_EACH_S)
        return json.loads(path.read_text())["value"]

    def _leave(self, path: Path, value: Any) -> None:
        try:
            text = json.dumps({"value": os.fspath(value) if isinstance(value, Path) else value})
        except TypeError:
            raise UsageError(
                f"a {type(value).__name__} is broadcast before training",
                hint="outlast.lightning broadcasts plain values there; broadcast others in a hook"
                " of the training, such as on_train_epoch_start",
            ) from None
        self._folder.mkdir(parents=True, exist_ok=True)
        half = path.with_suffix(f".{os.getpid()}")
        half.write_text(text)
        half.replace(path)
