"""Folders as users have them: several attempts, other people's GPUs, texts that a log shows."""

from __future__ import annotations

from pathlib import Path

import pytest

from outlast.model.verdict import Verdict
from tests.diagnose._written import verdict_of


def steps_at(first: int, last: int, hour: str = "2026-05-11 03") -> str:
    return "".join(
        f"{hour}:{step // 60:02d}:{step % 60:02d},000 INFO step={step} loss=2.{step}\n"
        for step in range(first, last)
    )


def raised(rank: int, error: str) -> str:
    label = f"[rank{rank}]: "
    return (
        f"{label}Traceback (most recent call last):\n"
        f'{label}  File "/app/train.py", line 61, in main\n'
        f"{label}    loss = step(batch)\n"
        f"{label}{error}\n"
    )


def ranks_of(verdict: Verdict) -> list[int]:
    return [one.rank for one in verdict.ranks]


ECC = "RuntimeError: CUDA error: uncorrectable ECC error encountered"
WAITED = "".join(
    f"[rank{rank}]: RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/unbound_buffer.cc"
    ":81] Timed out waiting 1800000ms for recv operation to complete\n"
    for rank in (0, 1, 3)
)
BARE_KILL = "run.sh: line 4: 4711 Killed                  python train.py\n"


# --- nothing is known -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "asked"),
    [
        (WAITED, "outlast diagnose --collect OUT"),
        (BARE_KILL, "dmesg -T"),
        ("[rank1]: RuntimeError: CUDA error: unspecified launch failure\n", "nvidia-smi -q"),
    ],
)
def test_where_nothing_is_known_evidence_is_asked_for(
    tmp_path: Path, text: str, asked: str
) -> None:
    """A restart was advised before, though nothing told that it would end otherwise."""
    got = verdict_of(tmp_path, {"train.log": steps_at(0, 30) + text})
    assert got.failure_class.value == "unknown"
    assert asked in got.action
    assert "from the last checkpoint" not in got.action


# --- an earlier submission, and another job of the host ----------------------


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("slurm-1001.out", "slurm-1002.out"),
        ("train.o4711", "train.o4712"),
        ("logs/pretrain-81231.log", "logs/pretrain-81240.log"),
        ("attempt1.log", "attempt2.log"),
        ("train.log.1", "train.log"),
    ],
)
def test_of_outputs_of_two_submissions_the_newer_one_is_diagnosed(
    tmp_path: Path, old: str, new: str
) -> None:
    """Method: a GPU broke yesterday, and today rank 0 raises."""
    files = {
        old: steps_at(0, 90, "2026-05-10 01") + raised(2, ECC),
        new: steps_at(90, 180) + raised(0, "KeyError: 'eval_loss'"),
    }
    got = verdict_of(tmp_path, files)
    assert (got.failure_class.value, ranks_of(got)) == ("user_code", [0])
    assert "earlier submissions" in got.reason


def test_of_two_submissions_the_one_that_failed_is_diagnosed(tmp_path: Path) -> None:
    """The newer one tells of no failure, so the folder is asked about the older one."""
    files = {
        "slurm-1001.out": steps_at(0, 90, "2026-05-10 01") + raised(2, ECC),
        "slurm-1002.out": steps_at(90, 180),
    }
    got = verdict_of(tmp_path, files)
    assert (got.failure_class.value, ranks_of(got)) == ("hbm", [2])


@pytest.mark.parametrize("names", ["rank_{}.err", "node{}.err", "out.log.{}", "run_{}.log"])
def test_files_of_ranks_that_fail_at_different_times_are_no_submissions(
    tmp_path: Path, names: str
) -> None:
    """Rank 1 raises, and the others time out half an hour later."""
    lost = "torch.distributed.DistBackendError: NCCL error: remote process exited"
    files = {
        names.format(1): "2026-05-11 03:00:00 failed\n" + raised(1, "KeyError: 'x'"),
        names.format(2): "2026-05-11 03:30:00 failed\n" + raised(2, lost),
    }
    got = verdict_of(tmp_path, files)
    assert (got.failure_class.value, ranks_of(got)) == ("user_code", [1])


