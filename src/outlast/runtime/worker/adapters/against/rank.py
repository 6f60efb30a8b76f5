"""Run a script as one rank that `outlast drill` can disturb, though outlast does not launch it.

    python -m outlast.runtime.worker.adapters.against.rank SCRIPT [arguments]

The script is run as it is, under its own name. The process takes the title by which a drill finds
its rank. A fault that a process has to cause in itself comes at its next optimizer call, as under
`outlast run`. RANK in the environment says which rank it is; OUTLAST_DRILL_RANK takes precedence.
"""

from __future__ import annotations

import os
import runpy
import sys

from outlast.runtime import linux


def main() -> None:
    rank = int(os.environ.get("OUTLAST_DRILL_RANK") or os.environ["RANK"])
    linux.set_name(f"outlast-rank{rank}")
    linux.die_with(os.getppid())
    folder = os.environ.get("OUTLAST_DRILL_FOLDER", "")
    if folder:
        _obey(folder, rank)
    sys.argv = sys.argv[1:]
    if sys.argv[0] in ("-m", "--module"):
        sys.argv = sys.argv[1:]
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
        return
    sys.path[0] = os.path.dirname(os.path.abspath(sys.argv[0]))
    runpy.run_path(sys.argv[0], run_name="__main__")


def _obey(folder: str, rank: int) -> None:
    from torch.optim import optimizer

    from outlast.runtime.worker.instructions import drill_code

    def before(*_: object) -> None:
        # the step is not known here; the drill reads it from the script's lines
        drill_code.obey(folder, rank=rank, step=0)

    optimizer.register_optimizer_step_pre_hook(before)


if __name__ == "__main__":
    main()
