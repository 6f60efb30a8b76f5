"""What a drill reads while its script runs: a line for each commit, "RANK STEP PID", in the file
that DRILL_COMMITS names. And "RANK DIGEST" at the end, beside it, where the console may be gone.
"""

from __future__ import annotations

import os


def note_commit(rank: int, step: int) -> None:
    with open(os.environ["DRILL_COMMITS"], "a") as file:
        file.write(f"{rank} {step} {os.getpid()}\n")


def note_digest(rank: int, digest: str) -> None:
    with open(os.environ["DRILL_COMMITS"] + ".digests", "a") as file:
        file.write(f"{rank} {digest}\n")