@pytest.mark.parametrize(("minute", "named"), [(10, "user_code"), (59, "gpu")])
def test_a_gpu_lost_before_the_job_by_another_process_is_not_its_own(
    tmp_path: Path, minute: int, named: str
) -> None:
    """The launcher names the job's processes. At 02:59 two clocks may differ by so much."""
    table = (
        "E0511 03:01:31.100000 4001 torch/distributed/elastic/multiprocessing/api.py:869] failed"
        " (exitcode: 1) local_rank: 1 (pid: 9302) of binary: /usr/bin/python\n"
        "Root Cause (first observed failure):\n[0]:\n  time      : 2026-05-11_03:01:31\n"
        "  host      : n3\n  rank      : 1 (local_rank: 1)\n  exitcode  : 1 (pid: 9302)\n"
    )
    kernel = (
        f"[Mon May 11 02:{minute}:59 2026] NVRM: Xid (PCI:0000:5d:00): 79, pid=110, name=vllm,"
        " GPU has fallen off the bus.\n"
    )
    log = steps_at(0, 90) + raised(1, "KeyError: 'attention_mask'") + table
    got = verdict_of(tmp_path, {"n3-dmesg.txt": kernel, "run.log": log})
    assert got.failure_class.value == named


# --- what a log shows, and what a stack tells ----------------------

SAMPLE = "sample[1]: 'Xid (PCI:0000:65:00): 79, GPU has fallen off the bus'\n"


def test_a_text_that_a_log_shows_is_no_lost_gpu(tmp_path: Path) -> None:
    shown = verdict_of(tmp_path / "on", {"train.log": steps_at(0, 60) + SAMPLE + steps_at(60, 120)})
    assert (shown.failure_class.value, shown.devices) == ("unknown", ())
    ended = verdict_of(tmp_path / "off", {"train.log": steps_at(0, 60) + SAMPLE})
    assert ended.failure_class.value == "gpu"


def test_a_monitor_that_goes_on_has_not_taken_its_word_back(tmp_path: Path) -> None:
    checks = "".join(f"2026-05-11 03:00:{second} check {second} ok\n" for second in range(10, 50))
    lost = "2026-05-11 03:00:50 GPU 3 is lost: GPU is lost\n"
    got = verdict_of(tmp_path, {"monitor.log": checks + lost + checks.replace("03:00", "03:01")})
    assert (got.failure_class.value, got.devices) == ("gpu", ("GPU 3",))


def waits(rank: int) -> str:
    said = (
        "WorkNCCL(SeqNum=912, OpType=BARRIER, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for"
        " 600012 milliseconds before timing out."
    )
    status = "failure detected by watchdog at work sequence id: 912 PG status: last enqueued work"
    head = f"[rank{rank}]:[E511 03:16:44.443001113 ProcessGroupNCCL.cpp:"
    return (
        f"{head}632] [Rank {rank}] Watchdog caught collective operation timeout: {said}\n"
        f"{head}2268] [PG ID 0 PG GUID 0(default_pg) Rank {rank}]  {status}: 912, last completed"
        " work: 911\n"
    )


def test_the_stack_of_the_rank_that_the_others_wait_for_tells_why(tmp_path: Path) -> None:
    """All others time out in a barrier, and rank 0 writes its checkpoint."""
    stack = (
        "Process 900: python -u train.py\nPython v3.11.8 (/usr/bin/python3.11)\n\n"
        'Thread 900 (active): "MainThread"\n    write (torch/serialization.py:644)\n'
        "    _save (torch/serialization.py:1181)\n    save (torch/serialization.py:966)\n"
        "    save_checkpoint (train.py:150)\n    main (train.py:251)\n"
    )
    log = steps_at(0, 60) + "".join(map(waits, range(1, 8)))
    got = verdict_of(tmp_path, {"run.log": log, "pyspy_rank_0.txt": stack})
    assert (got.failure_class.value, ranks_of(got)) == ("storage", [0])
    without = verdict_of(tmp_path / "without", {"run.log": log})
    assert (without.failure_class.value, ranks_of(without)) == ("user_code", [0])
