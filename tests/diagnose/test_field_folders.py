"""Folders of other people's clusters: no class from a name, none from what harmed nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from outlast.diagnose.logs.prefixes import node_of_name
from outlast.model.verdict import Verdict
from outlast.runtime.evidence.reading import diagnose
from tests.diagnose._written import verdict_of

STEPS = "".join(f"2026-11-20 03:{step:02d}:00 step {step} loss 2.{step}\n" for step in range(30))
FAILED = """\
[rank2]: Traceback (most recent call last):
[rank2]:   File "/app/train.py", line 61, in main
[rank2]:     loss = model(batch)
[rank2]: RuntimeError: CUDA error: uncorrectable ECC error encountered
"""
AGENT = "I1120 03:40:08.200000 7001 torch/distributed/elastic/agent/server/api.py:879] [default] "
AGAIN = AGENT + "Worker group FAILED. 3/3 attempts left; will restart worker group\n"
KILLED = (
    "E1120 03:40:08.120000 7001 torch/distributed/elastic/multiprocessing/api.py:874] failed"
    " (exitcode: -9) local_rank: 1 (pid: 7012) of binary: /usr/bin/python\n"
)
ENDED_WELL = AGENT + "worker group successfully finished. Waiting 300 seconds for other agents.\n"


def ranks_of(verdict: Verdict) -> list[int]:
    return [one.rank for one in verdict.ranks]


# --- restarted, and finished -------------------------------------------------------------------


@pytest.mark.parametrize("end", [ENDED_WELL, "Training finished.\n"])
def test_a_job_that_was_restarted_and_finished_tells_why_it_failed(
    tmp_path: Path, end: str
) -> None:
    got = verdict_of(tmp_path, {"train.log": STEPS + FAILED + AGAIN + STEPS + end})
    assert (got.failure_class.value, ranks_of(got)) == ("hbm", [2])
    assert "started the job again after that, and it then finished" in got.reason
    assert "restart" not in got.action


def test_a_kill_without_a_word_before_a_good_end_asks_for_no_restart(tmp_path: Path) -> None:
    got = verdict_of(tmp_path, {"train.log": STEPS + KILLED + AGAIN + STEPS + ENDED_WELL})
    assert got.failure_class.value == "unknown"
    assert "it then finished" in got.reason
    assert got.action.startswith("nothing now")


def test_after_a_restart_the_failure_that_ended_the_job_counts(tmp_path: Path) -> None:
    """Method: an ECC error, a restart, and then an exception in the script, which ends it."""
    last = FAILED.replace(
        "RuntimeError: CUDA error: uncorrectable ECC error encountered", "KeyError: 'input_ids'"
    ).replace("rank2", "rank1")
    got = verdict_of(tmp_path, {"train.log": STEPS + FAILED + AGAIN + STEPS + last})
    assert (got.failure_class.value, ranks_of(got)) == ("user_code", [1])
    assert "finished" not in got.reason


@pytest.mark.parametrize(("pid_of_killed", "guess"), [(7012, False), (7022, True)])
def test_what_ended_an_attempt_before_the_last_is_told_by_pids(
    tmp_path: Path, pid_of_killed: int, guess: bool
) -> None:
    """torchrun prints no line about a restart. The table at its end has the last attempt's pids.

    Method: a process is killed, and one of the table, which may be the same, fails afterwards.
    """
    killed = KILLED.replace("7012", str(pid_of_killed))
    left = KILLED.replace("7012", "7022").replace("-9", "1").replace(":08.12", ":38.12")
    table = (
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:\nFailures:\n  <NO_OTHER"
        "_FAILURES>\nRoot Cause (first observed failure):\n[0]:\n  time      : 2026-11-20_03:40:38"
        "\n  host      : n1\n  rank      : 1 (local_rank: 1)\n  exitcode  : 1 (pid: 7022)\n"
        "  error_file: <N/A>\n  traceback : To enable traceback see: https://x.html\n=========\n"
    )
    got = verdict_of(tmp_path, {"torchrun.log": killed + left + table})
    assert got.failure_class.value == "unknown"
    assert ("started the job again after a failure (exit code -9)" in got.reason) is not guess
    assert ("host_memory" in [one.value for one, share in got.others if share]) is guess


# --- names, and lines of healthy machines --------------------------------------------------------


@pytest.mark.parametrize("host", ["gpu13", "gpu-13", "a100-gpu-7", "gpu.cluster"])
def test_a_host_called_after_its_gpus_has_no_broken_gpu(tmp_path: Path, host: str) -> None:
    """Slurm drains a node for many reasons, and Kubernetes calls it unhealthy for as many."""
    log = (
        f"[2026-11-20T03:20:31.401] drain_nodes: node {host} state set to DRAIN\n"
        f"[2026-11-20T03:20:31.403] update_node: node {host} reason set to: Kill task failed\n"
        f"Warning  Unhealthy  node {host} is unhealthy: kubelet stopped\n"
    )
    assert verdict_of(tmp_path, {"slurmctld.log": log}).failure_class.value != "gpu"


@pytest.mark.parametrize(
    "line",
    [
        "update_node: node n13 reason set to: drain, GPU 3 failed its health check",
        "node n13: unhealthy GPU found, draining",
        "error: prolog failed: rc:1 output: healthcheck: nvidia-smi reports 7 GPUs, expected 8",
    ],
)
def test_a_node_drained_for_its_gpu_has_a_broken_gpu(tmp_path: Path, line: str) -> None:
    got = verdict_of(tmp_path, {"slurmd-n13.log": f"[2026-11-20T03:20:31.401] {line}\n"})
    assert (got.failure_class.value, got.nodes) == ("gpu", ("n13",))


def test_shared_memory_that_cannot_be_opened_is_not_always_full(tmp_path: Path) -> None:
    """The number behind the message is errno: 24 says that the process has too many files open."""
    start = "[rank4]: RuntimeError: unable to open shared memory object </torch_1_2> in read-write"
    got = verdict_of(tmp_path, {"a.log": f"{start} mode: Too many open files (24)\n"})
    assert got.failure_class.value != "host_memory"
    assert "ulimit" in got.action
    got = verdict_of(tmp_path, {"a.log": f"{start} mode: No space left on device (28)\n"})
    assert got.failure_class.value == "host_memory"


def test_weak_signs_in_the_kernels_log_of_a_good_end_are_no_failure(tmp_path: Path) -> None:
    kernel = (
        "[   30.0] igb 0000:04:00.1 eno2: igb: eno2 NIC Link is Down\n"
        "[   31.0] python: page allocation failure: order:4, mode:0x40cc0(GFP_KERNEL|__GFP_COMP)\n"
    )
    got = verdict_of(tmp_path, {"dmesg.txt": kernel, "a.log": STEPS + "Training finished.\n"})
    assert got.failure_class.value == "unknown"
    assert "Nothing that was read tells of a failure" in got.reason


def test_a_setting_about_numbers_that_are_none_is_no_such_number(tmp_path: Path) -> None:
    settings = "error_if_nonfinite: true\nskip_nonfinite_grads: 1\n"
    got = verdict_of(tmp_path, {"config.log": settings, "a.log": STEPS})
    assert got.mechanism is None
    assert "no number" not in got.reason


# --- whose log it is -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "node"),
    [
        ("n03-kern.log", "n03"),
        ("slurmd-gpu13.log", "gpu13"),
        ("gpu-21/dmesg.log", "gpu-21"),
        ("ip-10-0-0-7/messages", "ip-10-0-0-7"),
        ("gpu-031.journal.json", "gpu-031"),
        ("messages.1.gz", None),
        ("messages-20261120", None),
        ("incident1/dmesg.txt", None),
        ("job7712/dmesg", None),
        ("attempt_0/3/dmesg", None),
        ("dmesg_boot1.txt", None),
        ("n1/train.log", None),
        ("evidence/interruption-3/nodes/gpu-07/stderr-rank1.log", "gpu-07"),
        ("nodes/gpu-07/notes.txt", None),
    ],
)
def test_the_name_of_a_kernels_log_tells_its_node(name: str, node: str | None) -> None:
    assert node_of_name(name) == node


# --- what a good end prints ----------------------------------------------------------------------

CLOSED = (
    "[rank2]:[W1120 03:20:00.1 TCPStore.cpp:125] [c10d] recvValue failed on SocketImpl(fd=7):"
    " Failed to recv, got 0 bytes. Connection was likely closed.\n"
    "[rank1]:[W1120 03:20:00.1 ProcessGroupNCCL.cpp:1659] [PG ID 0 PG GUID 0 Rank 1] Failed to"
    ' check the "should dump" flag on TCPStore, with error: Broken pipe\n'
)


def test_what_is_printed_when_a_job_closes_down_blames_no_rank(tmp_path: Path) -> None:
    got = verdict_of(tmp_path, {"train.log": STEPS + "Training finished.\n" + CLOSED})
    assert (got.ranks, got.suspects, got.failure_class.value) == ((), (), "unknown")
    assert "Nothing that was read tells of a failure" in got.reason


def test_the_log_of_one_rank_alone_does_not_show_who_went_first(tmp_path: Path) -> None:
    """Rank 1 lost a peer. Ranks 0, 2 and all others may be it: their logs are not there."""
    lost = "[rank1]: ncclRemoteError: A call failed possibly due to a network error or a remote"
    assert verdict_of(tmp_path, {"n1.log": f"{lost} process exiting prematurely.\n"}).ranks == ()


# --- ended by somebody ---------------------------------------------------------------------------

SCANCEL = (
    "slurmstepd: error: *** STEP 55.0 ON n1 CANCELLED AT 2026-11-20T03:30:40 ***\n"
    "slurmstepd: error: *** JOB 55 ON n1 CANCELLED AT 2026-11-20T03:30:40 ***\n"
)


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({"slurm-55.out": STEPS + SCANCEL}, "*** JOB 55"),
        ({"a.out": STEPS, "sacct.txt": "55|ft|CANCELLED by 1001|0:0|n1\n"}, "by 1001"),
        ({"a.out": STEPS, "job.txt": "JobState=CANCELLED Reason=None\n"}, "JobState"),
    ],
)
def test_a_job_that_somebody_cancelled_did_not_fail(
    tmp_path: Path, files: dict[str, str], said: str
) -> None:
    got = verdict_of(tmp_path, files)
    assert (got.failure_class.value, got.ranks) == ("unknown", ())
    assert "Somebody cancelled the job" in got.reason
    assert said in got.reason
    assert "OOM" not in got.next_test


def test_a_step_cancelled_for_a_failed_task_was_not_cancelled_by_hand(
    tmp_path: Path,
) -> None:
    log = STEPS + SCANCEL.splitlines()[0] + "\nsrun: error: n1: task 3: Killed\n"
    assert "Somebody cancelled" not in verdict_of(tmp_path, {"slurm-55.out": log}).reason


def test_ctrl_c_is_said_to_be_ctrl_c(tmp_path: Path) -> None:
    log = STEPS + "Detected KeyboardInterrupt, attempting graceful shutdown ...\n"
    got = verdict_of(tmp_path, {"lightning.log": log})
    assert "by Ctrl-C" in got.reason
    assert "OOM" not in got.next_test


# --- the rank that says nothing ------------------------------------------------------------------


def waited(rank: int, numel: int) -> str:
    head = f"[rank{rank}]:[E1120 03:14:12.1 ProcessGroupNCCL.cpp"
    return (
        f"{head}:629] [Rank {rank}] Watchdog caught collective operation timeout: WorkNCCL("
        f"SeqNum=50, OpType=ALLREDUCE, NumelIn={numel}, NumelOut={numel}, Timeout(ms)=600000) ran"
        " for 600010 milliseconds before timing out.\n"
        f"{head}:2168] [PG ID 0 PG GUID 0(default_pg) Rank {rank}]  failure detected by watchdog at"
        " work sequence id: 50 PG status: last enqueued work: 52, last completed work: 49\n"
    )


def test_why_a_silent_rank_does_not_come_to_the_gradients_is_not_known(tmp_path: Path) -> None:
    """It may be in a loop, in a read, on a GPU that has stopped, or gone."""
    log = "".join(waited(rank, 9_000) for rank in (0, 1, 2, 3, 4, 6, 7))
    got = verdict_of(tmp_path, {"train.log": log})
    assert (got.failure_class.value, ranks_of(got)) == ("unknown", [5])
    assert got.ranks[0].confidence < 0.8


def test_a_silent_rank_that_does_not_come_to_one_number_took_another_path(tmp_path: Path) -> None:
    log = "".join(waited(rank, 1) for rank in (0, 2, 3))
    got = verdict_of(tmp_path, {"train.log": log})
    assert (got.failure_class.value, ranks_of(got)) == ("user_code", [1])
    assert "batches" in got.action


def test_a_rank_whose_program_ended_left_its_peers(tmp_path: Path) -> None:
    left = (
        "[rank1]:[W1120 03:05:00.1 ProcessGroupNCCL.cpp:1496] Warning: WARNING:"
        " destroy_process_group() was not called before program exit\n"
    )
    log = left + "".join(waited(rank, 9_000) for rank in (0, 2, 3))
    got = verdict_of(tmp_path, {"train.log": log})
    assert (got.failure_class.value, ranks_of(got)) == ("user_code", [1])


# --- which rank a process was --------------------------------------------------------------------

ENTRY = """\
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
Root Cause (first observed failure):
[0]:
  time      : 2026-11-20_03:14:09
  host      : n5
  rank      : 9 (local_rank: 1)
  exitcode  : -6 (pid: 8812)
  error_file: <N/A>
  traceback : Signal 6 (SIGABRT) received by PID 8812
