"""Run a script that calls outlast at a slower pace, and print the digest of its whole state on each
rank.

    paced.py SCRIPT [ARGUMENTS]

PACED_S       additional seconds for each step
PACED_UNTIL   the last step, if the script has a later one
PACED_TIMES   a factor for the script's own last step
"""

from __future__ import annotations

import os
import runpy
import sys
import time
from collections.abc import Iterator
from typing import Any

import outlast

_steps = outlast.Run.steps


def paced(run: outlast.Run, state: Any, *, until: int, **more: Any) -> Iterator[Any]:
    until = min(until * int(os.environ["PACED_TIMES"]), int(os.environ["PACED_UNTIL"]))
    steps = _steps(run, state, until=until, **more)
    try:
        for step in steps:
            time.sleep(float(os.environ["PACED_S"]))
            yield step
    except GeneratorExit:  # the script has left the loop by break
        steps.close()
    print(f"digest {run.rank} {outlast.digest(state)}", flush=True)


def main() -> None:
    outlast.Run.steps = paced
    del sys.argv[0]
    sys.path.insert(0, os.path.dirname(os.path.abspath(sys.argv[0])))
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
