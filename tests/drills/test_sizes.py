"""`outlast run --resume` with another number of ranks: the state is divided again, bit for bit."""

from __future__ import annotations

import contextlib
import os
import socket
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from outlast.runtime.worker.data.sampler import StepSampler
from tests.drills._pids import alive, below, until
from tests.drills._run import Drill, Outcome, drilled
from tests.drills.test_sessions import folder_of

pytestmark = [pytest.mark.drill, pytest.mark.timeout(300)]
EACH = 4  # steps of a session, unless it says otherwise


def sizes(folder: Path, steps: int, *more: str, workers: int, **options: Any) -> Outcome:
    flags = ("--checkpoint-every", EACH, *options.pop("flags", ()))
    return drilled(
        folder, "sizes.py", "--steps", steps, *more, workers=workers, flags=flags, **options
    )


def said(outcome: Outcome, word: str) -> list[list[str]]:
    """Return the words after `word` on each line that begins with it: rank, step, and what
    follows.
    """
    lines = (line.split() for line in outcome.stdout.splitlines())
    return [one[1:] for one in lines if one[:1] == [word]]


def goes_on_with(folder: Path, counts: list[int], *more: str) -> list[Outcome]:
    """Train EACH steps on each of these numbers of ranks, one after another.

    Each session has to begin with exactly the bits with which the previous one ended, on all of its
    ranks, and each global batch has to be given once: no sample is left out, and none comes twice.
    """
    outcomes: list[Outcome] = []
    held = ""
    batches = StepSampler(96, batch_size=12)
    for number, workers in enumerate(counts):
        flags = ("--resume",) if number else ()
        steps = EACH * (number + 1)
        one = sizes(folder, steps, *more, workers=workers, flags=flags)
        assert one.code == 0, str(one)
        begin, end = said(one, "begin"), said(one, "end")
        assert [int(step) for _, step, _ in begin] == [steps - EACH] * workers, str(one)
        assert not number or {digest for _, _, digest in begin} == {held}, str(one)
        assert len({digest for _, _, digest in end}) == 1, str(one)
        held = end[0][2]
        for step in range(steps - EACH + 1, steps + 1):
            given = {
                int(rank): found for rank, at, *found in said(one, "samples") if int(at) == step
            }
            together = [int(sample) for rank in sorted(given) for sample in given[rank]]
            assert together == batches.global_indices(step - 1), (step, str(one))
        outcomes.append(one)
    return outcomes


def account_sums_up(outcome: Outcome, counts: list[int]) -> None:
    """Check that the causes sum to the ranks of each session times its seconds."""
    report = outcome.report
    assert [one["world_size"] for one in report["sessions"]] == counts, report["sessions"]
    held_s = sum(one["world_size"] * (one["to_s"] - one["from_s"]) for one in report["sessions"])
    spent_s = sum(value or 0.0 for value in report["rank_seconds"].values())
    assert abs(spent_s - held_s) < 1e-6, (spent_s, held_s)
    assert report["balance"]["sums"], report["balance"]
    assert report["world_size"] == counts[-1]


def test_sharded_state_is_divided_among_3_2_1_and_4_ranks(tmp_path: Path) -> None:
    """FSDP2: most of 13, 5, 3 and 2 rows are cut unequally, and some ranks have none."""
    counts = [4, 3, 2, 1, 4]
    outcomes = goes_on_with(tmp_path, counts)
    assert "the state of 4 ranks is divided among 3" in outcomes[1].stderr, str(outcomes[1])
    account_sums_up(outcomes[-1], counts)


def test_replicated_state_goes_on_with_more_ranks_and_with_fewer(tmp_path: Path) -> None:
    """DDP: all ranks draw the same numbers, so a new one draws what rank 0 draws."""
    counts = [2, 3, 2]
    outcomes = goes_on_with(tmp_path, counts, "--way", "ddp")
    account_sums_up(outcomes[-1], counts)
    drawn = {step: number for _, step, number in said(outcomes[1], "drew")}
    assert all(number == drawn[step] for _, step, number in said(outcomes[1], "drew"))
    new = "of fewer ranks: rank 0 gives rank 2 buffer model.seen, random state"
    assert new in outcomes[1].stderr, str(outcomes[1])


def test_a_new_rank_draws_numbers_of_its_own_where_ranks_differ(tmp_path: Path) -> None:
    """The script seeds each rank differently, so no rank may draw what another rank draws."""
    outcomes = goes_on_with(tmp_path, [2, 3], "--way", "ddp", "--by-rank")
    for step in range(EACH + 1, 2 * EACH + 1):
        drawn = [number for _, at, number in said(outcomes[1], "drew") if int(at) == step]
        assert len(set(drawn)) == 3, (step, drawn)


def test_a_batch_that_grows_with_the_ranks_gives_no_sample_twice(tmp_path: Path) -> None:
    """3 ranks are given 4 batches of 12 samples, then 2 ranks 4 batches of 8. No sample occurs
    twice.
    """
    more = ("--way", "ddp", "--each", "4")
    outcomes = [sizes(tmp_path, EACH, *more, workers=3)]
    outcomes.append(sizes(tmp_path, 2 * EACH, *more, workers=2, flags=("--resume",)))
    assert [one.code for one in outcomes] == [0, 0], str(outcomes[-1])
    given = [
        one for outcome in outcomes for _, _, *some in said(outcome, "samples") for one in some
    ]
    assert len(given) == len(set(given)) == 48 + 32, given