============================================================
"""
XID = "Nov 20 03:14:07 {node} kernel: NVRM: Xid (PCI:0000:2a:00): 79, pid={pid}, name=python\n"


@pytest.mark.parametrize(
    ("node", "pid", "ranks"), [("n5", 8812, [9]), ("n5", 8813, []), ("n6", 8812, [])]
)
def test_the_pid_in_a_drivers_line_is_that_of_a_rank_of_its_node(
    tmp_path: Path, node: str, pid: int, ranks: list[int]
) -> None:
    files = {"train.log": ENTRY, "kern.log": XID.format(node=node, pid=pid)}
    got = verdict_of(tmp_path, files)
    assert (got.failure_class.value, ranks_of(got)) == ("gpu", ranks)


RAY = """\
(TorchTrainer pid=2001) - (node_id=ab, ip=10.0.0.4, pid=2113) world_rank=0, local_rank=0
(TorchTrainer pid=2001) - (node_id=cd, ip=10.0.0.5, pid=3113) world_rank=1, local_rank=0
(RayTrainWorker pid=2113, ip=10.0.0.4) step 12 loss 2.5
"""
RAY_RAISED = """\
ray.exceptions.RayTaskError(ValueError): ray::_RayTrainWorker__execute.get_next() (pid=3113, \
ip=10.0.0.5, actor_id=99, repr=<object>)
  File "/data/tune.py", line 61, in train_func
    raise ValueError(f"unknown label {x}")
