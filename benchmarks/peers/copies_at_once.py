"""The script of `sharded_with_outlast.py`, with copies that go like any other connection.

    outlast run ... copies_at_once.py

It shows what `send_last` (src/outlast/runtime/worker/saving/copy_sender.py) is good for.
"""

from __future__ import annotations

import runpy
from pathlib import Path

from outlast.model import limits

limits.COPY_PRIORITY = 0
runpy.run_path(str(Path(__file__).with_name("sharded_with_outlast.py")), run_name="__main__")
