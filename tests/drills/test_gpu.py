"""Training on GPUs under fault (`make test-gpu`): several ranks share one GPU, or one rank has its
own.

Ranks that share a GPU communicate by gloo, because NCCL refuses that. A single rank uses NCCL. So
one GPU is enough for all tests here. They do not show what NCCL does between GPUs.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.drills._pids import alive, below, until
from tests.drills._run import OUTLAST, CalmRun, Drill, Fault, Outcome, drilled

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(240)]
SCRIPT, RANKS = "on_gpu.py", 3
PLACES = ("forward", "backward", "before_optimizer", "tail")


def killed_at_each_place(ranks: int) -> list[Fault]:
    """Return one fault every four steps, each at another place and rank."""
    return [
        {"at": place, "rank": (number + 1) % ranks, "step": 3 + 4 * number, "do": "SIGKILL"}
        for number, place in enumerate(PLACES)
    ]


def nothing_shows(
    outcome: Outcome, expected: Outcome, *, faults: int, lossless: bool = True
) -> None:
    assert outcome.code == 0, outcome
    assert outcome.digests == expected.digests, outcome
    assert len(outcome.interruptions) == faults, outcome
    outcome.ledger_is_sound(lossless=lossless)


@pytest.mark.parametrize("way", ["ddp", "fsdp"])
def test_ranks_that_share_a_gpu_keep_their_bits(
    tmp_path: Path, calm_run: CalmRun, way: str
) -> None:
    expected = calm_run(SCRIPT, "--way", way, workers=RANKS)
    strikes = killed_at_each_place(RANKS)
    outcome = drilled(
        tmp_path,
        SCRIPT,
        "--way",
        way,
        workers=RANKS,
        flags=("--spares", 1),
        strikes=strikes,
        within_s=180,
    )
    nothing_shows(outcome, expected, faults=len(strikes))


@pytest.mark.parametrize("way", ["ddp", "fsdp"])
def test_a_rank_with_a_gpu_of_its_own_keeps_its_bits(
    tmp_path: Path, calm_run: CalmRun, way: str
) -> None:
    """Its collectives are NCCL's. Under DDP no other rank holds its state, so it begins again."""
    expected = calm_run(SCRIPT, "--way", way, workers=1)
    strikes = killed_at_each_place(1)
    outcome = drilled(tmp_path, SCRIPT, "--way", way, workers=1, strikes=strikes, within_s=180)
    nothing_shows(outcome, expected, faults=len(strikes), lossless=way == "fsdp")


@pytest.mark.parametrize("ranks", [1, RANKS])
def test_all_ranks_lost_go_on_from_copies_of_their_gpus(
    tmp_path: Path, calm_run: CalmRun, ranks: int
) -> None:
    """No other process holds the state. A single rank uses NCCL."""
    expected = calm_run(SCRIPT, "--steps", 60, workers=ranks)
    arguments, flags = ("--steps", 60, "--pause", 0.05), ("--keep", "vault:step")
    with Drill(tmp_path, SCRIPT, *arguments, workers=ranks, flags=flags) as drill:
        drill.until(lambda: drill.step >= 18, "step 18")
        for rank in range(ranks):
            os.kill(drill.pid_of(rank), signal.SIGKILL)
        outcome = drill.finish()
    nothing_shows(outcome, expected, faults=1, lossless=False)
    (one,) = outcome.interruptions
    assert "from the copy of step" in one["reason"], outcome
    assert one["steps_lost"] <= 1, outcome


@pytest.mark.parametrize("what", ["raise", "oom", "spin", "SIGSTOP"])
def test_a_fault_of_the_gpu_or_of_its_rank_changes_no_bit(
    tmp_path: Path, calm_run: CalmRun, what: str
) -> None:
    """Method: an exception, a request for too much memory, a kernel that never ends, and a stopped
    process.
    """
    expected = calm_run(SCRIPT, workers=RANKS)
    strikes = [{"at": "forward", "rank": 1, "step": 5, "do": what}]
    outcome = drilled(tmp_path, SCRIPT, workers=RANKS, strikes=strikes, within_s=120)
    nothing_shows(outcome, expected, faults=1)
    (one,) = outcome.interruptions
    assert one["ranks"] == [1], outcome


def test_a_rank_whose_context_is_broken_is_replaced(tmp_path: Path, calm_run: CalmRun) -> None:
    """After an assertion in a kernel, nothing works on the GPU in that process any more. So the
    step cannot be repeated in it, and there is at most one more interruption.
    """
    expected = calm_run(SCRIPT, workers=RANKS)
    strikes = [{"at": "forward", "rank": 1, "step": 5, "do": "assert"}]
    outcome = drilled(tmp_path, SCRIPT, workers=RANKS, strikes=strikes, within_s=120)
    nothing_shows(outcome, expected, faults=len(outcome.interruptions))
    assert len(outcome.interruptions) <= 2, outcome
    assert outcome.interruptions[-1]["rung"] == "respawn", outcome
    assert {rank for one in outcome.interruptions for rank in one["ranks"]} == {1}, outcome


