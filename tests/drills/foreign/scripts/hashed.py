"""Run a script that calls no outlast, and print a digest of what its optimizers have trained.

    hashed.py SCRIPT [ARGUMENTS]

It works under `outlast run` and under torchrun alike, so that both can be compared.
"""

from __future__ import annotations

import hashlib
import os
import runpy
import sys
from typing import Any

from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook

seen: list[Optimizer] = []


def note(optimizer: Optimizer, *_: Any) -> None:
    if not any(optimizer is one for one in seen):
        seen.append(optimizer)


def digest() -> str:
    found = hashlib.sha256()
    for optimizer in seen:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                found.update(parameter.detach().numpy().tobytes())
    return found.hexdigest()


def main() -> None:
    register_optimizer_step_post_hook(note)
    del sys.argv[0]
    sys.path.insert(0, os.path.dirname(os.path.abspath(sys.argv[0])))
    runpy.run_path(sys.argv[0], run_name="__main__")
    sys.stdout.write(f"digest {os.environ['RANK']} {digest()}\n")  # in one piece: ranks share it


if __name__ == "__main__":
    main()
