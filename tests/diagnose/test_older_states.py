"""What was over before the job failed: older attempts, kills of older containers, old counts."""

from __future__ import annotations

import os
from pathlib import Path

from tests.diagnose._written import verdict_of

DAY_S = 86_400.0
ENDED_S = 1_772_400_000.0  # 2026-03-01 21:20 UTC
RAISED = (
    "[rank0]: Traceback (most recent call last):\n"
    '[rank0]:   File "/w/train.py", line 9, in save\n'
    "[rank0]:     torch.save(model, path)\n"
    "[rank0]: OSError: [Errno 28] No space left on device\n"
)


def _failed(minute: int, code: int, pid: int) -> str:
    return (
        f"E0301 03:{minute:02}:11.114000 900 torch/distributed/elastic/multiprocessing/api.py:869]"
        f" failed (exitcode: {code}) local_rank: 0 (pid: {pid}) of binary: /usr/bin/python3\n"
    )


def test_what_a_kernel_killed_of_an_earlier_attempt_ended_no_later_one(tmp_path: Path) -> None:
    """Torchrun says that it starts again; the last attempt left no table with pids."""
    again = (
        "I0301 03:00:11.300000 900 torch/distributed/elastic/agent/server/api.py:908] [default]"
        " Worker group FAILED. 1/1 attempts left; will restart worker group\n"
    )
    kernel = (
        "[Sun Mar  1 03:00:10 2026] python3 invoked oom-killer: gfp_mask=0xcc0\n"
        "[Sun Mar  1 03:00:10 2026] Out of memory: Killed process 1001 (python3) total-vm:1kB\n"
    )
    files = {
        "torchrun.log": _failed(0, -9, 1001) + again + _failed(22, 1, 1020),
        "logs/x/attempt_0/0/stderr.log": "",
        "logs/x/attempt_1/0/stderr.log": RAISED,
        "dmesg-of-n1.txt": kernel,
    }
    got = verdict_of(tmp_path / "again", files)
    assert (got.failure_class.value, [one.rank for one in got.ranks]) == ("storage", [0])
    first = {"torchrun.log": _failed(0, -9, 1001), "dmesg-of-n1.txt": kernel}
    assert verdict_of(tmp_path / "first", first).failure_class.value == "host_memory"


def test_a_lost_gpu_days_before_a_log_without_times_is_no_cause(tmp_path: Path) -> None:
    """The file's time tells when the log ended. A line of that hour counts."""
    log = "".join(f"step {step} loss 1.2\n" for step in range(40))
    log += RAISED.replace("OSError: [Errno 28] No space left on device", "KeyError: 'labels'")
    xid = "[{} 2026] NVRM: Xid (PCI:0000:3b:00): 79, pid=47, name=python3, GPU has fallen off\n"
    for when, named in (("Thu Feb 26 04:00:00", "user_code"), ("Sun Mar  1 21:19:00", "gpu")):
        folder = tmp_path / named
        verdict_of(folder, {"train.log": log, "dmesg-n3.txt": xid.format(when)})
        os.utime(folder / "train.log", (ENDED_S, ENDED_S))
        os.utime(folder / "dmesg-n3.txt", (ENDED_S + 4_000.0, ENDED_S + 4_000.0))
        assert verdict_of(folder, {}).failure_class.value == named


def test_a_container_that_was_killed_days_before_the_last_step_runs_on(tmp_path: Path) -> None:
    """Kubectl describe tells it until the pod is gone."""
    describe = (
        "Name:             w-0\nNode:             n1/10.0.0.1\nContainers:\n  t:\n"
        "    State:          Running\n      Started:      Mon, 02 Mar 2026 10:00:00 +0000\n"
        "    Last State:     Terminated\n      Reason:       OOMKilled\n      Exit Code:    137\n"
        "      Finished:     Mon, 02 Mar 2026 09:59:00 +0000\n    Restart Count:  1\n"
    )
    steps = "".join(f"2026-03-{{day}} 10:{at:02}:00 step {at} loss 1.1\n" for at in range(1, 59))
    files = {"describe.txt": describe, "w-0.log": steps.format(day="05")}
    assert verdict_of(tmp_path / "on", files).failure_class.value == "unknown"
    files["w-0.log"] = steps.format(day="02").replace(" 10:", " 09:")
    assert verdict_of(tmp_path / "killed", files).failure_class.value == "host_memory"


def test_counts_since_a_gpu_was_made_are_no_failure_of_today(tmp_path: Path) -> None:
    smi = (
        "GPU 00000000:07:00.0\n    ECC Errors\n        Volatile\n"
        "            DRAM Uncorrectable                : {volatile}\n        Aggregate\n"
        "            DRAM Correctable                  : 12\n"
        "            DRAM Uncorrectable                : 2\n"
    )
    log = 'Traceback (most recent call last):\n  File "/x/t.py", line 1, in <module>\n'
    log += "    import flash_attn\nImportError: flash_attn_2_cuda.so: undefined symbol: _ZN3c10\n"
    for volatile, named in ((0, "dependency"), (2, "hbm")):
        files = {"nvidia-smi-q.txt": smi.format(volatile=volatile), "e.log": log}
        got = verdict_of(tmp_path / named, files)
        shares = {got.failure_class.value: got.confidence} | {
            one.value: share for one, share in got.others
        }
        assert ("hbm" in shares) == (named == "hbm")


def test_a_fault_of_another_program_on_a_gpu_is_none_of_the_job(tmp_path: Path) -> None:
    """An Xid 31 ends the program that it names; a lost GPU is lost for all."""
    log = "".join(f"2026-03-01 04:{at:02}:00 step {at} loss 1.1\n" for at in range(1, 59))
    said = "[Sun Mar  1 04:40:11 2026] NVRM: Xid (PCI:0000:1b:00): {}, pid=551, name={}, Ch 8\n"
    for xid, name, named in (
        (31, "jupyter-lab", "unknown"),
        (31, "python3", "software_bug"),
        (79, "jupyter-lab", "gpu"),
    ):
        files = {"n2-dmesg.txt": said.format(xid, name), "train.log": log}
        got = verdict_of(tmp_path / f"{xid}-{name}", files)
        assert got.failure_class.value == named


def test_an_address_that_torch_cannot_use_is_no_lost_peer(tmp_path: Path) -> None:
    """Hosts without IPv6 say so at each start. The other rank's log says nothing, and is well."""
    said = (
        "[W socket.cpp:464] [c10d] The client socket cannot be initialized to connect to"
        " [localhost]:29500 (errno: 97 - Address family not supported by protocol).\n"
    )
    steps = "".join(f"step {at} loss 1.1\n" for at in range(40))
    got = verdict_of(tmp_path, {"rank_0.log": steps, "rank_1.log": said + steps})
    assert (got.failure_class.value, got.ranks, got.mechanism) == ("unknown", (), None)
