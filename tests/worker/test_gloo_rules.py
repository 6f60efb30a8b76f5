"""How gloo fails when a peer is killed: the rules that the simulated collectives
(sim/world/collectives.py) follow, observed with real gloo.

A collective succeeds on no rank before all have entered it. After that it succeeds on any of the
survivors, and on the others it fails or never returns.
"""

from __future__ import annotations

import mmap
import os
import random
import signal
import threading
import time
from collections import Counter
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from outlast.runtime.worker.communication import groups
from tests.worker._ranks import Rank, run_ranks

RANKS, VICTIM = 3, 1
# A survivor that has noticed nothing by then never will: if gloo raises, it does so within tens of
# milliseconds.
STUCK_S = 3.0


def _reduces_until_a_peer_is_gone(rank: Rank, board: str, seed: int) -> tuple[int, str]:
    """Run one all-reduce after another. Return how many succeeded here, and how the last one
    failed.

    The victim records what it has entered.
    """
    chance = random.Random(seed)
    tensor, at_s = torch.zeros(chance.choice((1, 4_096, 262_144))), chance.uniform(0.0, 0.02)
    store = groups.connect("127.0.0.1", rank.port, 20.0)
    groups.build(
        store=store,
        generation=0,
        rank=rank.rank,
        world_size=RANKS,
        backend="gloo",
        timeout_s=60.0,
        watch=None,
    )
    store.set(f"built/{rank.rank}", b"")
    with open(board, "r+b") as file:
        entered = memoryview(mmap.mmap(file.fileno(), 8)).cast("q")
    if rank.rank == VICTIM:
        # a rank that still connects would fail to build its group, which is another rule
        store.wait([f"built/{one}" for one in range(RANKS)])
        threading.Thread(
            target=_kill_itself, args=(time.perf_counter() + at_s,), daemon=True
        ).start()
    done = 0
    while True:
        if rank.rank == VICTIM:
            entered[0] = done + 1
        try:
            work = dist.all_reduce(tensor, async_op=True)
            assert work is not None
            work.wait(timedelta(seconds=STUCK_S))
        except RuntimeError as error:
            return done, "stuck" if "timed out" in str(error).lower() else "raised"
        done += 1


def _kill_itself(at_s: float) -> None:
    while time.perf_counter() < at_s:
        pass
    os.kill(os.getpid(), signal.SIGKILL)


def _fates(folder: Path, trials: int) -> Counter[str]:
    """Return how the last all-reduce that the victim had entered ended on the two survivors."""
    fates: Counter[str] = Counter()
    board = folder / "entered"
    for seed in range(trials):
        board.write_bytes(bytes(8))
        said = run_ranks(RANKS, _reduces_until_a_peer_is_gone, str(board), seed, may_die=(VICTIM,))
        entered = int.from_bytes(board.read_bytes(), "little")
        done = [said[rank][0] for rank in range(RANKS) if rank != VICTIM]
        assert max(done) <= entered, (
            f"seed {seed}: ended well on {done}, and the victim had entered {entered}"
        )
        assert max(done) - min(done) <= 1, (
            f"seed {seed}: {done}: whoever enters the next one waits for all"
        )
        fates[f"ok on {sum(one == entered for one in done)} of 2"] += 1
        fates.update(said[rank][1] for rank in range(RANKS) if rank != VICTIM)
    return fates


def test_a_collective_ends_well_nowhere_before_all_have_entered(tmp_path: Path) -> None:
    fates = _fates(tmp_path, 3)
    assert fates["raised"] + fates["stuck"] == 6


@pytest.mark.drill
@pytest.mark.timeout(1800)
def test_after_all_have_entered_it_ends_well_on_any_of_the_survivors(tmp_path: Path) -> None:
    """Method: a thousand kills at random moments."""
    fates = _fates(tmp_path, 1_000)
    print(dict(fates))
    assert {"ok on 0 of 2", "ok on 1 of 2", "ok on 2 of 2"} <= set(fates), fates
