"""The whole state of each rank at the end, for `outlast drill`.

A drill trains twice, and compares the results. It asks for them by an environment variable, which
names a folder. Once `run.steps` has yielded its last step, each rank writes

    rank-<rank>.json    {"step": the last committed step, "parts": {name: print}}

with a print of everything that `run.state(...)` holds there (`prints.py`) and of its random state.
Another call of `run.steps`, and a process that takes the rank over, writes it again.

Limits   A tensor of more than TRIAL_TENSOR_BYTES has no print.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

from outlast.runtime.worker.instructions.run_ends_folder import same_draws
from outlast.runtime.worker.steps.step import Step
from outlast.runtime.worker.steps.transaction import Transaction
from outlast.runtime.worker.tensors import random_state
from outlast.runtime.worker.trials.trial import state_prints


def begin(worker: int) -> None:
    """Let draws without a seed be the same in both runs.

    A worker's number is the same in both. On several hosts the draws are the same on all ranks,
    because a rank whose host is lost takes the random state of a peer.
    """
    random_state.fresh(seed=1_000_003 * (1 if same_draws() else worker + 1))


def watched(transaction: Transaction, steps: Iterator[Step], folder: str) -> Iterator[Step]:
    """Yield the steps, and record the state after the last one."""
    try:
        yield from steps
    except GeneratorExit:  # the script has left the loop
        _write(Path(folder), transaction)
        raise
    _write(Path(folder), transaction)


def _write(folder: Path, transaction: Transaction) -> None:
    if transaction.is_rehearsal or transaction.member.session is None:
        return
    found = {"step": transaction.committed, "parts": state_prints(transaction.state)}
    rank = transaction.member.rank()
    part = folder / f".rank-{rank}.{os.getpid()}"
    part.write_text(json.dumps(found))
    part.replace(folder / f"rank-{rank}.json")
