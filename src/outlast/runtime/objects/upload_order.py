"""What a launcher sends to the process that uploads: the program, the order, and the final message.

Both sides import this module, so it needs no client of object storage.
"""

from __future__ import annotations

import json
from dataclasses import astuple, dataclass, field
from pathlib import Path

from outlast.engine.durable import Retention
from outlast.model.keep import Every
from outlast.runtime.interpreter import module_command

PROGRAM = module_command("outlast.runtime.objects.program")
FINISH = b"finish\n"  # sent on stdin: the run is over


@dataclass(frozen=True, slots=True)
class UploadOrder:
    """An order to upload checkpoints.

    root         the folder of the checkpoints on the disk
    run          the run whose checkpoints they are
    every        how often a checkpoint is uploaded
    bytes_per_s  the highest rate of the upload; 0: as fast as possible
    """

    url: str
    root: Path
    run: str
    every: Every
    retention: Retention = field(default_factory=Retention)
    bytes_per_s: float = 0.0

    def encode(self, *, launcher: int) -> str:
        """Return the order as an argument. The process ends with `launcher`, a pid."""
        return json.dumps(
            {
                "url": self.url,
                "root": str(self.root),
                "run": self.run,
                "every": astuple(self.every),
                "retention": astuple(self.retention),
                "bytes_per_s": self.bytes_per_s,
                "launcher": launcher,
            }
        )


def decode_order(text: str) -> tuple[UploadOrder, int]:
    """Return the order, and the pid of the launcher."""
    asked = json.loads(text)
    order = UploadOrder(
        asked["url"],
        Path(asked["root"]),
        asked["run"],
        Every(*asked["every"]),
        Retention(*asked["retention"]),
        asked["bytes_per_s"],
    )
    return order, asked["launcher"]