def opened(pid: int) -> int:
    """Return how often this process has GPUs open. Counting GPUs opens them a few times, and a
    context many more times: 7 and 23 on an H200 with driver 580.
    """
    count = 0
    with contextlib.suppress(OSError):
        for fd in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                name = os.readlink(f"/proc/{pid}/fd/{fd}")
                count += name.startswith("/dev/nvidia") and name[-1].isdigit()
    return count


def test_only_ranks_have_a_context_on_the_gpu(tmp_path: Path) -> None:
    """A hot spare, the zygote that ranks are forked from, and the launcher have none."""
    flags = ("--spares", 1)
    arguments = ("--steps", 100_000, "--pause", 0.02)
    with Drill(tmp_path, SCRIPT, *arguments, workers=RANKS, flags=flags) as drill:
        drill.until(drill.parked, "a hot spare")
        drill.until(lambda: drill.oldest_of(RANKS) >= 3, "three steps")
        ranks = {drill.pid_of(rank) for rank in range(RANKS)}
        (spare,), zygote = drill.parked(), drill.zygote()
        everybody = {drill.process.pid, *below(drill.process.pid)}
        assert {spare, zygote} < everybody - ranks
        times = {pid: opened(pid) for pid in everybody}
        least = min(times[pid] for pid in ranks)
        assert least > 0
        assert times[zygote] == 0
        assert all(2 * times[pid] < least for pid in everybody - ranks), (ranks, spare, times)


@pytest.mark.parametrize("place", PLACES)
def test_work_that_fails_on_the_gpu_later_is_not_committed(
    tmp_path: Path, calm_run: CalmRun, place: str
) -> None:
    """Nothing has waited for the kernel that fails, so the vote of its step has to wait."""
    arguments = ("--way", "fsdp")
    expected = calm_run(SCRIPT, *arguments, workers=1)
    strikes = [{"at": place, "rank": 0, "step": 5, "do": "assert_later"}]
    outcome = drilled(tmp_path, SCRIPT, *arguments, workers=1, strikes=strikes, within_s=120)
    nothing_shows(outcome, expected, faults=len(outcome.interruptions))


def test_a_checkpoint_of_gpus_is_resumed(tmp_path: Path, calm_run: CalmRun) -> None:
    expected = calm_run(SCRIPT, "--steps", 40, workers=RANKS)
    flags = ("--checkpoint-every", 5)
    arguments = ("--steps", 40, "--pause", 0.05)
    with Drill(tmp_path, SCRIPT, *arguments, workers=RANKS, flags=flags) as drill:
        drill.until(lambda: drill.step >= 12, "step 12")
        pids = below(drill.process.pid)
        drill.process.send_signal(signal.SIGKILL)
        drill.process.wait(10)
        until("every process of the run has ended", lambda: not alive(pids), within_s=20.0)
    outcome = drilled(
        tmp_path, SCRIPT, "--steps", 40, workers=RANKS, flags=(*flags, "--resume"), within_s=120
    )
    assert outcome.code == 0, outcome
    assert outcome.digests == expected.digests, outcome


@pytest.mark.timeout(400)
def test_a_compiled_model_on_the_gpu_keeps_its_bits(tmp_path: Path, calm_run: CalmRun) -> None:
    expected = calm_run(SCRIPT, "--compile", workers=2)
    strikes = [{"at": "tail", "rank": 1, "step": 6, "do": "SIGKILL"}]
    outcome = drilled(tmp_path, SCRIPT, "--compile", workers=2, strikes=strikes, within_s=200)
    nothing_shows(outcome, expected, faults=1)


def test_collect_asks_the_flight_recorder_of_nccl(tmp_path: Path) -> None:
    arguments = ("--steps", 100_000, "--pause", 0.02)
    pipe = f"{tmp_path}/pipe_"
    env = {"TORCH_NCCL_DEBUG_INFO_PIPE_FILE": pipe, "TORCH_FR_DEBUG_INFO_PIPE_FILE": pipe}
    with Drill(tmp_path, SCRIPT, *arguments, workers=1, env=env) as drill:
        drill.until(lambda: drill.oldest_of(1) >= 3, "three steps")
        out = tmp_path / "evidence"
        command = [OUTLAST, "diagnose", "--collect", out, "--pid", drill.process.pid]
        done = subprocess.run(
            [str(one) for one in command], capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, (done.stdout, done.stderr)
    found = sorted(str(path.relative_to(out)) for path in out.rglob("*") if path.is_file())
    assert "dumps/trace_rank_0" in found, (found, done.stdout, done.stderr)
    said = subprocess.run(
        [OUTLAST, "diagnose", str(out), "--json"], capture_output=True, text=True, timeout=60
    )
    assert json.loads(said.stdout), (said.stdout, said.stderr)
