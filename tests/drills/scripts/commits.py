"""What a drill reads while its script runs: a line "RANK STEP PID" for each commit, in the file
that DRILL_COMMITS names. At the end, "RANK DIGEST" goes to a file beside it, in case the console is
gone.
"""

from __future__ import annotations

import os


def note_commit(rank: int, step: int) -> None:
    with open(os.environ["DRILL_COMMITS"], "a") as file:
        file.write(f"{rank} {step} {os.getpid()}\n")


def note_digest(rank: int, digest: str) -> None:
    with open(os.environ["DRILL_COMMITS"] + ".digests", "a") as file:
        file.write(f"{rank} {digest}\n")