ValueError: unknown label 17
"""


def test_ray_tells_which_rank_raised_and_on_which_node(tmp_path: Path) -> None:
    got = verdict_of(tmp_path, {"driver.log": RAY + RAY_RAISED})
    assert (got.failure_class.value, ranks_of(got), got.nodes) == (
        "user_code",
        [1],
        ("10.0.0.5",),
    )


def test_ray_tells_the_node_whose_memory_ran_out(tmp_path: Path) -> None:
    killed = (
        "(raylet, ip=10.0.0.5) [2026-11-20 03:20:11,004 E 90 90] (raylet) node_manager.cc:3064: 1"
        " Workers (tasks / actors) killed due to memory pressure (OOM)\n"
    )
    got = verdict_of(tmp_path, {"driver.log": RAY + killed})
    assert (got.failure_class.value, got.nodes) == ("host_memory", ("10.0.0.5",))


# --- stacks in numbered files --------------------------------------------------------------------


def spied(pid: int, function: str, path: str) -> str:
    return (
        f"Process {pid}: python train.py\nPython v3.11.9 (/usr/bin/python3.11)\n\nThread {pid}"
        f' (idle): "MainThread"\n    {function} ({path}:12)\n    <module> (train.py:120)\n'
    )


def stacks_in(names: str, pids: list[int]) -> dict[str, str]:
    odd = ("decode", "data/video.py")
    waits = ("barrier", "torch/distributed/distributed_c10d.py")
    return {
        names.format(at): spied(pid, *(odd if at == 3 else waits)) for at, pid in enumerate(pids)
    }


@pytest.mark.parametrize("names", ["stack.{}", "pyspy_r{}.txt", "spy/{}/out.txt"])
def test_stacks_of_several_processes_are_numbered_by_rank(tmp_path: Path, names: str) -> None:
    got = verdict_of(tmp_path, stacks_in(names, [300, 301, 302, 303, 304]))
    assert (ranks_of(got), got.failure_class.value) == ([3], "user_code")


def test_stacks_of_one_process_are_numbered_by_time(tmp_path: Path) -> None:
    got = verdict_of(tmp_path, stacks_in("stack.{}", [300] * 5))
    assert got.ranks == ()


# --- lists of Kubernetes -------------------------------------------------------------------------


def pod(number: int, *, reason: str) -> dict[str, object]:
    """A pod as long as they are, whose end stands behind all that says nothing."""
    ended = {"exitCode": 137, "reason": reason, "finishedAt": "2026-11-20T03:14:07Z"}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": f"job-{number}", "annotations": {"long": "x" * 6_000}},
        "spec": {
            "containers": [{"env": [{"name": f"A{at}", "value": "y" * 40} for at in range(99)]}],
            "nodeName": f"ip-10-0-0-{number}",
        },
        "status": {
            "containerStatuses": [
                {"name": "pytorch", "state": {"terminated": ended} if reason else {"running": {}}}
            ]
        },
    }


def test_each_pod_of_a_list_is_a_record_with_its_own_node(tmp_path: Path) -> None:
    pods = [pod(number, reason="OOMKilled" if number == 3 else "") for number in range(5)]
    listed = {"apiVersion": "v1", "items": pods, "kind": "List", "metadata": {}}
    got = verdict_of(tmp_path, {"pods.json": json.dumps(listed, indent=4)})
    assert (got.failure_class.value, got.nodes) == ("host_memory", ("ip-10-0-0-3",))
    assert "OOMKilled" in got.evidence[0].text


# --- what is said of signals, and by whom --------------------------------------------------------


def test_words_about_a_signal_after_which_training_goes_on_ended_nothing(tmp_path: Path) -> None:
    shown = "eval: prompt='Segmentation fault (core dumped)' -> 'ok'\n"
    got = verdict_of(tmp_path, {"train.log": STEPS + shown + STEPS})
    assert got.failure_class.value == "unknown"
    assert "Nothing that was read tells of a failure" in got.reason


@pytest.mark.parametrize(
    ("how", "said"),
    [("9 (Killed)", "signal"), ("11 (Segmentation fault)", "signal")],
)
def test_mpirun_names_the_rank_and_the_node(tmp_path: Path, how: str, said: str) -> None:
    line = f"mpirun noticed that process rank 3 with PID 881 on node n2 exited on signal {how}.\n"
    got = verdict_of(tmp_path, {"job.out": STEPS + line})
    assert (ranks_of(got), got.nodes) == ([3], ("n2",))
    assert got.mechanism is not None
    assert got.mechanism.value == said


def test_another_group_that_may_not_fork_is_no_failure_of_a_quiet_job(tmp_path: Path) -> None:
    kernel = (
        "2026-11-20T03:31:00+00:00 n1 kernel: cgroup: fork rejected by pids controller in /ci\n"
    )
    logs = {f"rank_{rank}.log": STEPS for rank in range(2)}
    got = verdict_of(tmp_path, {**logs, "dmesg-of-n1.txt": kernel, "a.log": "NCCL version 2.21\n"})
    assert "Nothing that was read tells of a failure" in got.reason
    assert "Both logs end at step 29" in got.reason


def test_a_job_that_was_seen_to_hang_is_said_to_stand_still(tmp_path: Path) -> None:
    """Whoever follows the job knows; the same logs alone may be those of a job that runs on."""
    for rank in range(2):
        (tmp_path / f"rank_{rank}.log").write_text(STEPS)
    got = diagnose([str(tmp_path)], hangs="no new line for 300 s").verdict
    assert got.mechanism is not None
    assert got.mechanism.value == "hang"
    assert got.reason.startswith("The job stands still")
    assert "Both logs end at step 29" in got.reason
    assert "if the job trains" not in got.action


# --- what all nodes show -------------------------------------------------------------------------


def test_nodes_on_which_one_program_fails_alike_are_not_named(tmp_path: Path) -> None:
    fault = "kernel: NVRM: Xid (PCI:0000:{gpu}:00): 31, pid=50{gpu}, name=python3, MMU Fault\n"
    lines = {
        f"n{node}/kern.log": "".join(
            f"Nov 20 03:14:07 n{node} {fault.format(gpu=gpu)}" for gpu in (18, 28, 38)
        )
        for node in range(3)
    }
    got = verdict_of(tmp_path, lines)
    assert (got.failure_class.value, got.nodes, got.devices) == ("software_bug", (), ())


def test_how_nccl_was_used_wrongly_decides_and_not_that_it_was(tmp_path: Path) -> None:
    log = "".join(
        f"[rank{rank}]: ncclInvalidUsage: This usually reflects invalid usage of NCCL library.\n"
        f"[rank{rank}]: Last error:\n"
        f"[rank{rank}]: Mismatched NCCL version detected : rank {rank} version 22105 rank 3"
        " version 22005\n"
        for rank in range(3)
    )
    assert verdict_of(tmp_path, {"train.log": log}).failure_class.value == "dependency"
