"""The script of `sharded_with_outlast.py`, with copies that are sent like any other packets.

    outlast run ... copies_at_once.py

Beside that script it shows what `send_last` (runtime/worker/saving/copy_sender.py) gains.
"""

from __future__ import annotations

import runpy
from pathlib import Path

from outlast.model import limits

limits.COPY_PRIORITY = 0
runpy.run_path(str(Path(__file__).with_name("sharded_with_outlast.py")), run_name="__main__")
