"""`outlast diagnose --watch`: follow a running job, and print a verdict if it hangs or fails."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from outlast.runtime.collect.watch import WatchEnd, watch


def watched(paths: Sequence[str], *, pids: Sequence[int], job: str, quiet_s: float) -> WatchEnd:
    """Watch until the job has failed or hangs. Print on stderr what is seen. Raises UsageError."""
    print(f"watching {', '.join(paths)}; Ctrl-C ends it", file=sys.stderr)
    ended = watch(
        paths,
        incidents=Path.cwd(),
        pids=pids,
        job=job,
        min_s=quiet_s,
        on_look=lambda said: print(said, file=sys.stderr),
    )
    print(f"the job {ended.how}: {ended.reason}", file=sys.stderr)
    return ended
