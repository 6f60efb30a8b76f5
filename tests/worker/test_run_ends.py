"""The random draws of a drill's ranks if the script sets no seed."""

from __future__ import annotations

import random

import pytest
import torch

from outlast.runtime.worker.instructions.run_ends_folder import SAME_DRAWS
from outlast.runtime.worker.trials import run_ends


def drawn(worker: int) -> tuple[float, float]:
    run_ends.begin(worker)
    return torch.rand(()).item(), random.random()


def test_ranks_draw_alike_only_where_their_hosts_may_be_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A rank whose host is lost takes the random state of a peer, which is its own from then on.

    On one host, each worker has its own draws, which are the same in both runs of a drill.
    """
    with torch.random.fork_rng(devices=[]):
        before = random.getstate()
        assert drawn(0) == drawn(0) != drawn(1)
        monkeypatch.setenv(SAME_DRAWS, "1")
        assert drawn(0) == drawn(0) == drawn(1)
        random.setstate(before)