def test_two_replicas_of_shards_become_one_and_then_two_again(tmp_path: Path) -> None:
    """HSDP: a mesh of 2 x 2, then of 1 x 2, then of 2 x 2."""
    goes_on_with(tmp_path, [4, 2, 4], "--way", "hsdp")


def is_taken(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return True
    return False


def on_nodes(folder: Path, count: int, steps: int, *flags: str) -> Outcome:
    """Train on this many nodes, which are launchers on this machine, with one rank on each."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with contextlib.ExitStack() as stack:
        drills: list[Drill] = []
        for number in range(count):
            scratch = folder if number == 0 else folder / f"node-{count}-{number}"
            scratch.mkdir(exist_ok=True)
            where = (
                "--nnodes",
                count,
                "--rdzv-endpoint",
                f"127.0.0.1:{port}",
                "--node-name",
                f"n{number}",
                "--checkpoint-every",
                EACH,
            )
            more = flags if number == 0 else ()
            drills.append(
                stack.enter_context(
                    Drill(scratch, "sizes.py", "--steps", steps, workers=1, flags=(*where, *more))
                )
            )
            until("the first node leads", lambda: is_taken(port), within_s=60.0)
        outcomes = [one.finish() for one in drills]
    assert [one.code for one in outcomes] == [0] * count, "\n".join(map(str, outcomes))
    digests = {line for one in outcomes for _, _, line in said(one, "end")}
    assert len(digests) == 1, "\n".join(map(str, outcomes))
    return outcomes[0]


def test_a_run_goes_on_with_one_node_less_and_then_with_one_node(tmp_path: Path) -> None:
    """Three nodes with one rank each, then two of them, then one node with three ranks."""
    outcomes = [on_nodes(tmp_path, 3, EACH), on_nodes(tmp_path, 2, 2 * EACH, "--resume")]
    outcomes.append(sizes(tmp_path, 3 * EACH, workers=3, flags=("--resume",)))
    for before, after in pairwise(outcomes):
        assert said(after, "begin")[0][2] == said(before, "end")[0][2], str(after)
    assert "the state of 3 ranks is divided among 2" in outcomes[1].stderr, str(outcomes[1])
    account_sums_up(outcomes[-1], [3, 2, 3])


def test_models_that_differ_by_rank_are_not_divided(tmp_path: Path) -> None:
    """The exit code is 2, the error names the parameter, and nothing in the folder changes."""
    assert sizes(tmp_path, EACH, "--own", workers=2).code == 0
    before = folder_of(tmp_path / "run")
    refused = sizes(tmp_path, 2 * EACH, "--own", workers=1, flags=("--resume",))
    assert refused.code == 2, str(refused)
    assert "each rank has values of its own for model." in refused.stderr, str(refused)
    assert "resume with 2 ranks" in refused.stderr, str(refused)
    assert folder_of(tmp_path / "run") == before
    again = sizes(tmp_path, 2 * EACH, "--own", workers=2, flags=("--resume",))
    assert again.code == 0, str(again)


@pytest.mark.parametrize("way", ["ddp", "fsdp"])
def test_all_ranks_lost_right_after_the_change_restart_with_the_same_bits(
    tmp_path: Path, way: str
) -> None:
    """Each of the three ranks is killed as soon as it has joined. Two had written the
    checkpoint.
    """
    before = sizes(tmp_path, EACH, "--way", way, workers=2)
    marks = [{"mark": "joined", "rank": rank, "do": "SIGKILL"} for rank in range(3)]
    after = sizes(tmp_path, 2 * EACH, "--way", way, workers=3, flags=("--resume",), marks=marks)
    assert after.code == 0, str(after)
    assert len(after.interruptions) >= 1, str(after)
    held = {digest for _, _, digest in said(before, "end")}
    assert {digest for _, _, digest in said(after, "begin")} == held, str(after)
    assert len({digest for _, _, digest in said(after, "end")}) == 1, str(after)
    account_sums_up(after, [2, 3])


def test_images_in_shared_memory_are_passed_over(tmp_path: Path) -> None:
    """The launcher is killed, and a run with one rank less goes on from the checkpoint. Then a rank
    of the new session is killed: none of the old images may be taken for a newer state.
    """
    flags = ("--checkpoint-every", EACH)
    with Drill(tmp_path, "fsdp.py", "--steps", 400, "--step-s", 0.05, flags=flags) as drill:
        drill.until(lambda: drill.step >= EACH + 3, "a step behind the checkpoint")
        pids = below(drill.process.pid)
        drill.process.kill()
        drill.process.wait(10)
        until("every process of the run has ended", lambda: not alive(pids), within_s=10.0)
        before = len(drill.commits)
    with Drill(
        tmp_path, "fsdp.py", "--steps", 40, "--step-s", 0.05, workers=3, flags=("--resume", *flags)
    ) as drill:
        drill.until(lambda: len(drill.commits) > before + 6, "two steps of the new session")
        os.kill(next(pid for rank, _, pid in reversed(drill.commits) if rank == 1), 9)
        outcome = drill.finish()
    assert outcome.code == 0, str(outcome)
    assert "the state in shared memory is of 4 ranks, and is not used" in outcome.stderr
    assert "the state of 4 ranks is divided among 3" in outcome.stderr, str(outcome)
    assert len(outcome.interruptions) == 1, str(outcome)
    assert len(set(outcome.digests.values())) == 1, str(outcome)
    account_sums_up(outcome, [4, 3])
