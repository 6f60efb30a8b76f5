"""Folders with reports of other tools: NCCL's RAS, torchfrtrace, DeepSpeed, nvidia-smi, clouds."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from outlast.model.verdict import Verdict
from outlast.runtime.evidence.reading import diagnose
from tests.diagnose._written import verdict_of

RAS = """\
NCCL version 2.26.2 compiled with CUDA 12.6

Job summary
===========

  Nodes  Processes         GPUs  Processes     GPUs
(total)   per node  per process    (total)  (total)
      4          8            1         32       32

Communicators... (0.00s)
=============

Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors
    #  in group  per comm  per node  per comm  in group
    0         1         4         8        {size}        32   RUNNING  MISMATCH

Errors
======

Warnings
========

#0-0 (fa93daea854b060b) MISMATCH
{said}
"""
BEHIND = """\
  Communicator ranks have different AllGather operation counts
  31 ranks have launched up to operation 6650
  1 rank has launched up to operation 6649
  Rank 5 -- GPU 5 managed by process 448077 on node 172.16.64.210"""
AHEAD = BEHIND.replace("6649", "6651")
ABSENT = """\
  Missing communicator data from 1 rank
  Rank 5 -- GPU 5 managed by process 448077 on node 172.16.64.210"""


def ranks_of(verdict: Verdict) -> list[int]:
    return [one.rank for one in verdict.ranks]


@pytest.mark.parametrize("said", [BEHIND, ABSENT])
def test_the_rank_that_ncclras_shows_behind_is_named(tmp_path: Path, said: str) -> None:
    got = verdict_of(tmp_path, {"ras.txt": RAS.format(size=32, said=said)})
    assert (ranks_of(got), got.nodes) == ([5], ("172.16.64.210",))
    assert str(got.public()["mechanism"]) == "hang"
    assert got.failure_class.value == "unknown"


@pytest.mark.parametrize(("size", "said"), [(32, AHEAD), (8, BEHIND)])
def test_a_rank_ahead_or_of_a_smaller_group_is_not_named(
    tmp_path: Path, size: int, said: str
) -> None:
    """NCCL lists the smaller part, and numbers ranks within the communicator."""
    got = verdict_of(tmp_path, {"ras.txt": RAS.format(size=size, said=said)})
    assert ranks_of(got) == []


def test_the_ranks_that_torchfrtrace_misses_are_named(tmp_path: Path) -> None:
    text = (
        "Not all ranks joining collective, sequence number: 4711\ninternal record id: 4710\n"
        "group info: 0:default_pg\ncollective: nccl:all_reduce\nmissing ranks: {3, 5}\n"
        "input sizes: [[1024]]\nworld size: 8\n"
    )
    got = verdict_of(tmp_path, {"trace.txt": text, "step.log": "iter 1\niter 2\niter 3\n"})
    assert ranks_of(got) == [3, 5]


def _deepspeed(nodes: int, node: int, code: int) -> str:
    head = "[2026-01-20 11:02:09,001] [INFO] [launch.py:"
    command = "['python3', '-u', 'tune.py', '--local_rank={}']"
    lines = [f"{head}152:main] nnodes={nodes}, num_local_procs=4, node_rank={node}"]
    lines += [
        f"{head}256:main] process {8820 + rank} spawned with command: {command.format(rank)}"
        for rank in range(4)
    ]
    lines += ["[2026-01-20 11:06:45,881] [INFO] [launch.py:319:sigkill_handler] Killing 8823"]
    ended = f"{command.format(3)} exits with return code = {code}"
    lines += [f"[2026-01-20 11:06:46,001] [ERROR] [launch.py:325:sigkill_handler] {ended}"]
    return "\n".join(lines) + "\n"


KILLED = (
    "[Tue Jan 20 11:06:40 2026] python invoked oom-killer: gfp_mask=0x140cca, order=0\n"
    "[Tue Jan 20 11:06:41 2026] Out of memory: Killed process {} (python) total-vm:15kB\n"
)


@pytest.mark.parametrize("local", [1, 3])
def test_deepspeeds_processes_tie_a_kill_to_a_rank(tmp_path: Path, local: int) -> None:
    """By the pid: the launcher's last line has the same command, whichever process was killed."""
    files = {"run.log": _deepspeed(2, 1, -9), "dmesg.txt": KILLED.format(8820 + local)}
    got = verdict_of(tmp_path, files)
    assert (got.failure_class.value, ranks_of(got)) == ("host_memory", [4 + local])


def test_a_kill_of_a_process_that_deepspeed_did_not_start_is_another_jobs(tmp_path: Path) -> None:
    files = {"run.log": _deepspeed(1, 0, -11), "dmesg.txt": KILLED.format(4411)}
    got = verdict_of(tmp_path, files)
    assert got.failure_class.value != "host_memory"


@pytest.mark.parametrize("code", [1, -9, -11])
def test_deepspeed_tells_how_a_process_ended_and_not_which(tmp_path: Path, code: int) -> None:
    """It prints the command of the process that it started last, whichever failed."""
    got = verdict_of(tmp_path, {"run.log": _deepspeed(1, 0, code)})
    assert ranks_of(got) == []
    assert "Nothing that was read tells of a failure" not in got.reason


def test_a_gpu_in_a_table_is_named_by_its_address_on_its_node(tmp_path: Path) -> None:
    text = (
        "timestamp, index, pci.bus_id, temperature.gpu, clocks_event_reasons.hw_thermal_slowdown\n"
        "2026/05/02 14:10:03.112, 0, 00000000:1B:00.0, 61, Not Active\n"
        "2026/05/02 14:10:03.112, 6, 00000000:C5:00.0, 93, Active\n"
    )
    got = verdict_of(tmp_path, {"rack2-n5.gpus.csv": text})
    assert (got.nodes, got.devices) == (("rack2-n5",), ("00000000:c5:00.0",))


def test_what_a_finalizer_raised_is_no_failure(tmp_path: Path) -> None:
    """Python prints it and goes on. Method: with a traceback, without, and under a rank's label."""
    text = (
        "Exception ignored in: <function _ConnectionBase.__del__ at 0x7f8>\n"
        "OSError: [Errno 9] Bad file descriptor\n"
        "[rank0]: Exception ignored in: <function Reader.__del__ at 0x7f9>\n"
        "[rank0]: Traceback (most recent call last):\n"
        '[rank0]:   File "/app/reader.py", line 8, in __del__\n'
        "[rank0]:     self.file.close()\n"
        "[rank0]: AttributeError: 'Reader' object has no attribute 'file'\n"
    )
    steps = "".join(f"step {step}/500 loss 1.2\n" for step in range(490, 501))
    got = verdict_of(tmp_path, {"out.log": steps + text})
    assert (got.failure_class.value, got.mechanism, ranks_of(got)) == ("unknown", None, [])
    assert not [one for one in got.evidence if one.role.value == "root"]


def test_a_failure_after_one_that_a_finalizer_raised_counts(tmp_path: Path) -> None:
    text = (
        "Exception ignored in: <function Reader.__del__ at 0x7f9>\nTraceback (most recent call"
        ' last):\n  File "/app/reader.py", line 8, in __del__\n    self.file.close()\n'
        "AttributeError: 'Reader' object has no attribute 'file'\n"
        'Traceback (most recent call last):\n  File "/app/train.py", line 8, in main\n'
        "    batch = rows[at]\nIndexError: list index out of range\n"
    )
    got = verdict_of(tmp_path, {"out.log": text})
    assert got.failure_class.value == "user_code"
    assert "train.py:8" in got.reason


def test_a_launcher_that_is_not_there_names_its_node(tmp_path: Path) -> None:
    text = "".join(f"{node}: Starting elastic_operator\n" for node in range(2))
    text += "2: bash: line 1: torchrun: command not found\n"
    text += "srun: error: w03: task 2: Exited with exit code 127\n"
    late = "torch.distributed.elastic.rendezvous.api.RendezvousTimeoutError"
    text += "".join(f"{node}: {late}\n" for node in range(2))
    got = verdict_of(tmp_path, {"slurm.out": text})
    assert (got.failure_class.value, got.nodes) == ("dependency", ("w03",))
    assert ranks_of(got) == []


def test_a_module_command_that_is_missing_stops_no_job(tmp_path: Path) -> None:
    text = "bash: line 3: module: command not found\n"
    text += "".join(f"step {step} loss 1.2\n" for step in range(90))
    got = verdict_of(tmp_path, {"slurm.out": text})
    assert got.failure_class.value == "unknown"


def test_an_audit_log_of_a_cloud_names_the_machine_that_was_taken(tmp_path: Path) -> None:
    record = {
        "protoPayload": {
            "methodName": "compute.instances.preempted",
            "resourceName": "projects/p/zones/us-east4-b/instances/a3-spot-2",
            "status": {"message": "Instance was preempted."},
        },
        "timestamp": "2026-03-03T04:10:11.22Z",
    }
    (tmp_path / "audit.json").write_text(json.dumps([record], indent=1))
    got = diagnose([str(tmp_path)]).verdict
    assert (got.failure_class.value, got.nodes) == ("host_maintenance", ("a3-spot-2",))


def test_pods_of_a_node_that_is_not_ready_are_not_drained(tmp_path: Path) -> None:
    """The taint manager marks them for deletion after the node was lost."""
    text = (
        "4m11s  Normal   NodeNotReady          node/pool-b-77fa   Node pool-b-77fa status is now:"
        " NodeNotReady\n"
        "3m2s   Normal   TaintManagerEviction  pod/worker-1       Marking for deletion Pod ml/w-1\n"
    )
    got = verdict_of(tmp_path, {"events.txt": text})
    assert got.failure_class.value == "unknown"
    assert got.nodes == ("pool-b-77fa",)
    assert "went away" in got.reason


def test_ranks_at_the_healthy_ends_of_links_are_not_named(tmp_path: Path) -> None:
    """Three hosts lost one peer, which lost all of them. NCCL's lines tell each rank."""
    files = {}
    for host in range(4):
        head = f"gpu-{host}:5100:5300 [0]"
        peers = [3] if host != 3 else [0, 1, 2]
        lines = [f"{head} NCCL INFO comm 0x55aa rank {host} nRanks 4 nNodes 4 busId 1b000"]
        lines += [
            f"{head} transport/net_ib.cc:1698 NCCL WARN NET/IB : Got completion from peer"
            f" 10.4.1.{peer}<41210> with status=12 opcode=0 len=0 vendor err 129 (Send)"
            for peer in peers
        ]
        files[f"nccl.gpu-{host}.log"] = "\n".join(lines) + "\n"
    got = verdict_of(tmp_path, files)
    assert (got.failure_class.value, got.nodes) == ("network", ("gpu-3",))
    assert ranks_of(got) == [3]
